"""Repeats as numbers: mean, interquartile mean, ratio, parallel efficiency, time to a score. Pure functions.

Intervals are 95% percentile bootstrap intervals (Efron 1979) of scipy.stats, seeded: equal values, equal intervals.
They are expanded as Student's t is wider than the normal distribution (Hesterberg 2015, section 3.4): unexpanded ones
of five values hold the true mean 85 times of 100 only. Fewer than five repeats have none: that of two is their minimum
and maximum, and holds the true median half of the time. They are shown as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

BOOTSTRAP_SAMPLES = 10_000
CONFIDENCE = 0.95
"""Of intervals, before they are expanded for few values."""
ENOUGH = 5
"""Repeats from which there are intervals and verdicts."""
ENOUGH_OF_A_GAME = 3
"""Repeats of each game from which several games together have intervals."""

Values = Sequence[float | None]
"""One value of each repeat; None where it has none, which is left out."""


class Interval(NamedTuple):
    """A mean over seeds with its confidence interval; low and high are None for fewer than ENOUGH seeds.

    Attributes:
        values: of these few seeds, where there are several; nothing where they are not of single seeds, as in a ratio.
    """

    mean: float
    low: float | None = None
    high: float | None = None
    count: int = 1  # type: ignore[assignment]  # hides the method of tuples, which nobody needs
    values: tuple[float, ...] = ()

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Low and high, where there are seeds enough."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def map(self, function: Callable[[float], float]) -> Interval:
        """The interval in another unit; a falling function lets the bounds change places."""
        low, high = sorted(map(function, self.bounds)) if self.bounds else (None, None)
        return Interval(function(self.mean), low, high, self.count, tuple(map(function, self.values)))


class TimeToScore(NamedTuple):
    """When repeats reached a score. Those that did not are counted, never dropped.

    Attributes:
        reached: seconds of those that did, in the order of the repeats, as other columns of a table have them.
        missed: how many did not.
        limit: seconds that these were given.
    """

    reached: tuple[float, ...]
    missed: int
    limit: float

    @property
    def count(self) -> int:  # type: ignore[override]
        """Repeats."""
        return len(self.reached) + self.missed

    @property
    def median(self) -> float | None:
        """Of all repeats, those that did not reach it being later than all others; None where that is not reached."""
        median = np.median((*self.reached, *[np.inf] * self.missed)) if self.count else np.inf
        return float(median) if np.isfinite(median) else None

    def least_median(self) -> float:
        """Median with the limit for those that did not reach it: the true one is no less."""
        return float(np.median((*self.reached, *[self.limit] * self.missed)))

    def mean(self) -> Interval | None:
        """Mean with its interval; None unless all repeats reached it, since it would flatter."""
        return bootstrap(self.reached) if not self.missed else None

    def least_mean(self) -> float:
        """Mean with the limit for those that did not reach it: the true one is no less (restricted mean)."""
        return (sum(self.reached) + self.missed * self.limit) / self.count

    def text(self) -> str:
        """For a table: 12.3 min [11, 13.5]; 11; 13.5 min of few; 2 of 3 in 8.1 min, 1 not reached in 20 min."""
        limit = f"not reached in {self.limit / 60:.3g} min"
        if not self.reached:
            return limit
        if (mean := self.mean()) is None:
            known = sum(self.reached) / len(self.reached)
            return f"{len(self.reached)} of {self.count} in {known / 60:.3g} min, {self.missed} {limit}"
        if mean.bounds:
            return "{:.3g} min [{:.3g}, {:.3g}]".format(*(seconds / 60 for seconds in (mean.mean, *mean.bounds)))
        return "; ".join(f"{seconds / 60:.3g}" for seconds in self.reached) + " min"


def bootstrap(values: Values, samples: int = BOOTSTRAP_SAMPLES) -> Interval | None:
    """Mean of the values that are there, with its interval; None of none."""
    return _interval(np.mean, [values], samples)


def interquartile_mean(values: Values, samples: int = 2000) -> Interval | None:
    """Mean of the middle half: a quarter, rounded down, is cut off at either end (Agarwal et al. 2021).

    None of fewer than ENOUGH values, of which nothing would be cut off, or one at either end.
    """
    from scipy.stats import trim_mean

    if sum(value is not None for value in values) < ENOUGH:
        return None
    return _interval(lambda drawn, axis=0: trim_mean(drawn, 0.25, axis=axis), [values], samples)


def stratified_interquartile_mean(scores: Sequence[Values], samples: int = 2000) -> Interval | None:
    """Mean of the middle half of all values of several games; None of fewer than ENOUGH values.

    Args:
        scores: of the runs of each game. Resamples draw as many runs of each game as it has (Agarwal et al. 2021).
    """
    from scipy.stats import trim_mean

    if sum(value is not None for game in scores for value in game) < ENOUGH:
        return None
    return _stratified(lambda together, axis: trim_mean(together, 0.25, axis=axis), scores, samples)


def share_above(scores: Sequence[Values], threshold: float, samples: int = 2000) -> Interval | None:
    """Share of all values of several games above a threshold: a point of a performance profile (Agarwal et al. 2021).

    Args:
        scores: of the runs of each game.
    """
    return _stratified(lambda together, axis: np.mean(together > threshold, axis=axis), scores, samples)


def _stratified(statistic: Callable[..., Any], scores: Sequence[Values], samples: int) -> Interval | None:
    """A statistic of all values together, each game's resampled by themselves; see `_interval`."""
    return _interval(
        lambda *games, axis=0: statistic(np.concatenate(games, axis=axis), axis=axis), scores, samples, ENOUGH_OF_A_GAME
    )


