"""The jobs of this user that Slurm has in its queue."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from ddrl.errors import UsageError
from ddrl.slurm.script import REPORT_SCRIPT, SCRIPT

ANSWER_SECONDS = 30.0
_SEPARATOR = "\x1f"
_FORMAT = _SEPARATOR.join(("%i", "%T", "%M", "%l", "%r", "%o"))
_NUMBER = re.compile(r"\d+")
_UNCONFIGURED = "Could not establish a configuration source"


class NoConfiguration(UsageError):
    """Slurm's client is installed, but knows of no cluster."""


class QueuedJob(NamedTuple):
    """One line of the queue: a job, a component of one, or tasks of an array.

    Attributes:
        job: the number as Slurm shows it, such as 12, 12_3, 12_[4-7] or 12+1.
        state: RUNNING, PENDING, ...
        elapsed, limit: such as 1:02:03; UNLIMITED.
        reason: why the job waits.
        command: the script of the job, with its arguments.
    """

    job: str
    state: str
    elapsed: str
    limit: str
    reason: str
    command: str

    @property
    def number(self) -> str:
        """The number of the job, without those of tasks and components."""
        match = _NUMBER.match(self.job)
        return match[0] if match else ""

    @property
    def directory(self) -> Path | None:
        """The directory in which `ddrl` wrote the job's script; None for other jobs."""
        script = Path(self.command)
        return script.parent if script.name in (SCRIPT, REPORT_SCRIPT) else None


def has_queue() -> bool:
    """Whether there is a Slurm here."""
    return shutil.which("squeue") is not None


def queue() -> list[QueuedJob]:
    """All jobs of this user that wait, run or end, in the order of their numbers.

    Raises:
        NoConfiguration: Slurm's client knows of no cluster.
        UsageError: there is no Slurm here, or it does not answer.
    """
    if not has_queue():
        raise UsageError("there is no Slurm here (no squeue); log in where it is")
    command = ["squeue", "--noheader", f"--user={os.getuid()}", f"--format={_FORMAT}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=ANSWER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"squeue did not answer ({error}); try again") from error
    if _UNCONFIGURED in done.stderr:
        where = "log in where Slurm is, or name its slurm.conf in SLURM_CONF"
        raise NoConfiguration(f"Slurm's client has no configuration here; {where}")
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise UsageError(f"squeue failed: {' '.join(lines[0].split())}")
    rows = (line.split(_SEPARATOR) for line in done.stdout.split("\n"))
    jobs = [QueuedJob(*row) for row in rows if len(row) == len(QueuedJob._fields)]
    return sorted((job for job in jobs if job.number), key=lambda job: (int(job.number), job.job))
