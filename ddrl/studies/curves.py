"""Curves that combine several seeds, with their mean and its interval, and panels of such curves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Sequence

import numpy as np

from ddrl.reporting.metrics import while_training
from ddrl.studies.figures import Curve, Panel
from ddrl.studies.measures import kind_of
from ddrl.studies.points import AnyGroup, Outcome
from ddrl.studies.statistics import ENOUGH, Interval, bootstrap_rows

GRID = 60
Runs = Sequence[tuple[np.ndarray, np.ndarray]]
"""(x <float>[n] ascending, y <float>[n]) of each run."""
STEPS, UPDATES, SECONDS = "agent_steps", "update", "wall_seconds"
"""What curves are drawn against: names of numbers in `train` records."""


# curves ---------------------------------------------------------------------------------------------------------------


def score_curves(
    outcomes: Sequence[Outcome],
    score: str,
    against: str,
    unit: float = 1.0,
    label: str = "",
    hold: bool = False,
    style: int | None = None,
    middle: Callable[[np.ndarray], list[Interval]] = bootstrap_rows,
) -> list[Curve]:
    """The scores, or another measured number, of runs that differ only in their seeds.

    ENOUGH runs have one curve with its interval, fewer a curve each up to its end, all in one style.

    Args:
        outcomes, score, against, unit: see `points_of`.
        hold: a run that ended early keeps its last score to the end of the longest; else the mean of several runs ends
            with the shortest.
        middle: see `curve_of`.
    """
    runs = points_of(outcomes, score, against, unit)
    if len(runs) < 2 or len(runs) >= ENOUGH:
        return [curve_of(_held(runs, hold), label, middle)._replace(style=style)]
    return [Curve(label, x.tolist(), y.tolist(), style=style) for x, y in runs]


def _held(runs: Runs, hold: bool) -> Runs:
    """The runs; with `hold`, each keeps its last score to the end of the longest."""
    if not hold or not runs:
        return runs
    last = max(x[-1] for x, _ in runs)
    return [(np.append(x, last), np.append(y, y[-1])) for x, y in runs]


def points_of(outcomes: Sequence[Outcome], score: str, against: str, unit: float = 1.0) -> Runs:
    """(x <float>[n] ascending, y <float>[n]) of each run that has a score.

    Args:
        score: EVALUATION, MAXIMUM, ONLINE, or another number in the `train` records.
        against: STEPS, UPDATES or SECONDS.
        unit: what x is divided by.
    """
    kind = kind_of(score)
    against = "version" if kind == "evaluation" and against == UPDATES else against
    runs = []
    for outcome in outcomes:
        records = outcome.records if kind == "evaluation" else while_training(outcome.records)
        scored = [r for r in records if r["kind"] == kind and score in r and against in r]
        records = [r for r in scored if not r.get("timed_out")]
        if records:
            runs.append((np.array([r[against] for r in records]) / unit, np.array([r[score] for r in records], float)))
    return runs


def curve_of(runs: Runs, label: str = "", middle: Callable[[np.ndarray], list[Interval]] = bootstrap_rows) -> Curve:
    """The mean of several runs, or another middle, over the range of x in which all of them have values.

    ENOUGH runs have a 95% bootstrap interval. The curve of a single run goes through its own points.

    Args:
        runs: (x <float>[n] ascending, y <float>[n]) of each; n may differ.
        middle: the middle of each row of <float>[points, runs], with its interval.
    """
    if len(runs) == 1:
        x, y = runs[0]
        return Curve(label, x.tolist(), y.tolist())
    if not runs or (first := max(x[0] for x, _ in runs)) > (last := min(x[-1] for x, _ in runs)):
        return Curve(label, [], [])
    grid = np.linspace(first, last, GRID)
    values = np.stack([np.interp(grid, x, y) for x, y in runs], axis=1)
    return interval_curve(list(zip(grid.tolist(), middle(values))), label)


def interval_curve(points: Sequence[tuple[float, Interval | None]], label: str = "", style: int | None = None) -> Curve:
    """A curve through the means of (x, interval) pairs; pairs without an interval are left out.

    It has a band if every interval has bounds. Intervals of few values have none; these values are shown as points.
    """
    known = [(x, interval) for x, interval in points if interval is not None]
    curve = Curve(label, [x for x, _ in known], [interval.mean for _, interval in known], style=style)
    curve = curve._replace(each=[(x, value) for x, interval in known for value in interval.values])
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
    """The curve of a measure of groups over the values of their label `x`."""
    return interval_curve([(group[x], measure(group)) for group in groups], label, style)


def linear(curves: Sequence[Curve], falling: bool = False) -> list[Curve]:
    """A reference line for each curve of two or more points: its first y, which grows in proportion to x or, with
    `falling`, in inverse proportion."""
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
    target: float | None = None,
) -> Panel:
    """A panel with the curve of each group: a score, or another measured number, during training.

    Args:
        score, against, hold: see `score_curves`.
        style: number of the style of a group's curve (None: the group's place).
        among: runs whose longest decides the unit of the x axis (none given: those of the groups).
        target: score at which a level line is drawn.
    """
    unit, x_label = unit_of(among or [run for group in groups for run in group.runs], against)
    curves: list[Curve] = []
    for place, group in enumerate(groups):
        look = place if style is None else style(group)
        curves += score_curves(group.runs, score, against, unit, label(group), hold, look)
    return Panel(title, x_label, y_label, [*curves, *level(curves, target)])


def level(curves: Sequence[Curve], target: float | None) -> list[Curve]:
    """The line of a target score, as long as the longest of `curves`; nothing without a target or a curve."""
    if target is None or not any(curve.x for curve in curves):
        return []
    ends = [0.0, float(max(x for curve in curves for x in curve.x))]
    return [Curve(f"target {target:,g}", ends, [target, target], reference=True)]


def unit_of(outcomes: Sequence[Outcome], against: str) -> tuple[float, str]:
    """The unit of agent steps, updates, or wall time that suits the longest run, and the label of the axis."""
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


def spread_text(outcomes: Sequence[Outcome], score: str = "") -> str:
    """The part of a caption that says how many seeds there are (runs with equal labels), and how they are shown.

    Args:
        score: what curves are drawn of, as for `points_of`; runs without it do not count, unless all lack it. Empty:
            all runs count.
    """
    shown = [outcome for outcome in outcomes if not score or points_of([outcome], score, SECONDS)] or outcomes
    counts = Counter(json.dumps(dict(outcome.point.labels), sort_keys=True) for outcome in shown).values()
    least, most = min(counts), max(counts)
    if most == 1:
        return "one seed, so the spread is unknown"
    many = f"mean and 95% bootstrap interval of {count_text([n for n in counts if n >= ENOUGH] or [0])} seeds"
    few = f"each of {count_text(counts)} seeds by itself, since fewer than {ENOUGH} say little about the spread"
    if most < ENOUGH:
        return few
    return many if least >= ENOUGH else f"{many}; where there are fewer than {ENOUGH}, each seed by itself"
