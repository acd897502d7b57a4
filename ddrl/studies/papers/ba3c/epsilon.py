"""Adam's epsilon by effective batch: section 2.4.3, figure 5."""

from __future__ import annotations

import dataclasses
import itertools
import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ddrl import checks
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.reporting.metrics import first_online, without_undone
from ddrl.studies import plan as plans
from ddrl.studies.curves import SECONDS, STEPS, learning_panel, spread_text
from ddrl.studies.figures import COLOURS, Panel
from ddrl.studies.findings import extremes
from ddrl.studies.heat import HeatMap
from ddrl.studies.measures import ONLINE, caption_of, count, final, last_score, middle, steps_to
from ddrl.studies.papers.ba3c.ending import Other, Over, Records, train_until
from ddrl.studies.papers.ba3c.median_rule import Rule, verdict
from ddrl.studies.papers.ba3c.scaling import evaluations, with_workers
from ddrl.studies.points import Group, Outcome, Point, grouped, parted
from ddrl.studies.settings import ScoredSettings, TargetSettings, base_config, from_json, target_of
from ddrl.studies.statistics import ENOUGH, Interval, TimeToScore, told_apart
from ddrl.studies.study import Labels, Report, Study
from ddrl.studies.tables import MIDDLE, Columns, number, table, text
from ddrl.studies.training import train_point
from ddrl.types import Machine

RATES = {"epsilon": "adam_epsilon", "beta1": "beta1", "beta2": "beta2", "learning_rate": "learning_rate"}
"""Field of the study's settings -> field of the optimizer's settings. The former are also the labels that distinguish
the cells of one game and batch."""
SYMBOLS = {"epsilon": "ε", "beta1": "β1", "beta2": "β2", "learning_rate": "rate"}
CURVES = len(COLOURS)  # in a panel at most: more would look alike
PAPER = (
    "Adamski et al. 2018, section 2.4.3: a smaller epsilon helped only at effective batches of 512 and more, and made "
    "Pong slower"
)


