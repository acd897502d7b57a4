"""`ddrl train` as one rank of a job that mpirun or srun started: rank 0 makes the run directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cluster.job import Job
from ddrl import rundir
from ddrl.config import TrainConfig
from ddrl.errors import UsageError

MESSAGE_BYTES = 8192


def train_in_job(config: TrainConfig, resume: Path | None, job: Job) -> int:
    """Runs this rank of the job to its end; returns the exit status.

    Raises:
        UsageError: when the job has another size than asked for, or rank 0 could make no run directory.
    """
    if job.size is not None:
        check_world(config, job.size, job.launcher)
    if config.single_process and job.size == 1:
        path, config = prepare(config, resume)
    else:
        from mpi4py import MPI

        check_world(config, MPI.COMM_WORLD.Get_size(), "MPI")
        path = Path(_agree(MPI.COMM_WORLD, config, resume))
        config = rundir.load_config(path)
    from ddrl.roles.main import run

    return int(run(config, path, resume=resume is not None) or 0)


def check_world(config: TrainConfig, size: int, launcher: str) -> None:
    """Raises UsageError when a job of `size` ranks is not what the settings need."""
    if size == config.ranks:
        return
    exchange = config.exchange
    evaluator = config.ranks - exchange.ranks
    raise UsageError(
        f"this {launcher} job has {size} ranks and the settings need {config.ranks}: "
        f"{exchange.workers} workers + {exchange.parameter_servers} parameter servers + "
        f"{int(exchange.chief == 'dedicated')} dedicated chief + "
        f"{evaluator} evaluator; start {config.ranks} ranks, or change the numbers"
    )


def prepare(config: TrainConfig, resume: Path | None) -> tuple[Path, TrainConfig]:
    """The run directory, new or updated, ready for the ranks."""
    if resume is None:
        return rundir.create_run_dir(config)
    rundir.update_run_dir(resume, config)
    for stale in (rundir.STOP, rundir.RESULT):
        (resume / stale).unlink(missing_ok=True)
    return resume, config


def _agree(world: Any, config: TrainConfig, resume: Path | None) -> str:
    """Rank 0's run directory, on every rank; or its refusal."""
    buffer = bytearray(MESSAGE_BYTES)
    if world.Get_rank() == 0:
        try:
            message = {"run_dir": str(prepare(config, resume)[0])}
        except UsageError as error:
            message = {"error": str(error)}
        data = json.dumps(message).encode()
        buffer[: len(data)] = data
    world.Bcast(buffer, root=0)
    message = json.loads(bytes(buffer).rstrip(b"\0"))
    if "error" in message:
        raise UsageError(message["error"])
    return message["run_dir"]
