"""What `ddrl study epsilon` reports: score against time, heat maps, and the best epsilon of each batch."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ddrl.config import TrainConfig
from ddrl.studies.curves import SECONDS, learning_panel, spread_text
from ddrl.studies.figures import COLOURS, Panel
from ddrl.studies.heat import HeatMap
from ddrl.studies.measures import CAPTIONS, count, final, given_seconds, last_score, middle, reached_after, times_to
from ddrl.studies.points import Group, Outcome, grouped
from ddrl.studies.statistics import Interval, TimeToScore
from ddrl.studies.study import Report
from ddrl.studies.tables import Columns, Table, number, table

CELL = ("epsilon", "beta1", "beta2", "learning_rate")
"""Labels that tell the cells of one game and batch apart."""
CURVES = len(COLOURS)  # in a panel at most: more would look alike
SYMBOLS = {"epsilon": "ε", "beta1": "β1", "beta2": "β2", "learning_rate": "rate"}
PAPER = (
    "Adamski et al. 2018, section 2.4.3: a smaller epsilon helped at effective batches of 512 and more only, and made "
    "Pong slower"
)


@dataclasses.dataclass(frozen=True)
class Cell(Group):
    """The repeats of one combination.

    Attributes:
        score_name: ONLINE or EVALUATION.
        times: to the target score, where there is one.
        name: its values of what was varied.
        others: cells of the same game and batch, beside the best one of them.
    """

    score_name: str
    times: TimeToScore | None
    name: str
    others: Sequence[Cell] = ()

    @property
    def score(self) -> Interval | None:
        """At the end of its runs, or when they were ended early."""
        return final(self.score_name)(self)

    @property
    def early(self) -> int:
        """Repeats that were ended early."""
        return sum(bool(run.result.get("stopped_early")) for run in self.runs)

    @property
    def time_text(self) -> str | None:
        """Time to the target; how many were ended early is said."""
        if self.times is None:
            return None
        return self.times.text() + (f" ({self.early} stopped early)" if self.early and self.times.missed else "")

    @property
    def rank(self) -> tuple[float, float, float]:
        """The smaller, the better: few that missed the target, little time, a high final score."""
        score = self.score
        height = -score.mean if score else float("inf")
        if self.times is None or not self.times.reached:
            return (1.0, 0.0, height)
        return (self.times.missed / self.times.count, sum(self.times.reached) / len(self.times.reached), height)


def report(settings: Any, outcomes: Sequence[Outcome]) -> Report:
    """For each game a panel of curves for each batch, and heat maps of all cells."""
    groups = grouped(outcomes, "game", "batch", *CELL)
    varied = [name for name in CELL if name == "epsilon" or len({group[name] for group in groups}) > 1]
    groups.sort(key=lambda group: (settings.games.index(group["game"]), group["batch"], *(-group[n] for n in varied)))
    cells = [_cell(settings, group, varied) for group in groups]
    best = [_best(alike) for alike in _by_batch(cells)]
    columns = _columns(varied, settings.target_score)
    panels = list(_panels(settings, outcomes, cells, varied))
    return Report(
        heading="Adam's epsilon by effective batch",
        caption=f"{CAPTIONS[settings.score_name]}; {spread_text(outcomes)}",
        tables=[
            table(f"{settings.score.capitalize()} score by effective batch and epsilon", cells, columns),
            table("Best epsilon of each effective batch", best, {**columns, "not told apart from": _alike}),
        ],
        panels=panels,
        columns=min(3, len(panels)),
        notes=list(_notes(settings, cells, best)),
        runs=_runs(settings, cells),
    )


def _cell(settings: Any, group: Group, varied: Sequence[str]) -> Cell:
    score, times = settings.score_name, None
    if settings.target_score is not None:
        # What was ended early had less than the budget.
        early = any(run.result.get("stopped_early") for run in group.runs)
        times = times_to(group.runs, score, settings.target_score, 0.0 if early else settings.minutes)
    name = ", ".join(f"{SYMBOLS[name]} {group[name]:g}" for name in varied)
    return Cell(group.labels, group.runs, score, times, name)


def _by_batch(cells: Sequence[Cell]) -> list[list[Cell]]:
    groups: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell["game"], cell["batch"]), []).append(cell)
    return list(groups.values())


def _best(cells: Sequence[Cell]) -> Cell:
    best = min(cells, key=lambda cell: cell.rank)
    return dataclasses.replace(best, others=[cell for cell in cells if cell is not best])


def _alike(best: Cell) -> str:
    """Those whose intervals overlap with the best one's; without repeats nothing can be told apart."""
    if not best.others:
        return "no other cell has finished"
    if len(best.runs) < 2:
        return "any (one run)"
    return "; ".join(cell.name for cell in best.others if not _apart(best, cell)) or "none"