@dataclasses.dataclass(frozen=True)
class EpsilonSettings(TargetSettings, ScoredSettings):
    """BA3C with every pair of Adam's epsilon and effective batch, and other rates of Adam where they are given. Adamski
    et al. 2018: an epsilon of 1e-8 instead of 1e-3 helped from an effective batch of 512 on, and not in every game.
    Reports score against time, time to a score, and, for five repeats or more, the best epsilon of each batch, as
    options of `ddrl train`. The paper's figure 5 has online scores; evaluations take up to a tenth of the time."""

    epsilon: tuple[float, ...] = (1e-3, 1e-5, 1e-8)
    """Adam's epsilons."""
    batch_size: tuple[int, ...] = (128, 512, 2048)
    """Effective batches: data-points in one update, of all workers together."""
    beta1: tuple[float, ...] = ()
    """Adam's decays of the mean of gradients (none given: the preset's; the paper: 0.8)."""
    beta2: tuple[float, ...] = ()
    """Adam's decays of the mean of squared gradients (none given: the preset's; the paper: 0.75)."""
    learning_rate: tuple[float, ...] = ()
    """Learning rates (none given: the preset's)."""
    workers: int = 0
    """Workers of each run (0: the preset's)."""
    eval_every_steps: int = 50_000
    """Agent steps between evaluations."""
    stop_at_target: bool = False
    """End a run when it reaches --target-score. There is no final score then."""
    stop_hopeless: bool = False
    """End a run early when its best score is below the median of what runs of other cells with the same game and batch
    had on average by that time. It is marked, and stays in the report. When runs follow one another, only later ones
    can be ended."""
    stop_after: float = 0.3
    """Share of its budget that each run gets, hopeless or not."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least(self, 1, "eval_every_steps")
        checks.between(self, 0.0, 1.0, "stop_after", why="a share of the budget")
        if self.stop_at_target and self.target_score is None:
            checks.refuse(self, "stop_at_target", "there is no target; give --target-score")

    @property
    def rule(self) -> Rule:
        """The median rule by which a run is hopeless."""
        if self.minutes:
            return Rule(self.score_name, SECONDS, 60.0 * self.minutes * self.stop_after)
        return Rule(self.score_name, STEPS, self.agent_steps * self.stop_after)

    @property
    def given(self) -> dict[str, tuple[float, ...]]:
        """Those settings of Adam in RATES for which values are given, with these values."""
        return {name: chosen for name in RATES if (chosen := getattr(self, name))}

    def axes(self, machine: Machine) -> Iterator[Labels]:
        """Yields the points of each game seed by seed, so that a study that is half done has something to compare."""
        for game in self.games:
            preset = base_config(self, "ba3c", game, machine).optimizer
            rates = {name: self.given.get(name, (getattr(preset, field),)) for name, field in RATES.items()}
            for seed, batch, *chosen in itertools.product(self.seeds, self.batch_size, *rates.values()):
                yield {"game": game, "batch": batch, **dict(zip(rates, chosen)), "seed": seed}

    def point_name(self, labels: Labels) -> str:
        rates = [f"{name.replace('_', '')}{labels[name]:g}" for name in self.given]
        return f"{labels['game']}-batch{labels['batch']}-{'-'.join(rates)}-seed{labels['seed']}"

    def config(self, machine: Machine, labels: Labels) -> TrainConfig:
        config, batch = base_config(self, "ba3c", labels["game"], machine), labels["batch"]
        if config.optimizer.optimizer != "adam":
            raise UsageError("--train-options: this study is about Adam's epsilon; leave --optimizer out")
        workers = self.workers or config.exchange.workers
        if batch < workers or batch % workers:
            why = f"{workers} workers cannot divide it; give a multiple, or other --workers"
            raise UsageError(f"--batch-size {batch}: {why}")
        if workers == config.exchange.workers:
            config = config.changed(optimizer={"batch_size": batch // workers})
        else:
            config = with_workers(config, workers, 8, batch // workers)
        evaluated = self.score == "evaluation"
        target = target_of(self.target_score if evaluated and self.stop_at_target else None, stop=True)
        evaluation = {"evaluator": evaluated, "eval_epsilon": 0.0} | target | evaluations(self, config)
        rates = {field: labels[name] for name, field in RATES.items()}
        return config.changed(optimizer=rates, run=self.run, evaluation=evaluation)

    def report(self, outcomes: Sequence[Outcome]) -> Report:
        """A table of all cells, one of the best epsilons, and for each game curves of each batch and heat maps."""
        groups = grouped(outcomes, "game", "batch", *RATES)
        varied = [name for name in RATES if name == "epsilon" or len({group[name] for group in groups}) > 1]
        groups.sort(key=lambda group: (self.games.index(group["game"]), group["batch"], *(-group[n] for n in varied)))
        names = [", ".join(f"{SYMBOLS[name]} {group[name]:g}" for name in varied) for group in groups]
        cells = [Cell(group.labels, group.runs, self, name) for group, name in zip(groups, names)]
        best = [_best(alike) for alike in _by_batch(cells) if all(len(cell.runs) >= ENOUGH for cell in alike)]
        what = f"{self.score.capitalize()} score"
        if self.stop_at_target:
            what = f"Time to {what.lower()} {self.target_score:g}"
        columns = _columns(varied, self)
        compared = {**columns, "not told apart from": _alike}
        panels = list(self._panels(outcomes, cells, varied))
        return Report(
            heading="Adam's epsilon by effective batch",
            caption=f"{caption_of(self.score_name, outcomes)}; {spread_text(outcomes)}",
            finding=self._finding(cells),
            tables=[
                table(f"{what} by effective batch and epsilon", cells, columns),
                *([table("Best epsilon of each effective batch", best, compared)] if best else []),
            ],
            panels=panels,
            columns=min(3, len(panels)),
            notes=list(self._notes(cells, best)),
        )

    def _finding(self, cells: Sequence[Cell]) -> str:
        """In which cells the final score, or the time to the target, is lowest and highest, in a sentence."""
        what, measure = f"final {self.score} score", final(self.score_name)
        if self.stop_at_target:
            what, measure = f"time to {self.target_score:g} in minutes", self.minutes_to_target
        return extremes(cells, measure, what, lambda cell: (
            f"{cell.name} with an effective batch of {cell['batch']:,}"
            + (f" on {cell['game']}" if len(self.games) > 1 else "")
        ))  # fmt: skip

    def _panels(self, outcomes: Sequence[Outcome], cells: Sequence[Cell], varied: Sequence[str]) -> Iterator[Panel]:
        names = list(dict.fromkeys(cell.name for cell in cells))
        for alike in _by_batch(cells):
            few = len(names) <= CURVES
            shown = alike if few else sorted(alike, key=lambda cell: cell.rank)[:CURVES]
            styles = names if few else [cell.name for cell in shown]
            title = f"{alike[0]['game']}, effective batch {alike[0]['batch']:,}"
            title += f", the first {len(shown)} of {len(alike)}" if len(shown) < len(alike) else ""
            yield learning_panel(
                title, f"{self.score} score", shown, self.score_name, lambda cell: cell.name, SECONDS,
                style=lambda cell: styles.index(cell.name), among=outcomes, hold=self.stop_at_target,
            )  # fmt: skip
        for of_game in parted(cells, "game"):
            for title, heat in self._heat_maps(of_game, names):
                rows = "ε" if len(varied) == 1 else "hyperparameters of Adam"
                yield Panel(f"{of_game[0]['game']}: {title}", "effective batch", rows, (), heat=heat)

    def _heat_maps(self, cells: Sequence[Cell], names: Sequence[str]) -> Iterator[tuple[str, HeatMap]]:
        """Yields heat maps with their titles: of the time to the target if any run reached it, and of the final score
        unless a run of every cell did, or runs end at the target."""
        reached, target = [cell for cell in cells if cell.times is not None and cell.times.reached], self.target_score
        if reached:
            label = f"time to {self.score} score {target:g} (min)"
            yield f"time to score {target:g}", _heat(cells, names, label, _time_of, low_is_good=True)
        if len(reached) < len(cells) and not self.stop_at_target:
            yield "final score", _heat(cells, names, f"final {self.score} score", _score_of)

    def _notes(self, cells: Sequence[Cell], best: Sequence[Cell]) -> Iterator[str]:
        yield PAPER
        for cell in best:
            yield f"best at {cell['batch']:,} on {cell['game']}: {self.options_of(cell.config)}"
        if self.stop_at_target:
            yield "runs end at the target; in the curves, they keep their last score"
        best_is = "the most repeats that reached the target, then the shortest time, then the final score"
        if self.target_score is None:
            best_is = "the highest mean final score"
        if best:
            yield f"best: {best_is}"
        if len(best) < len(_by_batch(cells)):
            yield f"no epsilon is called the best for a batch where a cell has fewer than {ENOUGH} repeats"
        if early := sum(cell.early for cell in cells):
            yield (
                f"stopped early by the median rule: {early} of {sum(len(cell.runs) for cell in cells)} runs, after "
                f"{self.stop_after:.0%} of the budget or later; their final score is the last that they had, and the "
                "curve of their cell ends there"
            )

    def options_of(self, config: TrainConfig) -> str:
        """The command that trains with the settings of a point, for as long as the preset says."""
        optimizer, exchange = config.optimizer, config.exchange
        options: dict[str, Any] = {
            "preset": self.preset, "game": config.environment.game, "workers": exchange.workers,
            "parameter-servers": exchange.servers, "batch-size": optimizer.batch_size,
        }  # fmt: skip
        options |= {field.replace("_", "-"): getattr(optimizer, field) for field in RATES.values()}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        return shlex.join(["ddrl", "train", "ba3c", *shlex.split(self.train_options), *words])


def run_cell(point: Point, path: Path) -> None:
    """Trains a point; with --stop-at-target or --stop-hopeless, it ends when the run has arrived or is hopeless.

    Raises:
        UsageError, RuntimeError: see train_point.
    """
    plan = plans.load(path.parent.parent, EPSILON.name)
    settings = None if plan is None else from_json(EpsilonSettings, plan.settings)
    if plan is None or settings is None or not (settings.stop_at_target or settings.stop_hopeless):
        train_point(point, path)
        return
    others = [plan.path(other) for other in plan.points if settings.stop_hopeless and _compared(other, point)]
    train_until(lambda: train_point(point, path), path, others, over(settings))


def over(settings: EpsilonSettings) -> Over:
    """When a run of the study is over before its budget is spent: at the target, or when it is hopeless."""

    def why(ours: Records, others: Sequence[Other]) -> dict[str, Any] | None:
        target = settings.target_score if settings.stop_at_target else None
        if target is not None and settings.score_name == ONLINE:  # at an evaluation's target, runs end by themselves
            known = [r for r in without_undone([dict(record) for record in ours]) if r["kind"] == "train"]
            if first_online(known, target) is not None:
                return {"message": f"ended at the target score, {target:g}"}
        return verdict(settings.rule, ours, others) if settings.stop_hopeless else None

    return why


def _compared(other: Point, point: Point) -> bool:
    """Whether `other` belongs to another cell than `point`, with the same game and batch."""
    differing = {name for name, value in point.labels.items() if other.labels[name] != value}
    return bool(differing) and differing <= RATES.keys()


@dataclasses.dataclass(frozen=True)
class Cell(Group):
    """The repeats of one combination of game, batch and settings of Adam.

    Attributes:
        name: the values of the settings of Adam that were varied.
        others: the other cells of the same game and batch, if this is the best of them; else empty.
    """

    settings: EpsilonSettings
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
        """A rank that is smaller for a better cell: share of the runs that missed the target, then mean time to it,
        then the negative final score."""
        score, times = self.score, self.times
        height = -score.mean if score else math.inf
        if times is None or not times.reached:
            return (1.0, 0.0, height)
        return (times.missed / times.count, sum(times.reached) / len(times.reached), height)

    def is_apart_from(self, other: Cell) -> bool:
        """Whether this cell is told apart from a worse one: by times to the target if it has some, else by final
        scores."""
        ours, theirs = self.times, other.times
        if ours is None or theirs is None or not ours.reached:
            return told_apart(self.score, other.score)
        return (not ours.missed and not theirs.reached) or told_apart(ours.mean(), theirs.mean())


def _by_batch(cells: Sequence[Cell]) -> list[list[Cell]]:
    return parted(cells, "game", "batch")


def _best(cells: Sequence[Cell]) -> Cell:
    best = min(cells, key=lambda cell: cell.rank)
    return dataclasses.replace(best, others=[cell for cell in cells if cell is not best])


def _alike(best: Cell) -> str:
    """The names of the cells that are not told apart from the best one."""
    if not best.others:
        return "no other cell has finished"
    return "; ".join(cell.name for cell in best.others if not best.is_apart_from(cell)) or "none"


def _columns(varied: Sequence[str], settings: EpsilonSettings) -> Columns:
    timed: Columns = {}
    last: Columns = {} if settings.stop_at_target else {
        "final score": lambda cell: cell.score,
        MIDDLE: lambda cell: middle(lambda run: last_score(run, cell.settings.score_name))(cell),
    }  # fmt: skip
    if (target := settings.target_score) is not None:
        timed = {
            f"time to {target:g}": lambda cell: cell.time_text,
            "agent steps to it": lambda cell: steps_to(cell.runs, cell.settings.score_name, target),
        }
    return {
        "game": "game", "effective batch": "batch",
        **{name.replace("_", " "): lambda cell, name=name: f"{cell[name]:g}" for name in varied},
        "runs": count, "stopped early": lambda cell: cell.early, **timed, **last,
    }  # fmt: skip


Shown = tuple[float | None, str]
"""The value of a cell and its text."""


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


def _time_of(cell: Cell) -> Shown:
    """Mean minutes to the target; if some runs missed it, a lower bound, for which they count with their limit."""
    times, early = cell.times, f"\n{cell.early} stopped early" if cell.early else ""
    if times is None or not times.reached:
        return None, f"not reached\nin {times.limit / 60:.3g} min{early}" if times else ""
    if (mean := times.mean()) is None:
        least = times.least_mean() / 60
        return least, f"≥ {number(least)}\n{times.missed} of {times.count} missed{early}"
    return _shown(mean.map(lambda seconds: seconds / 60))


def _score_of(cell: Cell) -> Shown:
    value, words = _shown(score) if (score := cell.score) else (None, "no score")
    return value, words + (f"\n{cell.early} stopped early" if cell.early else "")


def _shown(interval: Interval) -> Shown:
    words = text(interval).replace(" [", "\n[")
    return interval.mean, words if interval.count > 1 else f"{words}\none run"


EPSILON = Study(
    name="epsilon",
    about="Adam's epsilon (and betas, learning rate) by effective batch (Adamski et al. 2018, section 2.4.3)",
    defaults=EpsilonSettings(minutes=10.0, repeats=3, score="online"),
    quick_changes={
        "epsilon": (1e-3, 1e-8), "batch_size": (64, 256), "minutes": 0.15, "repeats": 2, "target_score": 0.0
    },
    point_name=EpsilonSettings.point_name,
    run=run_cell,
)  # fmt: skip
