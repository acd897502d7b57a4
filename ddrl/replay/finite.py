"""Keeps steps with NaN or infinite numbers, which an environment may give, out of what a replay draws."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ddrl.structured import float_parts
from ddrl.types import Unroll

_FIELDS = ("observation", "action", "reward")


class Finite(NamedTuple):
    """An unroll of finite numbers.

    Attributes:
        unroll: with 0 for what was not finite, and episodes cut where a step is left out.
        left_out: <bool>[T, B] steps that must not be drawn, since they hold or lead to something that was not finite.
        first: (step, simulator, name of the field) of the first such number.
    """

    unroll: Unroll
    left_out: np.ndarray
    first: tuple[int, int, str]


def finite_part(unroll: Unroll) -> Finite | None:
    """The part of an unroll [T, B] that may go into a replay; None if all of it may, as it is.

    A step is left out where its observation, the next one, its action or its reward is not finite. What came before
    it then ends there as a truncated episode, with the last finite observation.
    """
    wrong = {name: not_finite(getattr(unroll, name)) for name in _FIELDS}
    if not any(field.any() for field in wrong.values()):
        return None
    observation = wrong["observation"]
    left_out = observation[:-1] | observation[1:] | wrong["action"] | wrong["reward"]
    continues = np.where(left_out, 0, unroll.continues).astype(unroll.continues.dtype)
    continues[:-1][left_out[1:]] = 0
    cleaned = {name: _zeroed(getattr(unroll, name)) for name, field in wrong.items() if field.any()}
    return Finite(unroll._replace(continues=continues, **cleaned), left_out, _first(wrong))


def not_finite(array: np.ndarray) -> np.ndarray:
    """Which elements [T, B] of an array [T, B, ...] hold a number that is NaN or infinite: <bool>[T, B]."""
    wrong = np.zeros(array.shape[:2], bool)
    for part in float_parts(array):
        wrong |= ~np.isfinite(part).reshape(*part.shape[:2], -1).all(axis=-1)
    return wrong


def set_to_zero(array: np.ndarray) -> None:
    """Sets what is NaN or infinite to 0."""
    for part in float_parts(array):
        part[~np.isfinite(part)] = 0


def _zeroed(array: np.ndarray) -> np.ndarray:
    zeroed = array.copy()
    set_to_zero(zeroed)
    return zeroed


def _first(wrong: dict[str, np.ndarray]) -> tuple[int, int, str]:
    places = [(*np.argwhere(field)[0].tolist(), name) for name, field in wrong.items() if field.any()]
    return min(places)
