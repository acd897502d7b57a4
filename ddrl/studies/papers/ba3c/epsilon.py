"""Adam's epsilon by effective batch: section 2.4.3, figure 5."""

from __future__ import annotations

import dataclasses
import itertools
import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ddrl import checks
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.reporting.metrics import first_online, without_undone
from ddrl.studies import plan as plans
from ddrl.studies.curves import SECONDS, STEPS, learning_panel, spread_text
from ddrl.studies.figures import COLORS, Panel
from ddrl.studies.findings import extremes, reached, sentences
from ddrl.studies.heat import HeatMap
from ddrl.studies.measures import ONLINE, Records, caption_of
from ddrl.studies.papers.ba3c.ending import Other, Over, train_until
from ddrl.studies.papers.ba3c.epsilon_cells import (
    Cell,
    alike,
    best_of,
    by_batch,
    columns_of,
    heat_of_costs,
    heat_of_scores,
    unit_among,
)  # fmt: skip
from ddrl.studies.papers.ba3c.median_rule import Rule, verdict
from ddrl.studies.papers.ba3c.scaling import evaluations, with_workers
from ddrl.studies.points import Outcome, Point, grouped, parted
from ddrl.studies.settings import ScoredSettings, TargetSettings, base_config, from_json
from ddrl.studies.statistics import ENOUGH
from ddrl.studies.study import Labels, Report, Study
from ddrl.studies.tables import table
from ddrl.studies.training import train_point
from ddrl.types import Machine

