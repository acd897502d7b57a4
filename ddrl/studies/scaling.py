"""`ddrl study scaling`: speed and time to a score by number of workers (Adamski et al. 2018, section 3.1, figure 8)."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Literal

from ddrl import checks
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.placement.resources import this_machine
from ddrl.studies.engine import limited_to
from ddrl.studies.points import Point
from ddrl.studies.scaling_report import report
from ddrl.studies.settings import (
    Budget,
    StudySettings,
    base_config,
    budget,
    changed,
    check_budget,
    game_name,
    not_empty,
)
from ddrl.studies.study import Study
from ddrl.studies.training import train_point
from ddrl.types import Machine

STRONG, WEAK = "strong", "weak"
MODES = {"both": (STRONG, WEAK), STRONG: (STRONG,), WEAK: (WEAK,)}


@dataclasses.dataclass(frozen=True)
class ScalingSettings(Budget, StudySettings):
    """BA3C with more and more workers (Adamski et al. 2018, figure 8): data-points/s and agent steps/s after a warm-up,
    their ratio to those of the fewest workers, parallel efficiency, and the time to a score. strong: one effective
    batch for all, divided among the workers; weak: one batch for each worker. One worker is one process without
    servers; more have a server for every --workers-per-server."""

    workers: tuple[int, ...] = (1, 2, 4, 8)
    """Numbers of workers; the others are compared with the fewest."""
    mode: Literal["strong", "weak", "both"] = "strong"
    """strong: constant effective batch; weak: constant batch per worker; or both."""
    effective_batch: int = 512
    """Strong: data-points in one update, of all workers together (the paper's single node: 512)."""
    min_batch_per_worker: int = 32
    """Strong: data-points of each worker's gradient at least; with more workers the effective batch grows."""
    batch_per_worker: int = 128
    """Weak: data-points of each worker's gradient."""
    workers_per_server: int = 8
    """There is a parameter server for every so many workers, rounded up."""
    cores_per_worker: int = 1
    """A run uses so many cores for each worker, its servers and evaluator among them, or all that there are where they
    are fewer (0: all always)."""
    target_score: float | None = None
    """A run ends when an evaluation reaches this, and the time is reported (None: no evaluations)."""
    eval_every_steps: int = 50_000
    """Agent steps between evaluations. They take a tenth of the time at most."""
    eval_games: int = 50
    """Games of an evaluation."""
    warm_up_seconds: float = 30.0
    """Time at the beginning of a run that does not count in rates; a third of shorter runs."""
    minutes: float = 5.0
    """Wall time of a point, in minutes (0: as many as --agent-steps take)."""
    repeats: int = 3
    """Runs of every point, each with a seed of its own (the paper: 10)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_budget(self)
        not_empty(self, "workers")
        if min(self.workers) < 1:
            raise UsageError(f"--workers {' '.join(map(str, self.workers))}: at least 1 each")
        checks.at_least(
            self,
            1,
            "effective_batch",
            "min_batch_per_worker",
            "batch_per_worker",
            "workers_per_server",
            "eval_every_steps",
            "eval_games",
        )
        checks.at_least(self, 0, "cores_per_worker", "warm_up_seconds")
        if self.target_score is not None:
            checks.finite(self, "target_score")
        for number in self.workers:
            share = self.effective_batch / number
            if STRONG in MODES[self.mode] and share > self.min_batch_per_worker and self.effective_batch % number:
                raise UsageError(
                    f"--effective-batch {self.effective_batch}: {number} workers cannot divide it; give a multiple"
                )

    def batch(self, mode: str, workers: int) -> int:
        """Data-points of each worker's gradient."""
        if mode == WEAK:
            return self.batch_per_worker
        return max(self.min_batch_per_worker, self.effective_batch // workers)


def points(settings: ScalingSettings, machine: Machine) -> list[Point]:
    """All of them, of one number of workers after the other."""
    return [
        _point(settings, machine, mode, number, game, seed)
        for mode in MODES[settings.mode]
        for game in settings.games
        for number in sorted(settings.workers)
        for seed in settings.seeds
    ]


def _point(settings: ScalingSettings, machine: Machine, mode: str, workers: int, game: str, seed: int) -> Point:
    name = f"{mode}-{game_name(game)}-{workers}workers-seed{seed}"
    config = base_config(settings, "ba3c", game, machine)
    try:
        config = with_workers(config, workers, settings.workers_per_server, settings.batch(mode, workers))
    except UsageError as error:
        raise UsageError(f"{workers} workers: {error}") from error
    report_often = {"log_every_seconds": 1.0} if settings.quick else {}
    config = changed(
        config,
        run=budget(settings.minutes, settings.agent_steps) | {"seed": seed} | report_often,
        evaluation=_evaluation(settings, config),
    )
    share = settings.effective_batch / workers
    floor = mode == STRONG and share < settings.min_batch_per_worker
    labels = {"mode": mode, "game": game, "workers": workers, "cores": workers * settings.cores_per_worker}
    return Point(name, config, labels | {"at_least": floor})


def with_workers(config: TrainConfig, workers: int, workers_per_server: int, batch: int) -> TrainConfig:
    """The settings with so many workers, each with such a batch. One worker is a single process."""
    exchange: dict[str, object] = {"workers": workers}
    if workers == 1:
        exchange |= {"exchange": "parameter_server", "parameter_servers": 0}
    elif config.exchange.exchange == "parameter_server":
        exchange |= {"parameter_servers": -(-workers // workers_per_server)}
    return changed(config, exchange=exchange, optimizer={"batch_size": batch})


def _evaluation(settings: ScalingSettings, config: TrainConfig) -> dict[str, object]:
    if settings.target_score is None:
        return {"evaluator": False, "target_score": None}
    every = max(1, settings.eval_every_steps // config.effective_batch)
    return {
        "evaluator": True,
        "target_score": settings.target_score,
        "eval_games": settings.eval_games,
        "eval_every_updates": every,
    }


def run_point(point: Point, path: Path) -> None:
    """Trains with the cores of its workers, as far as there are so many.

    Raises:
        UsageError, RuntimeError: see train_point.
    """
    wanted, here = point.labels["cores"], this_machine().cores
    with limited_to(wanted) if 0 < wanted < here else contextlib.nullcontext():
        train_point(point, path)


STUDY = Study(
    name="scaling",
    defaults=ScalingSettings(),
    quick=ScalingSettings(
        quick=True,
        preset="smoke",
        games=("ddrl/Catch-v0",),
        workers=(1, 2, 4),
        minutes=0.13,
        warm_up_seconds=3.0,
        effective_batch=128,
        batch_per_worker=64,
        repeats=2,
    ),
    points=points,
    report=report,
    run=run_point,
)
