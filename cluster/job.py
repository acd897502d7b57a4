"""Is this process one rank of a job that a launcher started? Read from its environment alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from cluster.hostlist import DIGITS

NUMBER = re.compile(DIGITS)
# Slurm numbers the steps that are no srun (batch script, interactive shell, extern, pending) from here up.
FIRST_SPECIAL_STEP = 0xFFFFFFF0


class Job(NamedTuple):
    """One rank of a running job.

    Attributes:
        rank: this process' rank.
        size: ranks in the job, or None where the launcher does not say (then ask MPI).
        launcher: whose variables said so: openmpi, pmix, pmi or slurm.
    """

    rank: int
    size: int | None
    launcher: str


def detect_job(environ: Mapping[str, str]) -> Job | None:
    """The job that this process is a rank of, or None.

    A batch script in a Slurm allocation has SLURM_PROCID=0 and SLURM_NTASKS, and the shell that `salloc`
    may open as an interactive step has the step's variables too, of one task, and so has that of `srun --pty`:
    none of them is a rank. The numbers of a step are taken before those of the job, which may be larger.
    """
    rank = number(environ, "OMPI_COMM_WORLD_RANK")
    if rank is not None:
        return Job(rank, number(environ, "OMPI_COMM_WORLD_SIZE"), "openmpi")
    job = _process_manager_job(environ)
    lone = job is not None and job.size in (None, 1)
    return None if lone and (in_special_step(environ) or "SLURM_PTY_PORT" in environ) else job


def _process_manager_job(environ: Mapping[str, str]) -> Job | None:
    step_size = number(environ, "SLURM_STEP_NUM_TASKS")
    rank = number(environ, "PMIX_RANK")
    if rank is not None:
        return Job(rank, step_size or number(environ, "SLURM_NTASKS"), "pmix")
    rank = number(environ, "PMI_RANK")
    if rank is not None:
        return Job(rank, number(environ, "PMI_SIZE") or step_size, "pmi")
    rank = number(environ, "SLURM_PROCID")
    if rank is not None and step_size is not None:
        return Job(rank, step_size, "slurm")
    return None


def in_special_step(environ: Mapping[str, str]) -> bool:
    """Whether Slurm made this step by itself, as for the shell of `salloc`: its variables mean little."""
    step = number(environ, "SLURM_STEP_ID") or number(environ, "SLURM_STEPID") or 0
    return step >= FIRST_SPECIAL_STEP


def number(environ: Mapping[str, str], name: str) -> int | None:
    """A variable that is a number; None if it is not set, or is none."""
    text = environ.get(name, "")
    return int(text) if NUMBER.fullmatch(text) else None
