"""Doing it: signals, kills in the middle of a save, and limits of the sizes of files."""

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

from ddrl.bench.faults.draws import Draw
from ddrl.bench.faults.processes import MPIRUN, Process, send

SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP, "int": signal.SIGINT}
IN_CREATE = 0x100  # <sys/inotify.h>
EVENT = struct.Struct("iIII")
WRITE_SECONDS = 0.01  # a checkpoint of these runs is written in about so long


def signal_of(draw: Draw) -> int:
    """The signal of a draw that sends one."""
    return SIGNALS[draw.kind.rpartition("-")[2]]


def kill_while_saving(victim: int, directory: Path, draw: Draw, seconds: float) -> bool:
    """Kills a process soon after a temporary file has appeared in a directory; False: none came in time."""
    with Appearances(directory) as appearances:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if any(name.endswith(".tmp") for name in appearances.wait(0.5)):
                time.sleep(draw.which * WRITE_SECONDS)
                send(victim, signal.SIGKILL)
                return True
    return False


class Appearances:
    """Names that appear in a directory (Linux's inotify, as a file that is written in 2 ms is not seen by looking)."""

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
        """The names that appeared, none if nothing did in time."""
        if not select.select([self._descriptor], [], [], seconds)[0]:
            return []
        data, names, at = os.read(self._descriptor, 1 << 16), [], 0
        while at < len(data):
            size = EVENT.unpack_from(data, at)[3]
            names.append(data[at + EVENT.size : at + EVENT.size + size].rstrip(b"\0").decode(errors="replace"))
            at += EVENT.size + size
        return names


def room(run_dir: Path, draw: Draw) -> int:
    """Largest size of a file, in bytes: lines can be written and checkpoints cannot; or nothing can.

    Lines are left room where the draw says so, and where their files are still much smaller than a checkpoint.
    """
    sizes = {path: path.stat().st_size for path in run_dir.iterdir() if path.is_file()}
    checkpoints = [path.stat().st_size for path in (run_dir / "checkpoints").glob("update-*.npz")]
    between = min(checkpoints, default=0) // 2
    return between if draw.which < 0.5 and 2 * max(sizes.values(), default=0) < between else 0


def limit_files(processes: Sequence[Process], size: int = resource.RLIM_INFINITY) -> None:
    """Sets the largest size of files that these processes can write; without `size`, ends the limit.

    Not of mpirun, which the signal that comes with it (SIGXFSZ) would end; Python ignores that signal.
    """
    for process in processes:
        if process.what != MPIRUN:
            with contextlib.suppress(OSError):
                hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)[1]
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, hard))
