"""What `ddrl study epsilon` reports: score against time, heat maps, and the best epsilon of each batch."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from ddrl.config import TrainConfig
from ddrl.studies.curves import CAPTIONS, score_curve, spread_text, time_unit
from ddrl.studies.figures import COLOURS, Panel
from ddrl.studies.groups import grouped
from ddrl.studies.heat import HeatMap
from ddrl.studies.measures import Interval, bootstrap
from ddrl.studies.points import Outcome
from ddrl.studies.reached import given_seconds, reached_after, times_to
from ddrl.studies.sized import last_score
from ddrl.studies.statistics import TimeToScore, interquartile_mean, interval_of
from ddrl.studies.study import Report
from ddrl.studies.tables import Table, number

CELL = ("epsilon", "beta1", "beta2", "learning_rate")
"""Labels that tell the cells of one game and batch apart."""
CURVES = len(COLOURS)  # in a panel at most: more would look alike
SYMBOLS = {"epsilon": "ε", "beta1": "β1", "beta2": "β2", "learning_rate": "rate"}
PAPER = (
    "Adamski et al. 2018, section 2.4.3: a smaller epsilon helped at effective batches of 512 and more only, and made "
    "Pong slower"
)


@dataclasses.dataclass(frozen=True)
class Cell:
    """The repeats of one combination.

    Attributes:
        rates: label -> value of each of CELL.
        scores: at the end of each repeat, or when it was ended early; None where there was none.
        times: to the target score, where there is one.
    """

    game: str
    batch: int
    rates: dict[str, float]
    runs: Sequence[Outcome]
    scores: Sequence[float | None]
    times: TimeToScore | None

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
        score = bootstrap(self.scores)
        height = -score.mean if score else float("inf")
        if self.times is None or not self.times.reached:
            return (1.0, 0.0, height)
        return (self.times.missed / self.times.count, sum(self.times.reached) / len(self.times.reached), height)


def report(settings: Any, outcomes: Sequence[Outcome]) -> Report:
    """For each game a panel of curves for each batch, and heat maps of all cells."""
    cells = [_cell(settings, *item) for item in grouped(outcomes, "game", "batch", *CELL)]
    varied = [name for name in CELL if name == "epsilon" or len({cell.rates[name] for cell in cells}) > 1]
    cells.sort(key=lambda cell: (settings.games.index(cell.game), cell.batch, *(-cell.rates[name] for name in varied)))
    best = [(cell, others) for some in _by_batch(cells) for cell, others in [_best(some)]]
    target = settings.target_score
    caption = f"{CAPTIONS[settings.score_name]}; {spread_text(outcomes)}"
    tables = [
        Table(f"{settings.score.capitalize()} score by effective batch and epsilon", _columns(varied, target),
              [_row(cell, varied, target) for cell in cells]),
        Table("Best epsilon of each effective batch", (*_columns(varied, target), "not told apart from"),
              [[*_row(cell, varied, target), _alike(cell, others, varied)] for cell, others in best]),
    ]  # fmt: skip
    panels = list(_panels(settings, outcomes, cells, varied))
    columns = min(3, len(panels))
    return Report(
        "Adam's epsilon by effective batch",
        caption,
        tables,
        panels,
        columns,
        list(_notes(settings, cells, best, varied)),
        _runs(settings, cells),
    )


def _cell(settings: Any, labels: tuple[Any, ...], runs: Sequence[Outcome]) -> Cell:
    game, batch, *rates = labels
    early = any(run.result.get("stopped_early") for run in runs)
    times = None
    if settings.target_score is not None:
        # What was ended early had less than the budget.
        times = times_to(runs, settings.score_name, settings.target_score, 0.0 if early else settings.minutes)
    scores = [last_score(run, settings.score_name) for run in runs]
    return Cell(game, batch, dict(zip(CELL, rates)), runs, scores, times)


def _by_batch(cells: Sequence[Cell]) -> list[list[Cell]]:
    groups: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.game, cell.batch), []).append(cell)
    return list(groups.values())


def _best(cells: Sequence[Cell]) -> tuple[Cell, list[Cell]]:
    """The best cell, and the others."""
    best = min(cells, key=lambda cell: cell.rank)
    return best, [cell for cell in cells if cell is not best]


def _alike(best: Cell, others: Sequence[Cell], varied: Sequence[str]) -> str:
    """Those whose intervals overlap with the best one's; without repeats nothing can be told apart."""
    if not others:
        return "no other cell has finished"
    if len(best.runs) < 2:
        return "any (one run)"
    return "; ".join(_name(cell, varied) for cell in others if not _apart(best, cell)) or "none"


def _apart(best: Cell, other: Cell) -> bool:
    if len(other.runs) < 2:
        return False
    if best.times is not None and best.times.reached:
        if not best.times.missed and not other.times.reached:
            return True
        mine, theirs = best.times.mean(), other.times.mean()
    else:
        mine, theirs = bootstrap(best.scores), bootstrap(other.scores)
    if mine is None or theirs is None or mine.low is None or theirs.low is None:
        return False
    return mine.high < theirs.low or theirs.high < mine.low


def _name(cell: Cell, varied: Sequence[str]) -> str:
    return ", ".join(f"{SYMBOLS[name]} {cell.rates[name]:g}" for name in varied)


def _columns(varied: Sequence[str], target: float | None) -> tuple[str, ...]:
    timed = () if target is None else (f"time to {target:g}",)
    names = (name.replace("_", " ") for name in varied)
    return ("game", "effective batch", *names, "runs", "stopped early", *timed, "final score", "interquartile mean")