RATES = {"epsilon": "adam_epsilon", "beta1": "beta1", "beta2": "beta2", "learning_rate": "learning_rate"}
"""Field of the study's settings -> field of the optimizer's settings. The former are also the labels that distinguish
the cells of one game and batch."""
SYMBOLS = {"epsilon": "ε", "beta1": "β1", "beta2": "β2", "learning_rate": "rate"}
CURVES = len(COLORS)  # in a panel at most: more would look alike
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
    had on average by that time, where those that have ended keep their last score. It is marked, and stays in the
    report. When runs follow one another, only later ones can be ended."""
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

    @property
    def runs_of_batch(self) -> int:
        """The number of runs of each game and batch."""
        return self.repeats * math.prod(len(chosen) for chosen in self.given.values())

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
            raise UsageError(f"--batch-size {batch}: must be a multiple of the number of workers, {workers}")
        if workers == config.exchange.workers:
            config = config.changed(optimizer={"batch_size": batch // workers})
        else:
            config = with_workers(config, workers, 8, batch // workers)
        evaluation = {"eval_epsilon": 0.0} | evaluations(self, config) | self.evaluated(self.stop_at_target)
        rates = {field: labels[name] for name, field in RATES.items()}
        return config.changed(optimizer=rates, run=self.run, evaluation=evaluation)

    def report(self, outcomes: Sequence[Outcome]) -> Report:
        """A table of all cells, one of the best epsilons, and for each game curves of each batch and heat maps."""
        groups = grouped(outcomes, "game", "batch", *RATES)
        varied = [name for name in RATES if name == "epsilon" or len({group[name] for group in groups}) > 1]
        groups.sort(key=lambda group: (self.games.index(group["game"]), group["batch"], *(-group[n] for n in varied)))
        names = [", ".join(f"{SYMBOLS[name]} {group[name]:g}" for name in varied) for group in groups]
        cells = [Cell(group.labels, group.runs, self, name) for group, name in zip(groups, names)]
        best = [best_of(those) for those in by_batch(cells) if self._is_whole(those)]
        what = f"{self.score.capitalize()} score"
        if self.stop_at_target:
            what = f"Time to {what.lower()} {self.target_score:g}"
        columns = columns_of(varied, self.target_score, whole=not self.stop_at_target)
        compared = {**columns, "not told apart from": alike}
        panels = list(self._panels(outcomes, cells, varied))
        return Report(
            heading="Adam's epsilon by effective batch",
            caption=f"{caption_of(self.score_name, outcomes)}; {spread_text(outcomes, self.score_name)}",
            finding=self._finding(cells),
            tables=[
                table(f"{what} by effective batch and epsilon", cells, columns),
                *([table("Best epsilon of each effective batch", best, compared)] if best else []),
            ],
            panels=panels,
            columns=2 if len(panels) == 4 else min(3, len(panels)),
            notes=[*self._notes(cells, best), *self._notes_on_ends(cells)],
        )

    def _is_whole(self, cells: Sequence[Cell]) -> bool:
        """Whether there are enough runs of the cells of a batch to name a best one. If runs end at the target, the last
        ones to end are those that need longest, so none may be missing."""
        if not self.stop_at_target:
            return all(len(cell.runs) >= ENOUGH for cell in cells)
        return self.repeats >= ENOUGH and sum(len(cell.runs) for cell in cells) == self.runs_of_batch

    def _finding(self, cells: Sequence[Cell]) -> str:
        """In which cells the final score, or what the target took, is lowest and highest, in a sentence."""

        def name(cell: Cell) -> str:
            where = f" on {cell['game']}" if len(self.games) > 1 else ""
            return f"{cell.name} with an effective batch of {cell['batch']:,}{where}"

        target = self.target_score
        if target is None or not self.stop_at_target:
            return extremes(cells, lambda cell: cell.score, f"final {self.score} score", name)
        unit = unit_among(cells)
        what = f"{'time' if self.minutes else 'number of agent steps'} to {target:g} in {unit.many}"
        finding = extremes(cells, lambda cell: cell.mean_cost(unit), what, name)
        late = [(name(cell), times) for cell in cells if (times := cell.times) and times.missed]
        return f"{finding} {sentences([reached(late, target)])}" if late else finding

    def _panels(self, outcomes: Sequence[Outcome], cells: Sequence[Cell], varied: Sequence[str]) -> Iterator[Panel]:
        names = list(dict.fromkeys(cell.name for cell in cells))
        for those in by_batch(cells):
            few = len(names) <= CURVES
            shown = those if few else sorted(those, key=lambda cell: cell.rank)[:CURVES]
            styles = names if few else [cell.name for cell in shown]
            title = f"{those[0]['game']}, effective batch {those[0]['batch']:,}"
            title += f", the first {len(shown)} of {len(those)}" if len(shown) < len(those) else ""
            yield learning_panel(
                title, f"{self.score} score", shown, self.score_name, lambda cell: cell.name, self.rule.against,
                style=lambda cell: styles.index(cell.name), among=outcomes, hold=self.stop_at_target,
            )  # fmt: skip
        for of_game in parted(cells, "game"):
            for title, heat in self._heat_maps(of_game, names):
                rows = "ε" if len(varied) == 1 else "hyperparameters of Adam"
                yield Panel(f"{of_game[0]['game']}: {title}", "effective batch", rows, (), heat=heat)

    def _heat_maps(self, cells: Sequence[Cell], names: Sequence[str]) -> Iterator[tuple[str, HeatMap]]:
        """Yields heat maps with their titles: of what the target took if any run reached it, and of the final score
        unless a run of every cell did, or runs end at the target."""
        reached, target = [cell for cell in cells if cell.times is not None and cell.times.reached], self.target_score
        if reached:
            title = f"{'time' if self.minutes else 'agent steps'} to score {target:g}"
            yield title, heat_of_costs(cells, names, f"{self.score} score {target:g}")
        if len(reached) < len(cells) and not self.stop_at_target:
            yield "final score", heat_of_scores(cells, names, f"final {self.score} score")

    def _notes(self, cells: Sequence[Cell], best: Sequence[Cell]) -> Iterator[str]:
        yield PAPER
        for cell in best:
            yield f"best at {cell['batch']:,} on {cell['game']}: {self.options_of(cell.config)}"
        fewest = "the shortest time" if self.minutes else "the fewest agent steps"
        best_is = f"the most repeats that reached the target, then {fewest}, then the final score"
        if self.target_score is None:
            best_is = "the highest mean final score"
        if best:
            yield f"best: {best_is}"
        if len(best) < len(by_batch(cells)):
            lacking = f"fewer than {ENOUGH} repeats" + (", or some have not ended" if self.stop_at_target else "")
            yield f"no epsilon is called the best for a batch where a cell has {lacking}"

    def _notes_on_ends(self, cells: Sequence[Cell]) -> Iterator[str]:
        runs = sum(len(cell.runs) for cell in cells)
        if self.stop_at_target:
            held = "; in the curves, they keep their last score" if all(len(c.runs) >= ENOUGH for c in cells) else ""
            yield f"runs end at the target{held}"
            if runs < len(self.games) * len(self.batch_size) * self.runs_of_batch:
                yield "the runs that take longest may be among those that have not ended"
        if early := sum(cell.early for cell in cells):
            text = f"stopped early by the median rule: {early} of {runs} runs, "
            text += f"after {self.stop_after:.0%} of the budget or later"
            if not self.stop_at_target:
                text += "; their final score is the last that they had, and the curve of their cell ends there"
            yield text

    def options_of(self, config: TrainConfig) -> str:
        """The command that trains with the settings of a point, for as long as the preset says."""
        optimizer, exchange = config.optimizer, config.exchange
        options: dict[str, Any] = {
            "preset": self.preset, "game": config.environment.game, "workers": exchange.workers,
            "parameter_servers": exchange.servers, "batch_size": optimizer.batch_size,
        }  # fmt: skip
        options |= {field: getattr(optimizer, field) for field in RATES.values()}
        words = [word for name, value in options.items() for word in (checks.flag(name), str(value))]
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
        online = settings.score_name == ONLINE  # at an evaluation's target, runs end by themselves
        known = without_undone([dict(record) for record in ours])
        if target is not None and online and first_online(known, target) is not None:
            return {"message": f"ended at the target score, {target:g}"}
        return verdict(settings.rule, ours, others) if settings.stop_hopeless else None

    return why


def _compared(other: Point, point: Point) -> bool:
    """Whether `other` belongs to another cell than `point`, with the same game and batch."""
    differing = {name for name, value in point.labels.items() if other.labels[name] != value}
    return bool(differing) and differing <= RATES.keys()


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
