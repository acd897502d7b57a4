"""The processes of a run: found by a mark in their environment, and told apart by their command lines."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import NamedTuple

from cluster.session import SESSION_DIRECTORY
from ddrl.launch.processes import stat_of

MARK = "DDRL_FAULTS_MARK"
CHILDREN = {"ddrl.apex.acting": "actor", "ddrl.envs.simulator_process": "simulator"}
RANK, MPIRUN, OTHER = "rank", "mpirun", "other"


class Process(NamedTuple):
    """A living process.

    Attributes:
        pid: its number.
        what: "rank", "mpirun", a kind of child, or "other".
        rank: of a rank; 0 where there is one process.
        session: directory of Open MPI's files that it was told of.
    """

    pid: int
    what: str
    rank: int
    session: str


def of_mark(mark: str) -> list[Process]:
    """All living processes that were started under a mark, by number (zombies are dead)."""
    living = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            environ = Path("/proc", entry, "environ").read_bytes()
            stat = stat_of(entry)
            if f"{MARK}={mark}".encode() in environ.split(b"\0") and stat is not None and stat.state not in "ZX":
                words = Path("/proc", entry, "cmdline").read_bytes().decode(errors="replace").split("\0")
                living.append(_process(int(entry), words, environ.decode(errors="replace")))
    return sorted(living)


def _process(pid: int, words: list[str], environ: str) -> Process:
    pairs = dict(item.partition("=")[::2] for item in environ.split("\0"))
    modules = set(words) & {"ddrl.roles", *CHILDREN}
    if Path(words[0]).name in ("mpirun", "prterun"):  # whose command line names the program of the ranks, too
        what = MPIRUN
    else:
        what = CHILDREN.get(modules.pop(), RANK) if modules else OTHER
    rank = int(pairs.get("OMPI_COMM_WORLD_RANK", "0")) if what == RANK else -1
    return Process(pid, what, rank, pairs.get(SESSION_DIRECTORY, ""))


def send(pid: int, number: int) -> None:
    """A signal, if the process is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def kill_all(mark: str, seconds: float = 20.0) -> int:
    """Kills whatever lives under a mark; how many were there."""
    end, most = time.monotonic() + seconds, 0
    while (living := of_mark(mark)) and time.monotonic() < end:
        most = max(most, len(living))
        for process in living:
            send(process.pid, signal.SIGKILL)
        time.sleep(0.1)
    return most
