"""Ranges of the flat parameter vector with learning rates of their own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np


class ParameterGroup(NamedTuple):
    """The values [start, stop) of the flat vector, whose learning rate is `factor` times the schedule's."""

    start: int
    stop: int
    factor: float


def groups_named(
    tensors: Sequence[tuple[str, tuple[int, ...]]], factors: Mapping[str, float]
) -> tuple[ParameterGroup, ...]:
    """The groups of the tensors whose names begin with one of the given prefixes; one group per tensor.

    Args:
        tensors: name and shape of each tensor, in the order of the flat vector.
        factors: prefix of a name -> factor on the learning rate.

    Raises:
        ValueError: a prefix matches no tensor.
    """
    groups, start = [], 0
    for name, shape in tensors:
        stop = start + math.prod(shape)
        groups += [ParameterGroup(start, stop, factors[prefix]) for prefix in factors if name.startswith(prefix)]
        start = stop
    if unknown := [prefix for prefix in factors if not any(name.startswith(prefix) for name, _ in tensors)]:
        raise ValueError(f"no tensor is called {unknown[0]}...: there are {', '.join(name for name, _ in tensors)}")
    return tuple(groups)


def cut(groups: Sequence[ParameterGroup], start: int, stop: int) -> tuple[ParameterGroup, ...]:
    """The parts of the groups that are in the slice [start, stop), with positions counted from its start."""
    inside = (ParameterGroup(max(g.start, start) - start, min(g.stop, stop) - start, g.factor) for g in groups)
    return tuple(group for group in inside if group.start < group.stop)


def factors_of(groups: Sequence[ParameterGroup], size: int) -> np.ndarray | None:
    """The learning rate's factor for each parameter, <float32>[size]; None if there are no groups.

    Raises:
        ValueError: a group is not within the vector, or two overlap, or a factor is negative or not finite.
    """
    if not groups:
        return None
    factors, end = np.ones(size, np.float32), 0
    for group in sorted(groups):
        if not (end <= group.start < group.stop <= size and 0.0 <= group.factor < float("inf")):
            raise ValueError(f"{group} overlaps another one, or is no group of {size} parameters")
        factors[group.start : group.stop] = group.factor
        end = group.stop
    return factors
