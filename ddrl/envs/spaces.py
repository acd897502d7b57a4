"""Action spaces of Gymnasium: what a policy draws, what an environment takes, and legal and random actions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from ddrl.errors import UsageError
from ddrl.structured import split_components
from ddrl.types import ActionSpace, Continuous, Discrete, MultiDiscrete

RANDOM_START = 0x5747  # keeps the stream of random first actions apart from others of the same seed
LONGEST_SPACE = 300  # letters
spaces = gymnasium.spaces


def action_space_of(game: str, space: gymnasium.Space) -> ActionSpace:
    """The action space that a policy draws from, with components in row-major order; a MultiBinary's are 0 or 1.

    Raises:
        UsageError: `space` is none of Discrete, MultiDiscrete, MultiBinary and a Box of floats.
    """
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiDiscrete(tuple(np.ravel(space.nvec).tolist()))
    if isinstance(space, spaces.MultiBinary):
        return MultiDiscrete((2,) * int(np.prod(space.shape)))
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        return Continuous(tuple(np.ravel(space.low).tolist()), tuple(np.ravel(space.high).tolist()))
    supported = "supported are Discrete, MultiDiscrete, MultiBinary, and a Box of floats"
    raise UsageError(f"{game} has the action space {in_line(space)}; {supported}")


def action_taker(space: gymnasium.Space) -> Callable[[np.ndarray], Any] | None:
    """A function from an action as the policy draws it to one of `space`.

    None if the two are the same, or differ only in the number of a Discrete's first action, which the caller adds
    before.
    """
    shape = space.shape
    # `contains` refuses an action whose type may have numbers that the space's type lacks.
    if isinstance(space, spaces.Discrete) and not np.can_cast(np.int32, space.dtype):
        narrow = space.dtype
        return lambda action: action.astype(narrow)
    if isinstance(space, spaces.MultiDiscrete):
        start, dtype = np.ravel(space.start), space.dtype
        return lambda action: (action + start).astype(dtype).reshape(shape)
    if isinstance(space, spaces.MultiBinary):
        return lambda action: action.astype(np.int8).reshape(shape)
    if isinstance(space, spaces.Box) and space.dtype == np.float16:
        return lambda action: action.astype(np.float16).reshape(shape)
    if isinstance(space, spaces.Box) and len(space.shape) != 1:
        return lambda action: action.reshape(shape)
    return None


def check_actions(actions: np.ndarray, space: ActionSpace, rows: int) -> np.ndarray:
    """A copy of `rows` actions as the environment takes them.

    Args:
        actions: <int32>[rows] of a Discrete space, <int32>[rows, K] of a MultiDiscrete, <float32>[rows, A] of a
            Continuous one.

    Returns:
        The actions; those of a Continuous space are clipped to its bounds.

    Raises:
        ValueError: another shape, an action out of range, or one that is not finite.
    """
    if isinstance(space, Continuous):
        actions = np.array(actions, np.float32)
        if actions.shape != (rows, *space.action_shape) or not np.isfinite(actions).all():
            raise ValueError(f"expected finite actions of shape {[rows, *space.action_shape]}, got {actions}")
        return np.clip(actions, *_bounds(space))
    actions = np.array(actions, np.int32)
    counts = np.array(space.counts) if isinstance(space, MultiDiscrete) else space.count
    if actions.shape != (rows, *space.action_shape) or actions.min() < 0 or (actions >= counts).any():
        last = f"0..{counts - 1}"
        raise ValueError(f"expected actions of shape {[rows, *space.action_shape]} in {last}, got {actions}")
    return actions


@functools.lru_cache
def _bounds(space: Continuous) -> tuple[np.ndarray, np.ndarray]:
    """The bounds <float32>[A] each, rounded so that none is outside of the space.

    For example, 0.1 is larger in float32 than in float64, and an environment with a Box of float64 may refuse it.
    """
    low, high = np.array(space.low), np.array(space.high)
    with np.errstate(over="ignore"):
        least, most = low.astype(np.float32), high.astype(np.float32)
        above, below = np.nextafter(least, np.float32(np.inf)), np.nextafter(most, np.float32(-np.inf))
    return np.where(least < low, above, least), np.where(most > high, below, most)


def check_legal(actions: np.ndarray, space: ActionSpace, mask: np.ndarray) -> None:
    """Raises ValueError where an action is forbidden.

    Args:
        actions: <int32>[b] or [b, K], in range.
        space: of the actions.
        mask: <bool>[b, A], see `ddrl.structured.ACTION_MASK`.
    """
    outputs = actions.reshape(len(actions), -1) + _starts(space)
    allowed = np.take_along_axis(mask, outputs, axis=1).all(axis=1)
    if not allowed.all():
        row = int(np.flatnonzero(~allowed)[0])
        raise ValueError(f"action {actions[row]} in row {row} of {len(actions)} is not legal there: {mask[row]}")


def no_actions(space: ActionSpace, rows: int, mask: np.ndarray | None = None) -> np.ndarray:
    """`rows` actions that are all 0; with a mask <bool>[rows, A], the first legal action of each row."""
    if mask is None:
        return np.zeros((rows, *space.action_shape), space.action_dtype)
    first = [part.argmax(axis=-1) for part in split_components(space, mask)]
    return np.stack(first, axis=-1).reshape(rows, *space.action_shape).astype(space.action_dtype)


def random_action(space: ActionSpace, generator: np.random.Generator, mask: np.ndarray | None = None) -> np.ndarray:
    """One uniform random action. A component that lacks a bound is standard normal, clipped to the bound it has.

    Args:
        space: of the actions.
        generator: the only source of chance.
        mask: <bool>[A] legal actions (None: all are).
    """
    if isinstance(space, Continuous):
        return _random_continuous(space, generator)
    mask = np.ones(space.head_size, bool) if mask is None else mask
    allowed = [np.flatnonzero(part) for part in split_components(space, mask)]
    drawn = [int(numbers[generator.integers(len(numbers))]) for numbers in allowed]
    return np.array(drawn, np.int32).reshape(space.action_shape)


def random_start_of(seed: int, number: int, most: int) -> tuple[np.random.Generator, int]:
    """The generator of a simulator's random first actions, and how many it takes: uniform in 0 to `most`.

    Args:
        seed: seed of all simulators.
        number: number of the simulator among all with that seed.
    """
    generator = np.random.default_rng([seed, number, RANDOM_START])
    return generator, int(generator.integers(most + 1))


def in_line(space: gymnasium.Space) -> str:
    """A space as text without line breaks, not too long."""
    text = " ".join(str(space).split())
    return text if len(text) <= LONGEST_SPACE else f"{text[:LONGEST_SPACE]} ..."


def _starts(space: ActionSpace) -> np.ndarray:
    """Where in a mask the actions of each component begin."""
    counts = space.counts if isinstance(space, MultiDiscrete) else (0,)
    return np.cumsum((0, *counts[:-1]))


def _random_continuous(space: Continuous, generator: np.random.Generator) -> np.ndarray:
    low, high = np.array(space.low), np.array(space.high)
    bounded = np.isfinite(low) & np.isfinite(high)
    uniform = generator.uniform(np.where(bounded, low, 0.0), np.where(bounded, high, 1.0))
    normal = np.clip(generator.standard_normal(len(low)), low, high)
    return np.where(bounded, uniform, normal).astype(np.float32)