def bootstrap_ratio(above: Values, below: Values, samples: int = BOOTSTRAP_SAMPLES) -> Interval | None:
    """Ratio of two means, each resampled by itself; None where either has no value, or the lower mean is 0."""
    if not any(value for value in below if value is not None):
        return None
    return _interval(lambda top, bottom, axis=0: top.mean(axis=axis) / bottom.mean(axis=axis), [above, below], samples)


def bootstrap_paired_ratio(above: Sequence[float], below: Sequence[float]) -> Interval:
    """Geometric mean of the ratios of pairs, of which whole pairs are resampled.

    Args:
        above: one value above 0 of each seed, at least one.
        below: those of the same seeds, in the same order.
    """
    found = bootstrap(np.log(np.asarray(above, np.float64) / np.asarray(below, np.float64)).tolist())
    assert found is not None
    return found.map(math.exp)


def _interval(
    statistic: Callable[..., Any], samples: Sequence[Values], resamples: int, enough: int = ENOUGH
) -> Interval | None:
    """A statistic of samples <float>[n] each; no bounds where one of them has fewer than `enough` values."""
    from scipy import stats

    known = [np.array([value for value in sample if value is not None], np.float64) for sample in samples]
    count = min(map(len, known))
    if count < enough:
        values = tuple(known[0].tolist()) if len(known) == 1 and count > 1 else ()
        return Interval(float(statistic(*known)), None, None, count, values) if count else None
    level = _expanded(sum(map(len, known)), len(known))
    ends = stats.bootstrap(
        known, statistic, n_resamples=resamples, confidence_level=level, method="percentile", rng=0
    ).confidence_interval
    return Interval(float(statistic(*known)), float(ends.low), float(ends.high), count)


def _expanded(values: int, samples: int) -> float:
    """The level at which a percentile interval of so many values of all samples together is as wide as Student's t."""
    from scipy.stats import norm, t

    freedom = values - samples
    deviations = t.ppf(0.5 + CONFIDENCE / 2, freedom) * math.sqrt(values / freedom)
    return float(1.0 - 2.0 * norm.sf(deviations))


def difference(one: Interval, other: Interval) -> tuple[float, float] | None:
    """95% interval of one mean minus an independent one, from theirs (Zou and Donner 2008, equation 3, "MOVER").

    None where one of them has no bounds.
    """
    if one.bounds is None or other.bounds is None:
        return None
    middle, (low, high), (other_low, other_high) = one.mean - other.mean, one.bounds, other.bounds
    below = math.hypot(one.mean - low, other_high - other.mean)
    above = math.hypot(high - one.mean, other.mean - other_low)
    return middle - below, middle + above


def told_apart(one: Interval | None, other: Interval | None) -> bool:
    """Whether there are two means, and the interval of their difference excludes 0."""
    found = difference(one, other) if one and other else None
    return found is not None and not found[0] <= 0.0 <= found[1]


def efficiency(speed_up: Interval | None, workers: int, base_workers: int = 1) -> Interval | None:
    """Parallel efficiency: the speed-up for each worker, 1 where it is linear."""
    return speed_up and speed_up.map(lambda ratio: ratio * base_workers / workers)
