"""How long a worker takes from having parameters to having a gradient."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np


class Times(Protocol):
    """A distribution of times in seconds."""

    @property
    def mean(self) -> float: ...

    def draw(self, generator: np.random.Generator, count: int) -> np.ndarray:
        """Independent times <float64>[count], in seconds."""
        ...


@dataclasses.dataclass(frozen=True)
class Constant:
    """Always as long."""

    mean: float

    def draw(self, generator: np.random.Generator, count: int) -> np.ndarray:
        return np.full(count, self.mean)


@dataclasses.dataclass(frozen=True)
class Gamma:
    """Gamma distributed; with deviation = mean it is the exponential distribution."""

    mean: float
    deviation: float

    def draw(self, generator: np.random.Generator, count: int) -> np.ndarray:
        shape = (self.mean / self.deviation) ** 2
        return generator.gamma(shape, self.mean / shape, count)


def gamma_or_constant(mean: float, deviation: float) -> Times:
    """Gamma where there is a deviation."""
    return Gamma(mean, deviation) if deviation > 1e-6 * mean else Constant(mean)
