"""Files that the ranks leave for each other where the run directory will be.

They show before MPI has started who is there, and afterward whether all ranks see one directory. Each rank removes
what it wrote.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ddrl.doctor.facts import Place, free_bytes
from ddrl.rundir import read_json, write_json

SEEN_SECONDS = 10.0  # network file systems show another node's file late
LOOK_SECONDS = 0.05
RANK_0_FILE = "token"
JOB_VARIABLES = (("PMIX_NAMESPACE",), ("SLURM_JOB_ID", "SLURM_STEP_ID"), ("OMPI_MCA_ess_base_jobid",))

_FILES = rf"(rank-\d+|{RANK_0_FILE})"
_OURS = re.compile(rf"{_FILES}|\.{_FILES}\.[0-9a-f]+\.tmp")  # names of files that ranks write


class Arrival(NamedTuple):
    """What a rank wrote when it came: its host, and why it cannot go on (empty: it can)."""

    host: str
    failure: str


def nearest_existing(path: Path) -> Path:
    """The directory itself, or the nearest parent that is there."""
    return next((parent for parent in (path, *path.parents) if parent.is_dir()), Path("/"))


def job_name(environ: Mapping[str, str]) -> str:
    """A name that all ranks of a job know before MPI has started, and other jobs do not have where it can be."""
    for names in JOB_VARIABLES:
        values = [environ.get(name, "") for name in names]
        if all(values):
            return re.sub(r"[^A-Za-z0-9.-]", "_", "-".join(values))
    return "job"


def rank_file(rank: int) -> str:
    """The name of a rank's file."""
    return f"rank-{rank}"


class Probe:
    """This rank's files in a directory `.ddrl-doctor-JOB`, which the last one to leave removes.

    Args:
        run_dir: the run directory, which need not exist.
        job: of job_name.
        rank: of this process.
    """

    def __init__(self, run_dir: Path, job: str, rank: int):
        self.base = nearest_existing(run_dir)
        self.rank, self.nonce = rank, secrets.token_hex(8)
        self._directory = self.base / f".ddrl-doctor-{job}"

    def arrive(self, host: str, failure: str = "") -> Place:
        """Says that this rank is there, or why it cannot go on.

        Args:
            host: of this rank.
            failure: why it cannot go on; empty: it can.
        """
        error = ""
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            self._write(rank_file(self.rank), {"host": host, "failure": failure, "nonce": self.nonce})
        except OSError as failed:
            error = failed.strerror or str(failed)
        return Place(str(self.base), error, free_bytes(str(self.base)))

    def write_token(self, token: str) -> None:
        """Rank 0's file for all; where it cannot be written no rank will see it."""
        with contextlib.suppress(OSError):
            self._write(RANK_0_FILE, {"nonce": token})

    def sees(self, nonces: Mapping[str, str]) -> set[str]:
        """Which files come in sight here.

        Args:
            nonces: name of a file -> what stands in it.
        """
        seen: set[str] = set()
        end = time.monotonic() + SEEN_SECONDS
        while True:
            contents = {name: read_json(self._directory / name) or {} for name in nonces.keys() - seen}
            seen |= {name for name, content in contents.items() if content.get("nonce") == nonces[name]}
            if len(seen) == len(nonces) or time.monotonic() > end:
                return seen
            time.sleep(LOOK_SECONDS)

    def arrivals(self) -> dict[int, Arrival]:
        """The ranks that have left a file so far."""
        arrivals = {}
        with contextlib.suppress(OSError):
            for name in os.listdir(self._directory):
                match, content = re.fullmatch(r"rank-(\d+)", name), read_json(self._directory / name)
                if match and content is not None:  # where others may write, anything may be in it
                    arrivals[int(match.group(1))] = Arrival(str(content.get("host")), str(content.get("failure", "")))
        return arrivals

    def clean(self) -> None:
        """Removes what this rank wrote, on rank 0 what any has; then the directory, if it is empty. No other files."""
        own = rank_file(self.rank)
        with contextlib.suppress(OSError):
            for name in [] if self._directory.is_symlink() else os.listdir(self._directory):
                if _OURS.fullmatch(name) and (self.rank == 0 or name.startswith(f".{own}.") or name == own):
                    (self._directory / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._directory.rmdir()

    def _write(self, name: str, content: dict[str, str]) -> None:
        """Writes a file of the directory.

        Where others may write, a link in the directory's place may lead to any directory of this user.

        Raises:
            OSError: it cannot be written, or a link is in the directory's place.
        """
        if self._directory.is_symlink():
            raise OSError(errno.ELOOP, f"{self._directory.name} is a link", str(self._directory))
        write_json(self._directory / name, content)
