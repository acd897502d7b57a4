"""Files that the ranks leave for each other where the run directory will be.

They show before MPI has started who is there, and afterwards whether all ranks see one directory. Each rank removes
what it wrote.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ddrl.doctor.facts import Place, free_bytes
from ddrl.rundir import read_json, write_json

SEEN_SECONDS = 10.0  # network file systems show another node's file late
LOOK_SECONDS = 0.05
JOB_VARIABLES = (("PMIX_NAMESPACE",), ("SLURM_JOB_ID", "SLURM_STEP_ID"), ("OMPI_MCA_ess_base_jobid",))


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
        """Says that this rank is there, or why it cannot go on."""
        error = ""
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            self._write(f"rank-{self.rank}", {"host": host, "failure": failure, "nonce": self.nonce})
        except OSError as failed:
            error = failed.strerror or str(failed)
        return Place(str(self.base), error, free_bytes(str(self.base)))

    def write_token(self, token: str) -> None:
        """Rank 0's file for all; where it cannot be written no rank will see it."""
        with contextlib.suppress(OSError):
            self._write("token", {"nonce": token})

    def sees_token(self, token: str) -> bool:
        """Whether rank 0's file comes in sight."""
        return self._sees({"token": token})["token"]

    def sees_ranks(self, nonces: Mapping[int, str]) -> dict[int, bool]:
        """For each rank, whether its file comes in sight here."""
        seen = self._sees({f"rank-{rank}": nonce for rank, nonce in nonces.items()})
        return {rank: seen[f"rank-{rank}"] for rank in nonces}

    def arrivals(self) -> dict[int, Arrival]:
        """The ranks that have left a file so far."""
        found = {}
        with contextlib.suppress(OSError):
            for name in os.listdir(self._directory):
                match, content = re.fullmatch(r"rank-(\d+)", name), read_json(self._directory / name)
                if match and isinstance(content, dict):
                    found[int(match.group(1))] = Arrival(content["host"], content["failure"])
        return found

    def clean(self) -> None:
        """Removes what this rank wrote, on rank 0 what any has; then the directory, if it is empty."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self._directory):
                if self.rank == 0 or name.startswith(f"rank-{self.rank}.") or name == f"rank-{self.rank}":
                    (self._directory / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._directory.rmdir()

    def _write(self, name: str, content: Any) -> None:
        write_json(self._directory / name, content)

    def _sees(self, nonces: Mapping[str, str]) -> dict[str, bool]:
        seen = dict.fromkeys(nonces, False)
        _until(lambda: self._look(nonces, seen), SEEN_SECONDS)
        return seen

    def _look(self, nonces: Mapping[str, str], seen: dict[str, bool]) -> bool:
        for name, nonce in nonces.items():
            if not seen[name]:
                content = read_json(self._directory / name)
                seen[name] = isinstance(content, dict) and content.get("nonce") == nonce
        return all(seen.values())


def _until(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(LOOK_SECONDS)