def _row(cell: Cell, varied: Sequence[str], target: float | None) -> list[Any]:
    timed = [] if target is None else [cell.time_text]
    rates = [f"{cell.rates[name]:g}" for name in varied]
    scores = [bootstrap(cell.scores), interval_of(interquartile_mean, cell.scores)]
    return [cell.game, cell.batch, *rates, len(cell.runs), cell.early, *timed, *scores]


def _panels(
    settings: Any, outcomes: Sequence[Outcome], cells: Sequence[Cell], varied: Sequence[str]
) -> Iterator[Panel]:
    unit, x_label = time_unit(outcomes)
    names = list(dict.fromkeys(_name(cell, varied) for cell in cells))
    for some in _by_batch(cells):
        shown = some if len(names) <= CURVES else sorted(some, key=lambda cell: cell.rank)[:CURVES]
        styles = names if shown is some else [_name(cell, varied) for cell in shown]
        curves = [
            score_curve(cell.runs, settings.score_name, "wall_seconds", unit, name)._replace(style=styles.index(name))
            for cell in shown
            for name in [_name(cell, varied)]
        ]
        title = f"{some[0].game}, effective batch {some[0].batch:,}"
        title += f", best {len(shown)} of {len(some)}" if len(shown) < len(some) else ""
        yield Panel(title, x_label, f"{settings.score} score", curves)
    for game in dict.fromkeys(cell.game for cell in cells):
        yield from _heat_panels(settings, game, [cell for cell in cells if cell.game == game], names, varied)


def _heat_panels(
    settings: Any, game: str, cells: Sequence[Cell], names: Sequence[str], varied: Sequence[str]
) -> Iterator[Panel]:
    """Of the time to the target where any run reached it, and of the final score where not all cells did."""
    reached = [cell for cell in cells if cell.times is not None and cell.times.reached]
    rows = "ε" if list(varied) == ["epsilon"] else "hyperparameters of Adam"
    if reached:
        label = f"time to {settings.score} score {settings.target_score:g} (min)"
        heat = _heat(cells, names, varied, label, _time_of, low_is_good=True)
        yield Panel(f"{game}: time to score {settings.target_score:g}", "effective batch", rows, (), heat=heat)
    if len(reached) < len(cells):
        heat = _heat(cells, names, varied, f"final {settings.score} score", _score_of)
        yield Panel(f"{game}: final score", "effective batch", rows, (), heat=heat)


def _heat(
    cells: Sequence[Cell], names: Sequence[str], varied: Sequence[str], label: str, what: Any, low_is_good: bool = False
) -> HeatMap:
    batches = sorted({cell.batch for cell in cells})
    found = {(_name(cell, varied), cell.batch): what(cell) for cell in cells}
    rows = [[found.get((name, batch), (None, "nothing\nfinished")) for batch in batches] for name in names]
    return HeatMap(
        [f"{batch:,}" for batch in batches],
        [_row_label(name) for name in names],
        [[value for value, _ in row] for row in rows],
        [[text for _, text in row] for row in rows],
        label,
        low_is_good,
    )


def _row_label(name: str) -> str:
    return name.removeprefix("ε ") if "," not in name else name.replace(", ", "\n")


def _time_of(cell: Cell) -> tuple[float | None, str]:
    """Minutes and text; where some missed, the mean with their limit, which the true one is above."""
    times = cell.times
    if not times.reached:
        return None, f"not reached\nin {times.limit / 60:.3g} min" + _early(cell)
    if times.missed:
        least = times.least_mean() / 60
        return least, f"≥ {number(least)}\n{times.missed} of {times.count} missed" + _early(cell)
    mean = times.mean()
    return mean.mean / 60, _spread_text(Interval(*(None if v is None else v / 60 for v in mean[:3])))


def _score_of(cell: Cell) -> tuple[float | None, str]:
    score = bootstrap(cell.scores)
    return (None, "no score" + _early(cell)) if score is None else (score.mean, _spread_text(score) + _early(cell))


def _early(cell: Cell) -> str:
    return f"\n{cell.early} stopped early" if cell.early else ""


def _spread_text(interval: Interval) -> str:
    if interval.low is None:
        return f"{number(interval.mean)}\none run"
    return f"{number(interval.mean)}\n[{number(interval.low)}, {number(interval.high)}]"


def _notes(
    settings: Any, cells: Sequence[Cell], best: Sequence[tuple[Cell, list[Cell]]], varied: Sequence[str]
) -> Iterator[str]:
    yield PAPER
    for cell, _ in best:
        yield f"best at {cell.batch:,} on {cell.game}: {options_of(settings, cell.runs[0].point.config)}"
    by_time = settings.target_score is not None
    yield (
        "best: most repeats that reached the target, then the least time, then the final score"
        if by_time
        else "best: the highest mean final score"
    ) + "; few repeats tell little apart"
    if early := sum(cell.early for cell in cells):
        yield (
            f"stopped early by the median rule: {early} of {sum(len(cell.runs) for cell in cells)} runs, after "
            f"{settings.stop_after:.0%} of the budget or later; their final score is the last one they had, and the curve "
            "of their cell ends there"
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
    target = settings.target_score
    results = ("seconds to score", "final score", "seconds given", "stopped early")
    columns = ("point", "game", "effective batch", *CELL, "seed", *results)
    rows = [
        [
            run.point.name,
            cell.game,
            cell.batch,
            *cell.rates.values(),
            run.point.config.run.seed,
            None if target is None else reached_after(run, settings.score_name, target),
            score,
            given_seconds(run),
            bool(run.result.get("stopped_early")),
        ]
        for cell in cells
        for run, score in zip(cell.runs, cell.scores)
    ]
    return Table("Runs", columns, rows)
