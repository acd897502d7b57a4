"""Curves of several seeds as one: their mean and the interval around it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ddrl.studies.figures import Curve
from ddrl.studies.measures import bootstrap
from ddrl.studies.points import Outcome

GRID = 60
ONLINE, EVALUATION, MAXIMUM = "online_score_mean", "mean", "maximum"
"""Names of scores in `train` records, and of two in `evaluation` records."""
CAPTIONS = {
    ONLINE: "online score: mean of the last 100 training games",
    EVALUATION: "evaluation score: greedy games with frozen parameters",
}


def score_curve(
    outcomes: Sequence[Outcome], score: str, against: str, unit: float = 1.0, label: str = "", hold: bool = False
) -> Curve:
    """The scores of runs that differ in their seed alone, or something else that they measured.

    Args:
        outcomes: the runs; those without a score do not count.
        score: EVALUATION, MAXIMUM, ONLINE, or another number in the `train` records.
        against: agent_steps or wall_seconds.
        unit: what x is divided by.
        hold: runs that ended keep their last score to the end; else the curve ends with the shortest.
    """
    kind = "evaluation" if score in (EVALUATION, MAXIMUM) else "train"
    runs = []
    for outcome in outcomes:
        scored = [r for r in outcome.records if r["kind"] == kind and score in r and against in r]
        records = [r for r in scored if not r.get("timed_out")]
        if records:
            runs.append((np.array([r[against] for r in records]) / unit, np.array([r[score] for r in records], float)))
    if hold and runs:
        last = max(x[-1] for x, _ in runs)
        runs = [(np.append(x, last), np.append(y, y[-1])) for x, y in runs]
    return mean_curve(runs, label)


def mean_curve(runs: Sequence[tuple[np.ndarray, np.ndarray]], label: str = "") -> Curve:
    """Mean of curves with a 95% bootstrap interval, where all of them have values; a single one as it is.

    Args:
        runs: (x <float>[n] ascending, y <float>[n]) of each, n may differ.
    """
    if not runs:
        return Curve(label, [], [])
    if len(runs) == 1:
        x, y = runs[0]
        return Curve(label, x.tolist(), y.tolist())
    first, last = max(x[0] for x, _ in runs), min(x[-1] for x, _ in runs)
    if first > last:
        return Curve(label, [], [])
    grid = np.linspace(first, last, GRID)
    values = np.array([np.interp(grid, x, y) for x, y in runs])
    return interval_curve(grid.tolist(), values.T.tolist(), label)


def interval_curve(x: Sequence[float], values: Sequence[Sequence[float | None]], label: str = "") -> Curve:
    """Mean and interval of the values at each x; an x without a value is left out."""
    found = [(at, interval) for at, some in zip(x, values) if (interval := bootstrap(some)) is not None]
    return from_intervals(found, label)


def from_intervals(found: Sequence[tuple[float, Any]], label: str = "") -> Curve:
    """A curve through (x, Interval) pairs; it has a band where every interval has a spread."""
    x, mean = [at for at, _ in found], [interval.mean for _, interval in found]
    if not found or any(interval.low is None for _, interval in found):
        return Curve(label, x, mean)
    return Curve(label, x, mean, [interval.low for _, interval in found], [interval.high for _, interval in found])


def steps_unit(outcomes: Sequence[Outcome]) -> tuple[float, str]:
    """The unit of agent steps that suits the longest run, and the text of the axis."""
    longest = max((r.get("agent_steps", 0) for outcome in outcomes for r in outcome.records), default=0)
    return (1e6, "agent steps (millions)") if longest >= 1e6 else (1e3, "agent steps (thousands)")


def time_unit(outcomes: Sequence[Outcome]) -> tuple[float, str]:
    """The unit of wall time that suits the longest run, and the text of the axis."""
    longest = max((r.get("wall_seconds", 0.0) for outcome in outcomes for r in outcome.records), default=0.0)
    if longest >= 7200:
        return 3600.0, "wall time (hours)"
    return (60.0, "wall time (minutes)") if longest >= 120 else (1.0, "wall time (s)")


def count_text(counts: Collection[int]) -> str:
    """Such as 5, or 2 to 3."""
    least, most = min(counts), max(counts)
    return str(most) if least == most else f"{least} to {most}"


def spread_text(outcomes: Sequence[Outcome]) -> str:
    """What a figure says of its seeds: runs that differ in nothing else."""
    counts = Counter(json.dumps(dict(outcome.point.labels), sort_keys=True) for outcome in outcomes).values()
    least, most = min(counts), max(counts)
    if most == 1:
        return "one seed, so the spread is unknown"
    few = "; no interval where there is one" if least == 1 else ""
    return f"mean and 95% bootstrap interval of {count_text(counts)} seeds{few}"
