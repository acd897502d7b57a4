"""Run directories as training leaves them, made without training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddrl import rundir
from ddrl.algorithms import preset
from ddrl.placement.resources import this_machine
from ddrl.reporting.metrics import MetricsWriter, evaluation_record


def make_run(path: Path, game: str = "ddrl/Catch-v0", **run: Any) -> MetricsWriter:
    """A run that has begun, and what writes its metrics.

    Args:
        run: settings of the group of that name.
    """
    config = preset("smoke", None, this_machine()).changed(
        environment={"game": game}, run={"minutes": 0.0, "run_dir": str(path), **run}
    )
    rundir.create_run_dir(config)
    return MetricsWriter(path)


def train_record(line: int, **more: Any) -> dict[str, Any]:
    """A line of a worker that takes 100 agent steps and one update a second."""
    return {
        "kind": "train", "wall_seconds": float(line), "update": line, "agent_steps": 100 * line,
        "agent_steps_per_s": 100.0, "updates_per_s": 1.0, "episodes": line, "online_score_mean": line / 10,
        "lag_mean": 2.0, "lag_max": 5.0, "loss": 1 / (1 + line),
        "time_split": {"worker": {"simulation": 0.5, "wait_data": 0.25}}, "cpu_cores": {"worker-0": 0.75},
        "resident_mb": {"worker-0": 640.0}, **more,
    }  # fmt: skip


def evaluation(line: int, mean: float, **more: Any) -> dict[str, Any]:
    """Of the parameters at that line."""
    fields = {"games": 20, "unfinished": 0, "maximum": mean, "seconds": 1.0, "protocol": "test", **more}
    return evaluation_record(mean=mean, version=line, agent_steps=100 * line, wall_seconds=float(line), **fields)


def end(path: Path, status: str = "finished", message: str = "the budget is used up") -> None:
    """Writes the result."""
    rundir.write_json(path / rundir.RESULT, {"status": status, "message": message})


def make_bare_runs(root: Path, count: int) -> None:
    """Makes so many runs that hold only the name of their algorithm, which takes little time."""
    for number in range(count):
        (root / f"bare-{number}").mkdir()
        (root / f"bare-{number}" / rundir.CONFIG).write_text('{"algorithm_name": "ba3c"}')
