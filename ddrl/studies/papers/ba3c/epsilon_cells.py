"""The cells of the study in `epsilon`: their rank, their rows in its tables, and their heat maps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ddrl.reporting.texts import number
from ddrl.studies.curves import STEPS, unit_of
from ddrl.studies.heat import HeatMap
from ddrl.studies.measures import count, final, last_score, middle, steps_taken_to, steps_to
from ddrl.studies.points import Group, parted
from ddrl.studies.settings import TargetSettings
from ddrl.studies.statistics import Interval, TimeToScore, told_apart
from ddrl.studies.tables import MIDDLE, Columns, text


class Unit(NamedTuple):
    """In what a study counts what a score takes: the unit of its budget.

    Attributes:
        size: seconds, or agent steps, in one unit.
        one: the unit, behind a number.
        many: the unit, in a sentence or on an axis.
        what: what is counted.
    """

    size: float
    one: str
    many: str
    what: str


def unit_among(cells: Sequence[Cell]) -> Unit:
    """Minutes if the runs of the cells have a budget of minutes, else millions or thousands of agent steps."""
    if cells[0].settings.minutes:
        return Unit(60.0, "min", "minutes", "time")
    size, _ = unit_of([run for cell in cells for run in cell.runs], STEPS)
    one = "million" if size == 1e6 else "thousand"
    return Unit(size, one, f"{one}s", "agent steps")


@dataclasses.dataclass(frozen=True)
class Cell(Group):
    """The repeats of one combination of game, batch and settings of Adam.

    Attributes:
        name: the values of the settings of Adam that were varied.
        others: the other cells of the same game and batch, if this is the best of them; else empty.
    """

    settings: TargetSettings
    name: str
    others: Sequence[Cell] = ()

    @property
    def score(self) -> Interval | None:
        """Mean score at the end of its runs, or when they were ended early."""
        return final(self.settings.score_name)(self)

    @property
    def times(self) -> TimeToScore | None:
        """When its runs reached the target score; None without a target."""
        return self.settings.times(self)

    @property
    def costs(self) -> TimeToScore | None:
        """What its runs took to the target, in what their budget is in: seconds, or agent steps; None without a
        target."""
        if self.settings.minutes or self.settings.target_score is None:
            return self.times
        return steps_taken_to(self.runs, self.settings.score_name, self.settings.target_score)

    def mean_cost(self, unit: Unit) -> Interval | None:
        """Mean of what the target took; None if a run missed it, or without a target."""
        costs = self.costs
        mean = costs and costs.mean()
        return mean and mean.map(lambda cost: cost / unit.size)

    @property
    def early(self) -> int:
        """Repeats that were ended early."""
        return sum(bool(run.result.get("stopped_early")) for run in self.runs)

    @property
    def time_text(self) -> str | None:
        """Time to the target as a text, with the number of runs that were ended early; None without a target."""
        if (times := self.times) is None:
            return None
        return times.text() + (f" ({self.early} stopped early)" if self.early and times.missed else "")

    @property
    def rank(self) -> tuple[float, float, float]:
        """A rank that is smaller for a better cell: share of the runs that missed the target, then the mean of what the
        others took, then the negative final score."""
        score, costs = self.score, self.costs
        height = -score.mean if score else math.inf
        if costs is None or not costs.reached:
            return (1.0, 0.0, height)
        return (costs.missed / costs.count, sum(costs.reached) / len(costs.reached), height)

    def is_apart_from(self, other: Cell) -> bool:
        """Whether this cell is told apart from a worse one: by what the target took if a run reached it, else by final
        scores."""
        ours, theirs = self.costs, other.costs
        if ours is None or theirs is None or not ours.reached:
            return told_apart(self.score, other.score)
        return (not ours.missed and not theirs.reached) or told_apart(ours.mean(), theirs.mean())


def by_batch(cells: Sequence[Cell]) -> list[list[Cell]]:
    """The cells of each game and batch."""
    return parted(cells, "game", "batch")


def best_of(cells: Sequence[Cell]) -> Cell:
    """The best of the cells, with the others."""
    best = min(cells, key=lambda cell: cell.rank)
    return dataclasses.replace(best, others=[cell for cell in cells if cell is not best])


def alike(best: Cell) -> str:
    """The names of the cells that are not told apart from the best one."""
    if not best.others:
        return "no other cell has finished"
    return "; ".join(cell.name for cell in best.others if not best.is_apart_from(cell)) or "none"


def columns_of(varied: Iterable[str], target: float | None, whole: bool) -> Columns:
    """The columns of a table of cells.

    Args:
        varied: names of the settings of Adam that were varied.
        target: score whose time is measured (None: none).
        whole: whether runs go on to the end of their budget, so that they have final scores.
    """
    timed: Columns = {}
    last: Columns = {
        "final score": lambda cell: cell.score,
        MIDDLE: lambda cell: middle(last_score(cell.settings.score_name))(cell),
    }
    if target is not None:
        timed = {
            f"time to {target:g}": lambda cell: cell.time_text,
            "agent steps to it": lambda cell: steps_to(cell.runs, cell.settings.score_name, target),
        }
    return {
        "game": "game", "effective batch": "batch",
        **{name.replace("_", " "): lambda cell, name=name: f"{cell[name]:g}" for name in varied},
        "runs": count, "stopped early": lambda cell: cell.early, **timed, **(last if whole else {}),
    }  # fmt: skip


Shown = tuple[float | None, str]
"""The value of a cell and its text."""


def heat_of_costs(cells: Sequence[Cell], names: Sequence[str], score: str) -> HeatMap:
    """The heat map of what the target took.

    Args:
        names: names of the cells, one for each row.
        score: the target score, in words.
    """
    unit = unit_among(cells)
    label = f"{unit.what} to {score} ({unit.many})"
    return _heat(cells, names, label, lambda cell: _cost_of(cell, unit), low_is_good=True)


def heat_of_scores(cells: Sequence[Cell], names: Sequence[str], score: str) -> HeatMap:
    """The heat map of final scores; its arguments are those of `heat_of_costs`."""
    return _heat(cells, names, score, _score_of)


def _heat(
    cells: Sequence[Cell], names: Sequence[str], label: str, shown: Callable[[Cell], Shown], low_is_good: bool = False
) -> HeatMap:
    batches = sorted({cell["batch"] for cell in cells})
    known = {(cell.name, cell["batch"]): shown(cell) for cell in cells}
    rows = [[known.get((name, batch), (None, "nothing\nfinished")) for batch in batches] for name in names]
    return HeatMap(
        [f"{batch:,}" for batch in batches],
        [name.removeprefix("ε ") if "," not in name else name.replace(", ", "\n") for name in names],
        [[value for value, _ in row] for row in rows],
        [[words for _, words in row] for row in rows],
        label,
        low_is_good,
    )


def _cost_of(cell: Cell, unit: Unit) -> Shown:
    """Mean of what the target took; if some runs missed it, a lower bound, for which they count with their limit."""
    costs, early = cell.costs, f"\n{cell.early} stopped early" if cell.early else ""
    if costs is None or not costs.reached:
        return None, f"not reached\nin {number(costs.limit / unit.size)} {unit.one}{early}" if costs else ""
    if (mean := cell.mean_cost(unit)) is None:
        least = costs.least_mean() / unit.size
        return least, f"≥ {number(least)}\n{costs.missed} of {costs.count} missed{early}"
    return _shown(mean)


def _score_of(cell: Cell) -> Shown:
    value, words = _shown(score) if (score := cell.score) else (None, "no score")
    return value, words + (f"\n{cell.early} stopped early" if cell.early else "")


def _shown(interval: Interval) -> Shown:
    words = text(interval).replace(" [", "\n[")
    return interval.mean, words if interval.count > 1 else f"{words}\none run"
