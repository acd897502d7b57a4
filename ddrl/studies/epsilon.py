"""`ddrl study epsilon`: Adam's epsilon by effective batch (Adamski et al. 2018, section 2.4.3 and figure 5)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from ddrl import checks
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.studies import plan as plans
from ddrl.studies.curves import EVALUATION, ONLINE
from ddrl.studies.epsilon_report import CELL, report
from ddrl.studies.median_rule import Rule, train_unless_hopeless
from ddrl.studies.points import Point
from ddrl.studies.scaling import with_workers
from ddrl.studies.settings import (
    Budget,
    StudySettings,
    base_config,
    budget,
    changed,
    check_budget,
    from_json,
    game_name,
    not_empty,
)
from ddrl.studies.study import Study
from ddrl.studies.training import train_point
from ddrl.types import Machine

FIELDS = {"epsilon": "adam_epsilon", "beta1": "beta1", "beta2": "beta2", "learning_rate": "learning_rate"}
"""Setting -> field of the optimizer's settings."""


@dataclasses.dataclass(frozen=True)
class EpsilonSettings(Budget, StudySettings):
    """BA3C with every pair of Adam's epsilon and effective batch, and other rates of Adam where they are given. Adamski
    et al. 2018: an epsilon of 1e-8 instead of 1e-3 helped from an effective batch of 512 on, and not in every game.
    Reports score against time, time to a score, and the best epsilon of each batch, as options of `ddrl train`."""

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
    """Workers of every run (0: the preset's)."""
    score: Literal["online", "evaluation"] = "online"
    """online: of training games, as in the paper's figure 5; evaluation: of greedy games with frozen parameters, which
    take up to a tenth of the time."""
    target_score: float | None = None
    """Score whose time is measured; the runs go on after it (None: final scores alone)."""
    eval_every_steps: int = 50_000
    """Agent steps between evaluations."""
    eval_games: int = 50
    """Games of an evaluation."""
    stop_hopeless: bool = False
    """End a run early when its best score is below the median of what runs of other cells with the same game and batch
    had on average until that time. It is marked, and stays in the report. One after the other, only later runs can
    be ended."""
    stop_after: float = 0.3
    """Share of its budget that every run has, hopeless or not."""
    minutes: float = 10.0
    """Wall time of a point, in minutes (0: as many as --agent-steps take)."""
    repeats: int = 3
    """Runs of every cell, each with a seed of its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_budget(self)
        not_empty(self, "epsilon", "batch_size")
        for name in ("beta1", "beta2", "learning_rate"):
            if getattr(self, name):
                not_empty(self, name)
        checks.at_least(self, 0, "workers")
        checks.at_least(self, 1, "eval_every_steps", "eval_games")
        checks.between(self, 0.0, 1.0, "stop_after", why="a share of the budget")
        if self.target_score is not None:
            checks.finite(self, "target_score")

    @property
    def score_name(self) -> str:
        """As in the records of a run."""
        return ONLINE if self.score == "online" else EVALUATION

    @property
    def rule(self) -> Rule:
        """When a run is hopeless."""
        if self.minutes:
            return Rule(self.score_name, "wall_seconds", 60.0 * self.minutes * self.stop_after)
        return Rule(self.score_name, "agent_steps", self.agent_steps * self.stop_after)


def points(settings: EpsilonSettings, machine: Machine) -> list[Point]:
    """All of them; runs of one seed follow each other, so that half a study compares something."""
    return [
        _point(settings, machine, game, batch, rates, seed)
        for game in settings.games
        for seed in settings.seeds
        for batch in settings.batch_size
        for rates in _rates(settings)
    ]


def _rates(settings: EpsilonSettings) -> Iterator[dict[str, float]]:
    """Every combination of what is given."""
    given = {name: values for name in FIELDS if (values := getattr(settings, name))}
    for values in itertools.product(*given.values()):
        yield dict(zip(given, values))


def _point(
    settings: EpsilonSettings, machine: Machine, game: str, batch: int, rates: dict[str, float], seed: int
) -> Point:
    config = _with_batch(settings, base_config(settings, "ba3c", game, machine), batch)
    config = changed(
        config,
        optimizer={FIELDS[name]: value for name, value in rates.items()},
        run=budget(settings.minutes, settings.agent_steps) | {"seed": seed},
        evaluation=_evaluation(settings, config),
    )
    labels = {"game": game, "batch": batch}
    labels |= {name: getattr(config.optimizer, field) for name, field in FIELDS.items()}
    what = "-".join(f"{name.replace('_', '')}{value:g}" for name, value in rates.items())
    return Point(f"{game_name(game)}-batch{batch}-{what}-seed{seed}", config, labels)


def _with_batch(settings: EpsilonSettings, config: TrainConfig, batch: int) -> TrainConfig:
    """An effective batch, divided among the workers.

    Raises:
        UsageError: they cannot divide it.
    """
    if config.optimizer.optimizer != "adam":
        raise UsageError("--train-options: the study is of Adam's epsilon; leave --optimizer out")
    workers = settings.workers or config.exchange.workers
    if batch < workers or batch % workers:
        why = f"{workers} workers cannot divide it; give a multiple, or other --workers"
        raise UsageError(f"--batch-size {batch}: {why}")
    if workers == config.exchange.workers:
        return changed(config, optimizer={"batch_size": batch // workers})
    return with_workers(config, workers, 8, batch // workers)


def _evaluation(settings: EpsilonSettings, config: TrainConfig) -> dict[str, Any]:
    every = max(1, settings.eval_every_steps // config.effective_batch)
    return {
        "evaluator": settings.score == "evaluation",
        "target_score": None,
        "eval_games": settings.eval_games,
        "eval_every_updates": every,
    }


def run_point(point: Point, path: Path) -> None:
    """Trains, until it is hopeless where that is asked for.

    Raises:
        UsageError, RuntimeError: see train_point.
    """
    plan = plans.load(path.parent.parent, STUDY.name)
    settings = None if plan is None else from_json(EpsilonSettings, plan.settings)
    if settings is None or not settings.stop_hopeless:
        train_point(point, path)
        return
    others = [plan.path(other) for other in plan.points if _compared(other, point)]
    train_unless_hopeless(lambda: train_point(point, path), path, others, settings.rule)


def _compared(other: Point, point: Point) -> bool:
    """Whether a point is of another cell with the same game and batch."""
    mine, theirs = point.labels, other.labels
    same = all(mine[name] == theirs[name] for name in ("game", "batch"))
    return same and any(mine[name] != theirs[name] for name in CELL)


STUDY = Study(
    name="epsilon",
    defaults=EpsilonSettings(),
    quick=EpsilonSettings(
        quick=True,
        preset="smoke",
        games=("ddrl/Catch-v0",),
        epsilon=(1e-3, 1e-8),
        batch_size=(64, 256),
        minutes=0.15,
        repeats=2,
        target_score=0.0,
    ),
    points=points,
    report=report,
    run=run_point,
)