def _apart(best: Cell, other: Cell) -> bool:
    if len(other.runs) < 2:
        return False
    if best.times is not None and other.times is not None and best.times.reached:
        if not best.times.missed and not other.times.reached:
            return True
        ours, theirs = best.times.mean(), other.times.mean()
    else:
        ours, theirs = best.score, other.score
    if (
        ours is None
        or theirs is None
        or ours.low is None
        or ours.high is None
        or theirs.low is None
        or theirs.high is None
    ):
        return False
    return ours.high < theirs.low or theirs.high < ours.low


def _columns(varied: Sequence[str], target: float | None) -> Columns:
    timed: Columns = {} if target is None else {f"time to {target:g}": lambda cell: cell.time_text}
    return {
        "game": "game",
        "effective batch": "batch",
        **{name.replace("_", " "): lambda cell, name=name: f"{cell[name]:g}" for name in varied},
        "runs": count,
        "stopped early": lambda cell: cell.early,
        **timed,
        "final score": lambda cell: cell.score,
        "interquartile mean": lambda cell: middle(lambda run: last_score(run, cell.score_name))(cell),
    }


def _panels(
    settings: Any, outcomes: Sequence[Outcome], cells: Sequence[Cell], varied: Sequence[str]
) -> Iterator[Panel]:
    names = list(dict.fromkeys(cell.name for cell in cells))
    for alike in _by_batch(cells):
        shown = alike if len(names) <= CURVES else sorted(alike, key=lambda cell: cell.rank)[:CURVES]
        styles = names if shown is alike else [cell.name for cell in shown]
        title = f"{alike[0]['game']}, effective batch {alike[0]['batch']:,}"
        title += f", best {len(shown)} of {len(alike)}" if len(shown) < len(alike) else ""
        yield learning_panel(
            title, f"{settings.score} score", shown, settings.score_name, lambda cell: cell.name, SECONDS,
            style=_place_in(styles), among=outcomes,
        )  # fmt: skip
    rows = "ε" if list(varied) == ["epsilon"] else "hyperparameters of Adam"
    for game in dict.fromkeys(cell["game"] for cell in cells):
        for title, heat in _heat_maps(settings, [cell for cell in cells if cell["game"] == game], names):
            yield Panel(f"{game}: {title}", "effective batch", rows, (), heat=heat)


def _place_in(names: Sequence[str]) -> Callable[[Cell], int]:
    return lambda cell: names.index(cell.name)


def _heat_maps(settings: Any, cells: Sequence[Cell], names: Sequence[str]) -> Iterator[tuple[str, HeatMap]]:
    """Of the time to the target where any run reached it, and of the final score where not all cells did."""
    reached, target = [cell for cell in cells if cell.times is not None and cell.times.reached], settings.target_score
    if reached:
        label = f"time to {settings.score} score {target:g} (min)"
        yield f"time to score {target:g}", _heat(cells, names, label, _time_of, low_is_good=True)
    if len(reached) < len(cells):
        yield "final score", _heat(cells, names, f"final {settings.score} score", _score_of)


