"""Finds the processes of a run by a mark in their environment, and breaks them.

They are sent signals, killed in the middle of a save, or limited in the sizes of their files.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cluster.session import SESSION_DIRECTORY
from ddrl.bench.faults.draws import Draw
from ddrl.launch.processes import stat_of

MARK = "DDRL_FAULTS_MARK"
CHILDREN = {"ddrl.apex.acting": "actor", "ddrl.envs.simulator_process": "simulator"}
RANK, MPIRUN, OTHER = "rank", "mpirun", "other"
SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP, "int": signal.SIGINT}
IN_CREATE = 0x100  # <sys/inotify.h>
EVENT = struct.Struct("iIII")
DEATH_SECONDS = 20.0  # for killed processes to be gone
WRITE_SECONDS = 0.01  # about the time to write a checkpoint of these runs


class Process(NamedTuple):
    """A living process.

    Attributes:
        pid: its process ID.
        what: "rank", "mpirun", a kind of child ("actor" or "simulator"), or "other".
        rank: the number of a rank, 0 in a run without mpirun; -1 for other processes.
        session: the directory of Open MPI's files that its environment names; empty if it names none.
    """

    pid: int
    what: str
    rank: int
    session: str


def of_mark(mark: str) -> list[Process]:
    """All living processes whose environment has the mark, sorted by process ID; zombies count as dead."""
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
    if Path(words[0]).name in ("mpirun", "prterun"):  # tested first: its command line has the ranks' module, too
        what = MPIRUN
    else:
        what = CHILDREN.get(modules.pop(), RANK) if modules else OTHER
    rank = int(pairs.get("OMPI_COMM_WORLD_RANK", "0")) if what == RANK else -1
    return Process(pid, what, rank, pairs.get(SESSION_DIRECTORY, ""))


def send(pid: int, number: int) -> None:
    """Sends a signal to a process, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def kill_all(mark: str) -> None:
    """Kills all processes with a mark until none is left, for at most DEATH_SECONDS."""
    end = time.monotonic() + DEATH_SECONDS
    while (living := of_mark(mark)) and time.monotonic() < end:
        for process in living:
            send(process.pid, signal.SIGKILL)
        time.sleep(0.1)


# what is done to them -------------------------------------------------------------------------------------------------


def signal_of(draw: Draw) -> int:
    """The signal of a draw that sends one."""
    return SIGNALS[draw.kind.rpartition("-")[2]]


def kill_while_saving(victim: int, directory: Path, draw: Draw, seconds: float) -> bool:
    """Kills a process soon after a temporary file appears in a directory; returns False if none did in time."""
    with Appearances(directory) as appearances:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            # Ignores the parameters of the best evaluation, which the evaluator may save at any time.
            if any(name.endswith(".tmp") and not name.startswith(".best.") for name in appearances.wait(0.5)):
                time.sleep(draw.which * WRITE_SECONDS)
                send(victim, signal.SIGKILL)
                return True
    return False


class Appearances:
    """Watches for new names in a directory, by Linux's inotify: polling would miss a file that exists for 2 ms."""

    def __init__(self, directory: Path):
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if (
            self._descriptor < 0
            or self._libc.inotify_add_watch(self._descriptor, os.fsencode(directory), IN_CREATE) < 0
        ):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(directory))

    def __enter__(self) -> Appearances:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._descriptor)

    def wait(self, seconds: float) -> list[str]:
        """Waits for new names and returns them; empty if none appeared in time."""
        if not select.select([self._descriptor], [], [], seconds)[0]:
            return []
        data, names, at = os.read(self._descriptor, 1 << 16), [], 0
        while at < len(data):
            size = EVENT.unpack_from(data, at)[3]
            names.append(data[at + EVENT.size : at + EVENT.size + size].rstrip(b"\0").decode(errors="replace"))
            at += EVENT.size + size
        return names


def room(run_dir: Path, draw: Draw) -> int:
    """The largest file size, in bytes, with which the disk seems full: at 0, nothing can be written.

    If the draw says so, and the files of lines are still much smaller than a checkpoint, it lies between them, so that
    lines can be written and checkpoints cannot.
    """
    sizes = {path: path.stat().st_size for path in run_dir.iterdir() if path.is_file()}
    checkpoints = [path.stat().st_size for path in (run_dir / "checkpoints").glob("update-*.npz")]
    between = min(checkpoints, default=0) // 2
    return between if draw.which < 0.5 and 2 * max(sizes.values(), default=0) < between else 0


def limit_files(processes: Sequence[Process], size: int = resource.RLIM_INFINITY) -> None:
    """Limits the size of files that these processes can write; without `size`, removes the limit.

    It leaves out mpirun, which would be ended by the signal at the limit (SIGXFSZ); Python ignores that signal.
    """
    for process in processes:
        if process.what != MPIRUN:
            with contextlib.suppress(OSError):
                hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)[1]
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, hard))
