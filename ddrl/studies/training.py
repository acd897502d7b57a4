"""Runs a point as a run of `ddrl train`, or as a measurement that trains nothing."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from ddrl import run_lock, rundir
from ddrl.checkpoint import list_checkpoints, load_latest
from ddrl.config import TrainConfig
from ddrl.placement.resources import this_machine
from ddrl.studies.points import Point

SHORTEST_MINUTES = 0.05  # of a point that was interrupted just before its end


def train_point(point: Point, path: Path) -> None:
    """Trains with the settings of a point in `path`, or goes on there.

    Raises:
        UsageError: the settings are refused.
        RuntimeError: the run failed.
    """
    from ddrl.launch import local as launch

    config, resume = settings_in(point.config, path)
    said = io.StringIO()
    console = Console(file=said, width=1000, markup=False)  # names of directories may look like markup
    status = launch.train(config, path if resume else None, this_machine(), console)
    if status == 1:
        lines = [line for line in said.getvalue().splitlines() if line.startswith("ddrl:")]
        raise RuntimeError(lines[-1].removeprefix("ddrl: ") if lines else "the run failed")


def measuring(measure: Callable[[Point], Mapping[str, Any]]) -> Callable[[Point, Path], None]:
    """A function that runs points which train nothing: it writes what `measure` returns to their result.json."""

    def run(point: Point, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        with run_lock.locked(path):
            rundir.write_json(path / rundir.RESULT, {"status": "finished", **measure(point)})

    return run


def settings_in(config: TrainConfig, path: Path) -> tuple[TrainConfig, bool]:
    """The settings of the run in `path`, and whether it is a resume.

    A resume has the minutes that are left, but as much time for its final evaluation as all minutes give.
    """
    config = config.changed(run={"run_dir": str(path)})
    if not (path / rundir.CONFIG).exists():
        return config, False
    if not config.run.minutes or not list_checkpoints(path):
        return config, True
    whole = config.evaluation.longest_final_seconds(60.0 * config.run.minutes) / 60.0
    evaluation = {"final_evaluation_minutes": whole} if config.evaluation.evaluator else {}
    return config.changed(run={"minutes": _minutes_left(config, path)}, evaluation=evaluation), True


def _minutes_left(config: TrainConfig, path: Path) -> float:
    """The minutes of the next start of the run in `path`.

    A run that lacks only its final evaluation keeps those of its last start: with any others, it would train more.
    """
    result = rundir.read_json(path / rundir.RESULT)
    if isinstance(result, dict) and result.get("unevaluated"):
        return rundir.load_config(path).run.minutes
    return max(SHORTEST_MINUTES, config.run.minutes - load_latest(path).wall_seconds / 60.0)
