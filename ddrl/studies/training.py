"""Runs a point as a run of `ddrl train`, or as a measurement that trains nothing."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from ddrl import run_lock, rundir
from ddrl.placement.resources import this_machine
from ddrl.studies.points import Point


def train_point(point: Point, path: Path) -> None:
    """Trains with the settings of a point in `path`, or goes on there with what is left of its budgets.

    Raises:
        UsageError: the settings are refused.
        RuntimeError: the run failed.
    """
    from ddrl.launch import local as launch

    config = point.config.changed(run={"run_dir": str(path)})
    resume = path if (path / rundir.CONFIG).exists() else None
    said = io.StringIO()
    console = Console(file=said, width=1000, markup=False)  # names of directories may look like markup
    status = launch.train(config, resume, this_machine(), console, minutes_of_run=True)
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
