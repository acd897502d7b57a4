"""Statistics of repeats: mean, interquartile mean, ratio, parallel efficiency, time to a score. Pure functions.

Intervals are 95% percentile bootstrap intervals (Efron 1979) of scipy.stats with a fixed seed, so that equal values
have equal intervals. They are expanded by as much as Student's t is wider than the normal distribution (Hesterberg
2015, section 3.4): without that, intervals of five values would contain the true mean only 85 times in 100. Fewer than
five repeats have no interval, since that of two is their minimum and maximum, and contains the true median only half of
the time. Their values are shown as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ddrl.reporting.texts import number

RESAMPLES, FEWER_RESAMPLES = 10_000, 2_000
"""Resamples of a bootstrap: of means and ratios, and of interquartile means and shares."""
CONFIDENCE = 0.95
"""Confidence level of intervals, before they are expanded for few values."""
ENOUGH = 5
"""Fewest repeats for which there are intervals and verdicts."""
ENOUGH_OF_A_GAME = 3
"""Fewest repeats of each game for which several games together have intervals."""

Values = Sequence[float | None]
"""One value for each repeat. None, for a repeat without a value, is left out."""


class Interval(NamedTuple):
    """A mean over seeds with its confidence interval; low and high are None for fewer than ENOUGH seeds.

    Attributes:
        values: the value of each seed, if there are several but fewer than ENOUGH. Otherwise it is empty, also where
            values are not those of single seeds, as in a ratio.
    """

    mean: float
    low: float | None = None
    high: float | None = None
    count: int = 1  # type: ignore[assignment]  # hides the method of tuples, which nobody needs
    values: tuple[float, ...] = ()

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Low and high; None if there are too few seeds."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def map(self, function: Callable[[float], float]) -> Interval:
        """The interval in another unit; a decreasing function swaps the bounds."""
        low, high = sorted(map(function, self.bounds)) if self.bounds else (None, None)
        return Interval(function(self.mean), low, high, self.count, tuple(map(function, self.values)))


class TimeToScore(NamedTuple):
    """When repeats reached a score. Those that did not reach it are counted, never dropped.

    `text` aside, seconds may be agent steps as well.

    Attributes:
        reached: seconds until the score, of the repeats that reached it, in the order of other columns of a table.
        missed: number of repeats that did not reach it.
        limit: seconds that those repeats were given.
    """

    reached: tuple[float, ...]
    missed: int
    limit: float

    @property
    def count(self) -> int:  # type: ignore[override]
        """The number of repeats."""
        return len(self.reached) + self.missed

    @property
    def median(self) -> float | None:
        """Median over all repeats, in which those that missed the score are later than all others; None if the median
        repeat missed it."""
        median = np.median((*self.reached, *[np.inf] * self.missed)) if self.count else np.inf
        return float(median) if np.isfinite(median) else None

    def least_median(self) -> float:
        """A lower bound of the median: repeats that missed the score count with the limit."""
        return float(np.median((*self.reached, *[self.limit] * self.missed)))

    def mean(self) -> Interval | None:
        """Mean with its interval; None unless all repeats reached the score, since the others' mean would flatter."""
        return bootstrap(self.reached) if not self.missed else None

    def least_mean(self) -> float:
        """A lower bound of the mean (restricted mean): repeats that missed the score count with the limit."""
        return (sum(self.reached) + self.missed * self.limit) / self.count

    def text(self) -> str:
        """A cell of a table, such as '12.3 min [11.0, 13.5]', '11.0; 13.5 min' if there are few repeats, or '2 of 3 in
        8.1 min, 1 not reached in 20.0 min'."""
        limit = f"not reached in {number(self.limit / 60)} min"
        if not self.reached:
            return limit
        if (mean := self.mean()) is None:
            known = sum(self.reached) / len(self.reached)
            return f"{len(self.reached)} of {self.count} in {number(known / 60)} min, {self.missed} {limit}"
        if mean.bounds:
            return "{} min [{}, {}]".format(*(number(seconds / 60) for seconds in (mean.mean, *mean.bounds)))
        return "; ".join(number(seconds / 60) for seconds in self.reached) + " min"


def bootstrap(values: Values) -> Interval | None:
    """Mean of the values that are not None, with its interval; None if there are none."""
    return _interval(np.mean, [values], RESAMPLES)


def bootstrap_rows(values: np.ndarray, resamples: int = RESAMPLES) -> list[Interval]:
    """Mean of each row of <float>[rows, n], with its interval: those of `bootstrap`, several times as fast."""
    return _intervals(np.mean, [values], resamples)


def interquartile_mean(values: Values) -> Interval | None:
    """Mean of the middle half: a quarter, rounded down, is cut off at either end (Agarwal et al. 2021).

    None for fewer than ENOUGH values, of which at most one would be cut off at either end.
    """
    if sum(value is not None for value in values) < ENOUGH:
        return None
    return _interval(_trimmed, [values], FEWER_RESAMPLES)