def _heat(
    cells: Sequence[Cell],
    names: Sequence[str],
    label: str,
    value_of: Callable[[Cell], tuple[float | None, str]],
    low_is_good: bool = False,
) -> HeatMap:
    batches = sorted({cell["batch"] for cell in cells})
    known = {(cell.name, cell["batch"]): value_of(cell) for cell in cells}
    rows = [[known.get((name, batch), (None, "nothing\nfinished")) for batch in batches] for name in names]
    return HeatMap(
        [f"{batch:,}" for batch in batches],
        [name.removeprefix("ε ") if "," not in name else name.replace(", ", "\n") for name in names],
        [[value for value, _ in row] for row in rows],
        [[text for _, text in row] for row in rows],
        label,
        low_is_good,
    )


def _time_of(cell: Cell) -> tuple[float | None, str]:
    """Minutes and text; where some missed, the mean with their limit, which the true one is above."""
    times = cell.times
    if times is None or not times.reached:
        return None, f"not reached\nin {times.limit / 60:.3g} min{_early(cell)}" if times else ""
    mean = times.mean()
    if mean is None:
        least = times.least_mean() / 60
        return least, f"≥ {number(least)}\n{times.missed} of {times.count} missed{_early(cell)}"
    minutes = mean.map(lambda seconds: seconds / 60)
    return minutes.mean, _spread_text(minutes)


def _score_of(cell: Cell) -> tuple[float | None, str]:
    score = cell.score
    return (None, f"no score{_early(cell)}") if score is None else (score.mean, _spread_text(score) + _early(cell))


def _early(cell: Cell) -> str:
    return f"\n{cell.early} stopped early" if cell.early else ""


def _spread_text(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return f"{number(interval.mean)}\none run"
    return f"{number(interval.mean)}\n[{number(interval.low)}, {number(interval.high)}]"


def _notes(settings: Any, cells: Sequence[Cell], best: Sequence[Cell]) -> Iterator[str]:
    yield PAPER
    for cell in best:
        yield f"best at {cell['batch']:,} on {cell['game']}: {options_of(settings, cell.config)}"
    best_is = "most repeats that reached the target, then the least time, then the final score"
    if settings.target_score is None:
        best_is = "the highest mean final score"
    yield f"best: {best_is}; few repeats tell little apart"
    if early := sum(cell.early for cell in cells):
        yield (
            f"stopped early by the median rule: {early} of {sum(len(cell.runs) for cell in cells)} runs, after "
            f"{settings.stop_after:.0%} of the budget or later; their final score is the last one they had, and the "
            "curve of their cell ends there"
        )


def options_of(settings: Any, config: TrainConfig) -> str:
    """The command that trains with the settings of a point, for as long as the preset says."""
    optimizer, exchange = config.optimizer, config.exchange
    options = {
        "preset": settings.preset, "game": config.environment.game, "workers": exchange.workers,
        "parameter-servers": exchange.servers, "batch-size": optimizer.batch_size,
        "adam-epsilon": optimizer.adam_epsilon, "beta1": optimizer.beta1, "beta2": optimizer.beta2,
        "learning-rate": optimizer.learning_rate,
    }  # fmt: skip
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return shlex.join(["ddrl", "train", "ba3c", *shlex.split(settings.train_options), *words])


def _runs(settings: Any, cells: Sequence[Cell]) -> Table:
    """Every finished run by itself."""
    score, target = settings.score_name, settings.target_score
    results = ("seconds to score", "final score", "seconds given", "stopped early")
    rows = [
        [
            run.point.name, cell["game"], cell["batch"], *(cell[name] for name in CELL), run.point.config.run.seed,
            None if target is None else reached_after(run, score, target), last_score(run, score), given_seconds(run),
            bool(run.result.get("stopped_early")),
        ]
        for cell in cells
        for run in cell.runs
    ]  # fmt: skip
    return Table("Runs", ("point", "game", "effective batch", *CELL, "seed", *results), rows)
