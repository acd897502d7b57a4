"""What is told of runs: scores as Liu et al. 2020 measure them, rates, and their spread over seeds. Pure functions.

Evaluations are the `evaluation` records of metrics.jsonl, oldest first: `mean` raw score of `games` games with the
parameters of `wall_seconds`. Those that time cut off (`timed_out`) do not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ddrl.reporting.metrics import whole

POLICIES = 10  # of 10 evaluation episodes each: the paper's 100
BOOTSTRAP_SAMPLES = 10_000
CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A mean over seeds with its confidence interval; low and high are None for one seed, which has no spread."""

    mean: float
    low: float | None = None
    high: float | None = None
    count: int = 1


def final_metric(evaluations: Sequence[Mapping[str, Any]], policies: int = POLICIES) -> float | None:
    """Mean score of the episodes of the last `policies` evaluations, or of all where they are fewer; None of none.

    Liu et al. 2020, section 5, evaluation protocol: with 10 episodes an evaluation, the mean of the last 100.
    """
    complete = whole(list(evaluations))
    return _mean(complete[-policies:]) if complete else None


def final_time_metric(
    evaluations: Sequence[Mapping[str, Any]], seconds: float, policies: int = POLICIES
) -> float | None:
    """The final metric at a time limit: of parameters that were there after `seconds` of the run's wall time."""
    return final_metric([record for record in evaluations if record["wall_seconds"] <= seconds], policies)


def required_time(evaluations: Sequence[Mapping[str, Any]], score: float, policies: int = POLICIES) -> float | None:
    """Seconds of wall time until the mean of the most recent `policies` evaluations first reaches a score.

    None where it never does. Fewer evaluations than `policies` reach nothing: one lucky evaluation is no mean of 100.
    """
    complete = whole(list(evaluations))
    for end in range(policies, len(complete) + 1):
        if _mean(complete[end - policies : end]) >= score:
            return float(complete[end - 1]["wall_seconds"])
    return None


def agent_steps_per_second(records: Sequence[Mapping[str, Any]], warm_up_seconds: float) -> float | None:
    """Rate between the first `train` record after the warm-up and the last but one; None where there are not two.

    The last one is left out, since it also covers the end of the run.

    Args:
        records: of metrics.jsonl.
        warm_up_seconds: of wall time, in which simulators start together, queues fill and functions are traced.
    """
    acted = [record for record in records if record["kind"] == "train" and "agent_steps" in record]
    later = [record for record in acted[:-1] if record["wall_seconds"] >= warm_up_seconds]
    if len(later) < 2 or later[-1]["wall_seconds"] <= later[0]["wall_seconds"]:
        return None
    first, last = later[0], later[-1]
    return (last["agent_steps"] - first["agent_steps"]) / (last["wall_seconds"] - first["wall_seconds"])


def rate_per_second(records: Sequence[Mapping[str, Any]], name: str, warm_up_seconds: float) -> float | None:
    """Mean of a rate such as `datapoints_per_s` or `updates_per_s` over the same time; None where there is none.

    Each `train` record tells the rate since the one before, and counts for as long.
    """
    told = [record for record in records if record["kind"] == "train" and name in record]
    later = [record for record in told[:-1] if record["wall_seconds"] >= warm_up_seconds]
    seconds = np.diff([record["wall_seconds"] for record in later])
    if len(later) < 2 or seconds.sum() <= 0:
        return None
    return float(np.average([record[name] for record in later[1:]], weights=seconds))


def bootstrap(values: Sequence[float | None], samples: int = BOOTSTRAP_SAMPLES, seed: int = 0) -> Interval | None:
    """Mean of the values that are there, with the percentile bootstrap's 95% interval (Efron 1979); None of none.

    Args:
        values: one per seed.
        samples: resamples.
        seed: of the resampling: equal values give equal intervals.
    """
    known = np.asarray([value for value in values if value is not None], np.float64)
    if len(known) < 2:
        return Interval(float(known[0])) if len(known) else None
    means = known[_draws(len(known), samples, seed)].mean(axis=1)
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(known.mean()), float(low), float(high), len(known))


def bootstrap_ratio(
    above: Sequence[float | None], below: Sequence[float | None], samples: int = BOOTSTRAP_SAMPLES, seed: int = 0
) -> Interval | None:
    """Ratio of two means, each resampled by itself; None where either has no value."""
    top = np.asarray([value for value in above if value is not None], np.float64)
    bottom = np.asarray([value for value in below if value is not None], np.float64)
    if not len(top) or not len(bottom) or bottom.mean() == 0.0:
        return None
    ratio, count = float(top.mean() / bottom.mean()), min(len(top), len(bottom))
    if count < 2:
        return Interval(ratio)
    tops = top[_draws(len(top), samples, seed)].mean(axis=1)
    bottoms = bottom[_draws(len(bottom), samples, seed + 1)].mean(axis=1)
    low, high = np.quantile(tops / bottoms, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(ratio, float(low), float(high), count)


def _draws(count: int, samples: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(count, size=(samples, count))


def _mean(evaluations: Sequence[Mapping[str, Any]]) -> float:
    """Over the games of all evaluations."""
    games = [record["games"] for record in evaluations]
    return float(np.average([record["mean"] for record in evaluations], weights=games))
