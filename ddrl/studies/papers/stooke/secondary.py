"""A point of two learners of one replay: it runs in a process of its own, which says what it measures."""

from __future__ import annotations

import contextlib
from pathlib import Path

from ddrl import rundir
from ddrl.config import TrainConfig
from ddrl.studies.points import Outcome, Point

LEARNERS = ("sampler", "secondary")
WORKER = "ddrl.bench.secondary_worker"


def run_point(point: Point, secondary: TrainConfig, path: Path) -> None:
    """Trains both learners.

    Args:
        point: with the settings of the sampler.
        secondary: settings of the other.

    Raises:
        UsageError, RuntimeError: it cannot be, or that process died or said nothing for too long.
    """
    from ddrl.bench.children import Children
    from ddrl.launch.processes import Interrupts
    from ddrl.reporting.metrics import MetricsWriter

    path.mkdir(parents=True, exist_ok=True)
    config = point.config
    first = {name: rundir.config_to_dict(settings) for name, settings in zip(LEARNERS, (config, secondary))}
    patience = 2 * config.evaluation.longest_seconds + config.run.start_seconds + config.run.stall_seconds
    with rundir.locked(path), Interrupts() as interrupts:
        for name in (rundir.METRICS, rundir.RESULT):
            (path / name).unlink(missing_ok=True)
        rundir.write_json(path / rundir.CONFIG, first["sampler"])
        writer = MetricsWriter(path)
        with contextlib.closing(writer), Children(WORKER, [first], patience) as children:
            while not interrupts.stop and not (record := children.hear()[0]).get("end"):
                writer.write(record)
        rundir.write_json(path / rundir.RESULT, {"status": "stopped" if interrupts.stop else "finished"})


def of_learner(run: Outcome, learner: str) -> Outcome:
    """A run with the records of one of the two alone."""
    return run._replace(records=[record for record in run.records if record.get("learner") == learner])
