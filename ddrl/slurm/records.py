"""Which jobs work in a directory: its slurm-jobs.tsv, a line for each with the job's number and its output.

`ddrl submit` writes it, and job.sh does for jobs of other scripts.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from ddrl.errors import UsageError
from ddrl.files import append_regular, read_regular

JOBS = "slurm-jobs.tsv"
MOST_BYTES = 1 << 24  # of it that are read: 100,000 jobs and more
_TASK = "%a"
_JOB = re.compile(r"[0-9]{1,18}(_[0-9]{1,18})?")


class JobRecord(NamedTuple):
    """One job of a directory.

    Attributes:
        job: the number of the job; for a task of an array, _ and the number of the task follow.
        output: the file that the job prints into; for an array, it has %a in place of the number of the task.
    """

    job: str
    output: Path

    @property
    def number(self) -> str:
        """The job's number without a task's."""
        return self.job.partition("_")[0]

    def outputs(self) -> list[Path]:
        """The output files that exist, in the order of the tasks' numbers."""
        before, mark, after = self.output.name.partition(_TASK)
        if not mark:
            return [self.output] if self.output.is_file() else []
        name = re.compile(re.escape(before) + r"(\d+)" + re.escape(after))
        try:
            found = [
                (int(match[1]), path) for path in self.output.parent.iterdir() if (match := name.fullmatch(path.name))
            ]
        except OSError:
            return []
        return [path for _, path in sorted(found)]


def note(directory: Path, record: JobRecord) -> None:
    """Adds a job to the file of its directory, unless it is there already.

    Raises:
        UsageError: the file cannot be written, although the job was submitted.
    """
    try:
        if record not in noted(directory):  # the job itself may have begun, and written it
            with append_regular(directory / JOBS) as file:
                file.write(f"{record.job}\t{record.output}\n".encode())
    except OSError as error:
        raise UsageError(
            f"job {record.job} was submitted, but cannot be recorded in {directory / JOBS}: {error.strerror}"
        ) from error


def noted_since(directory: Path, file: Path) -> bool:
    """Whether a file is older than the newest job of a directory, which then has not written it."""
    try:
        return (directory / JOBS).stat().st_mtime_ns > file.stat().st_mtime_ns
    except OSError:
        return False


def noted(directory: Path) -> list[JobRecord]:
    """The jobs of a directory, oldest first; empty if nothing was submitted or the file cannot be read."""
    try:
        lines = read_regular(directory / JOBS, MOST_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return []
    parts = (line.partition("\t") for line in lines)
    records = [JobRecord(job, Path(output)) for job, _, output in parts if _JOB.fullmatch(job) and output]
    return list(dict.fromkeys(records))
