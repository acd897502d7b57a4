"""Curves of several seeds as one, their mean and the interval around it, and panels of such curves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import numpy as np

from ddrl.studies.figures import Curve, Panel
from ddrl.studies.measures import EVALUATION, MAXIMUM
from ddrl.studies.points import Group, Outcome
from ddrl.studies.statistics import Interval, bootstrap

AnyGroup = TypeVar("AnyGroup", bound=Group)
GRID = 60
STEPS, UPDATES, SECONDS = "agent_steps", "update", "wall_seconds"
"""What curves are drawn against."""


# curves ---------------------------------------------------------------------------------------------------------------


def score_curve(
    outcomes: Sequence[Outcome], score: str, against: str, unit: float = 1.0, label: str = "", hold: bool = False
) -> Curve:
    """The scores of runs that differ in their seed alone, or something else that they measured.

    Args:
        outcomes: the runs; those without a score do not count.
        score: EVALUATION, MAXIMUM, ONLINE, or another number in the `train` records.
        against: STEPS or SECONDS.
        unit: what x is divided by.
        hold: runs that ended keep their last score to the end; else the curve ends with the shortest.
    """
    runs = points_of(outcomes, score, against, unit)
    if hold and runs:
        last = max(x[-1] for x, _ in runs)
        runs = [(np.append(x, last), np.append(y, y[-1])) for x, y in runs]
    return curve_of(runs, label)


def points_of(
    outcomes: Sequence[Outcome], score: str, against: str, unit: float = 1.0
) -> list[tuple[np.ndarray, np.ndarray]]:
    """(x <float>[n] ascending, y <float>[n]) of each run that has a score; see `score_curve`."""
    kind = "evaluation" if score in (EVALUATION, MAXIMUM) else "train"
    against = "version" if kind == "evaluation" and against == UPDATES else against
    runs = []
    for outcome in outcomes:
        scored = [r for r in outcome.records if r["kind"] == kind and score in r and against in r]
        records = [r for r in scored if not r.get("timed_out")]
        if records:
            runs.append((np.array([r[against] for r in records]) / unit, np.array([r[score] for r in records], float)))
    return runs


def curve_of(
    runs: Sequence[tuple[np.ndarray, np.ndarray]],
    label: str = "",
    middle: Callable[[Sequence[float]], Interval | None] = bootstrap,
) -> Curve:
    """Middle of curves with a 95% bootstrap interval, where all of them have values; a single one as it is.

    Args:
        runs: (x <float>[n] ascending, y <float>[n]) of each, n may differ.
        middle: of values at one x; the mean.
    """
    if len(runs) == 1:
        x, y = runs[0]
        return Curve(label, x.tolist(), y.tolist())
    if not runs or (first := max(x[0] for x, _ in runs)) > (last := min(x[-1] for x, _ in runs)):
        return Curve(label, [], [])
    grid = np.linspace(first, last, GRID)
    values = np.array([np.interp(grid, x, y) for x, y in runs])
    return interval_curve([(at, middle(column)) for at, column in zip(grid.tolist(), values.T.tolist())], label)


def interval_curve(points: Sequence[tuple[float, Interval | None]], label: str = "", style: int | None = None) -> Curve:
    """A curve through (x, interval) pairs, without those that have none; a band where every interval has a spread."""
    known = [(x, interval) for x, interval in points if interval is not None]
    curve = Curve(label, [x for x, _ in known], [interval.mean for _, interval in known], style=style)
    bounds = [interval.bounds for _, interval in known if interval.bounds]
    if not known or len(bounds) < len(known):
        return curve
    return curve._replace(low=[low for low, _ in bounds], high=[high for _, high in bounds])


def over(
    groups: Sequence[AnyGroup],
    x: str,
    measure: Callable[[AnyGroup], Interval | None],
    label: str = "",
    style: int | None = None,
) -> Curve:
    """A measure of groups over one of their labels."""
    return interval_curve([(group[x], measure(group)) for group in groups], label, style)


def linear(curves: Sequence[Curve], falling: bool = False) -> list[Curve]:
    """For each curve of two points or more what it would be if its first y grew with x, or fell with it."""
    lines: list[Curve] = []
    for curve in (curve for curve in curves if len(curve.x) > 1):
        ratios = [x / curve.x[0] for x in curve.x]
        y = [curve.y[0] / ratio if falling else curve.y[0] * ratio for ratio in ratios]
        lines.append(Curve("" if lines else "linear", curve.x, y, reference=True))
    return lines


# panels ---------------------------------------------------------------------------------------------------------------


def learning_panel(
    title: str,
    y_label: str,
    groups: Sequence[AnyGroup],
    score: str,
    label: Callable[[AnyGroup], str],
    against: str = STEPS,
    *,
    style: Callable[[AnyGroup], int] | None = None,
    among: Sequence[Outcome] = (),
    hold: bool = False,
) -> Panel:
    """A curve for each group: a score, or something else that is measured, while it learns.

    Args:
        score, against, hold: see `score_curve`.
        style: of a group's curve (None: its place).
        among: runs whose longest one the unit of the x axis suits (none: those of the groups).
    """
    unit, x_label = unit_of(among or [run for group in groups for run in group.runs], against)
    curves = [score_curve(group.runs, score, against, unit, label(group), hold) for group in groups]
    if style is not None:
        curves = [curve._replace(style=style(group)) for curve, group in zip(curves, groups)]
    return Panel(title, x_label, y_label, curves)


def unit_of(outcomes: Sequence[Outcome], against: str) -> tuple[float, str]:
    """The unit of agent steps or of wall time that suits the longest run, and the text of the axis."""
    longest = max((r.get(against, 0) for outcome in outcomes for r in outcome.records), default=0)
    if against == UPDATES:
        return (1e3, "updates (thousands)") if longest >= 1e4 else (1.0, "updates")
    if against == STEPS:
        return (1e6, "agent steps (millions)") if longest >= 1e6 else (1e3, "agent steps (thousands)")
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


def plural(number: Any, what: str) -> str:
    """Such as 1 server, 2 servers; `what` is in the plural."""
    return f"{number} {what.removesuffix('s' * (number == 1))}"
