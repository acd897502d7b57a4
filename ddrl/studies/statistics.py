"""Repeats as numbers: spread, interquartile mean, speed-up, time to score. Pure functions of NumPy.

Intervals are 95% percentile bootstrap intervals (see `ddrl.studies.measures`), seeded: equal values, equal intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ddrl.studies.measures import BOOTSTRAP_SAMPLES, CONFIDENCE, Interval, bootstrap, bootstrap_ratio


class Spread(NamedTuple):
    """Of repeats.

    Attributes:
        mean: with its interval.
        interquartile_mean: with its interval.
        deviation: of the repeats themselves (n - 1 below the fraction); None of one.
    """

    mean: Interval
    interquartile_mean: Interval
    deviation: float | None


class TimeToScore(NamedTuple):
    """When repeats reached a score. Those that did not are counted, never dropped.

    Attributes:
        reached: seconds of those that did, ascending.
        missed: how many did not.
        limit: seconds that these were given.
    """

    reached: tuple[float, ...]
    missed: int
    limit: float

    @property
    def count(self) -> int:
        """Repeats."""
        return len(self.reached) + self.missed

    @property
    def median(self) -> float | None:
        """Of all repeats, those that did not reach it being later than all others; None where that is not reached."""
        middle = sorted((*self.reached, *[np.inf] * self.missed))
        value = float(np.mean([middle[(self.count - 1) // 2], middle[self.count // 2]])) if middle else np.inf
        return value if np.isfinite(value) else None

    def mean(self, seed: int = 0) -> Interval | None:
        """Mean with its interval; None unless all repeats reached it, since it would flatter."""
        return bootstrap(self.reached, seed=seed) if not self.missed else None

    def least_mean(self) -> float:
        """Mean with the limit for those that did not reach it: the true one is no less (restricted mean)."""
        return (sum(self.reached) + self.missed * self.limit) / self.count

    def text(self, unit: float = 60.0, name: str = "min") -> str:
        """For a table: 12.3 min [11.0, 13.5]; 2 of 3 in 8.1 min, 1 not reached in 20 min; not reached in 20 min."""
        limit = f"not reached in {self.limit / unit:.3g} {name}"
        if not self.reached:
            return limit
        if self.missed:
            mean = np.mean(self.reached) / unit
            return f"{len(self.reached)} of {self.count} in {mean:.3g} {name}, {self.missed} {limit}"
        mean = self.mean()
        spread = f" [{mean.low / unit:.3g}, {mean.high / unit:.3g}]" if mean.low is not None else ""
        return f"{mean.mean / unit:.3g} {name}{spread}"


def interquartile_mean(values: Sequence[float]) -> float:
    """Mean of the middle half: a quarter, rounded down, is cut off at either end (Agarwal et al. 2021).

    Of fewer than four values it is the mean.
    """
    ordered = np.sort(np.asarray(values, np.float64))
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


def interval_of(
    statistic: Callable[[Sequence[float]], float], values: Sequence[float | None], samples: int = 2000, seed: int = 0
) -> Interval | None:
    """Any statistic of the values that are there, with its interval; None of none."""
    known = np.asarray([value for value in values if value is not None], np.float64)
    if len(known) < 2:
        return Interval(statistic(known)) if len(known) else None
    drawn = np.random.default_rng(seed).integers(len(known), size=(samples, len(known)))
    found = [statistic(known[row]) for row in drawn]
    low, high = np.quantile(found, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(statistic(known), float(low), float(high), len(known))


def spread(values: Sequence[float | None], seed: int = 0) -> Spread | None:
    """What is told of repeats; None of none."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    deviation = float(np.std(known, ddof=1)) if len(known) > 1 else None
    return Spread(bootstrap(known, seed=seed), interval_of(interquartile_mean, known, seed=seed), deviation)


def speed_up(
    rates: Sequence[float | None], base_rates: Sequence[float | None], samples: int = BOOTSTRAP_SAMPLES, seed: int = 0
) -> Interval | None:
    """Ratio of mean rates, 1/s, to those of the base, with its interval; None where either has none."""
    return bootstrap_ratio(rates, base_rates, samples, seed)


def time_speed_up(
    seconds: Sequence[float | None],
    base_seconds: Sequence[float | None],
    samples: int = BOOTSTRAP_SAMPLES,
    seed: int = 0,
) -> Interval | None:
    """Ratio of mean times, the base's above: how many times sooner. For repeats that all reached the score."""
    return bootstrap_ratio(base_seconds, seconds, samples, seed)


def efficiency(speed: Interval | None, workers: int, base_workers: int = 1) -> Interval | None:
    """Parallel efficiency: the speed-up for each worker, 1 where it is linear."""
    if speed is None:
        return None
    share = base_workers / workers
    ends = (None, None) if speed.low is None else (speed.low * share, speed.high * share)
    return Interval(speed.mean * share, *ends, speed.count)


def time_to_score(seconds: Sequence[float | None], limit: float) -> TimeToScore:
    """Of repeats: seconds until the score, None or more than the limit where it was not reached in time.

    Args:
        seconds: one for each repeat.
        limit: seconds that each was given.
    """
    reached = tuple(sorted(float(value) for value in seconds if value is not None and value <= limit))
    return TimeToScore(reached, len(seconds) - len(reached), limit)