def interquartile_mean_rows(values: np.ndarray) -> list[Interval]:
    """`interquartile_mean` of each row of <float>[rows, n], where n is at least ENOUGH."""
    return _intervals(_trimmed, [values], FEWER_RESAMPLES)


def _trimmed(values: np.ndarray, axis: int = 0) -> Any:
    from scipy.stats import trim_mean

    return trim_mean(values, 0.25, axis=axis)


def stratified_interquartile_mean(scores: Sequence[Values]) -> Interval | None:
    """Mean of the middle half of all values of several games; None for fewer than ENOUGH values.

    Args:
        scores: for each game, those of its runs. A resample draws as many runs of each game as it has (stratified
            bootstrap, Agarwal et al. 2021).
    """
    if sum(value is not None for game in scores for value in game) < ENOUGH:
        return None
    return _stratified(_trimmed, scores)


def share_above(scores: Sequence[Values], threshold: float) -> Interval | None:
    """Share of all values of several games above a threshold: a point of a performance profile (Agarwal et al. 2021).

    Args:
        scores: for each game, those of its runs.
    """
    return _stratified(lambda together, axis: np.mean(together > threshold, axis=axis), scores)


def _stratified(statistic: Callable[..., Any], scores: Sequence[Values]) -> Interval | None:
    """A statistic of all values together, where the values of each game are resampled separately; see `_interval`."""

    def of_games(*games: np.ndarray, axis: int = 0) -> Any:
        return statistic(np.concatenate(games, axis=axis), axis=axis)

    return _interval(of_games, scores, FEWER_RESAMPLES, ENOUGH_OF_A_GAME)


def bootstrap_ratio(above: Values, below: Values) -> Interval | None:
    """Ratio of two means, which are resampled separately; None if either has no value, or all of `below` are 0."""
    if not any(value for value in below if value is not None):
        return None

    def ratio(top: np.ndarray, bottom: np.ndarray, axis: int = 0) -> Any:
        return top.mean(axis=axis) / bottom.mean(axis=axis)

    return _interval(ratio, [above, below], RESAMPLES)


def bootstrap_paired_ratio(above: Sequence[float], below: Sequence[float]) -> Interval:
    """Geometric mean of the ratios of pairs, with its interval, for which whole pairs are resampled.

    Args:
        above: the numerators: for each of one or more seeds a value above 0.
        below: the denominators, for the same seeds in the same order.
    """
    found = bootstrap(np.log(np.asarray(above, np.float64) / np.asarray(below, np.float64)).tolist())
    assert found is not None
    return found.map(math.exp)


def _interval(
    statistic: Callable[..., Any], samples: Sequence[Values], resamples: int, enough: int = ENOUGH
) -> Interval | None:
    """A statistic of one or more samples, with its interval; None if a sample has no values. See `_intervals`."""
    known = [np.array([[value for value in sample if value is not None]], np.float64) for sample in samples]
    return _intervals(statistic, known, resamples, enough)[0] if all(sample.size for sample in known) else None


def _intervals(
    statistic: Callable[..., Any], samples: Sequence[np.ndarray], resamples: int, enough: int = ENOUGH
) -> list[Interval]:
    """A statistic of each row of one or more samples, with its interval.

    Args:
        statistic: of as many arrays along `axis`.
        samples: each <float>[rows, n], where n may differ. All rows are resampled alike.
        resamples: their number.
        enough: a sample with fewer values than these leaves the intervals without bounds.
    """
    from scipy import stats

    lengths = [sample.shape[1] for sample in samples]
    found, count = statistic(*samples, axis=-1).tolist(), min(lengths)
    if count < enough:
        values = samples[0].tolist() if len(samples) == 1 and count > 1 else [()] * len(found)
        return [Interval(one, None, None, count, tuple(each)) for one, each in zip(found, values)]
    level = _expanded(sum(lengths), len(lengths))
    ends = stats.bootstrap(
        samples, statistic, n_resamples=resamples, axis=-1, confidence_level=level, method="percentile", rng=0
    ).confidence_interval
    return [Interval(*each, count) for each in zip(found, ends.low.tolist(), ends.high.tolist())]


def _expanded(values: int, samples: int) -> float:
    """The confidence level at which a percentile interval is as wide as Student's t is at CONFIDENCE.

    Args:
        values: number of values in all samples together.
        samples: number of samples.
    """
    from scipy.stats import norm, t

    freedom = values - samples
    deviations = t.ppf(0.5 + CONFIDENCE / 2, freedom) * math.sqrt(values / freedom)
    return float(1.0 - 2.0 * norm.sf(deviations))


def difference(one: Interval, other: Interval) -> tuple[float, float] | None:
    """95% interval of the difference of two independent means, computed from their intervals.

    None if one of them has no bounds. Source: Zou and Donner 2008, equation 3 ("MOVER").
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
