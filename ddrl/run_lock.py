"""The lock of a run's or a study's directory, which whoever works there holds."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from ddrl.errors import UsageError
from ddrl.files import append_regular

LOCK = "lock"
"""Name of the file in the directory that is locked."""
BUSY_SECONDS = 0.5
"""How long a lock is tried again: whoever looks whether a run is still running holds it for a moment."""
REQUEUED_SECONDS = 120.0
"""How much longer a requeued Slurm job tries: a file server may keep the lock of a lost node until its lease ends."""


@contextlib.contextmanager
def locked(path: Path, refusal: str = "") -> Iterator[int]:
    """Context manager that locks a directory and yields the lock's file descriptor.

    The lock of a process that is killed is free again. mpirun inherits the lock of its run, and so still holds it after
    its launcher was killed. A lock that is held is tried again for BUSY_SECONDS, and in a Slurm job that was requeued
    for REQUEUED_SECONDS more.

    Args:
        path: directory of a run or a study.
        refusal: message of the error if another process holds the lock (empty: that it trains the run).

    Raises:
        UsageError: another process holds the lock, or the directory cannot be written.
    """
    try:
        lock = append_regular(path / LOCK)
    except OSError as error:
        raise UsageError(f"cannot write {path / LOCK}: {error.strerror}") from error
    with lock:
        descriptor = lock.fileno()
        if flock(descriptor, BUSY_SECONDS, 0.05) is False and not _lock_of_a_lost_node(descriptor, path):
            raise UsageError(refusal or f"{path} is being trained by another process: stop that one first")
        yield descriptor


def flock(descriptor: int, seconds: float, pause: float) -> bool | None:
    """Locks an open file, and tries again for so many seconds while another process holds the lock.

    Args:
        pause: seconds between two attempts.

    Returns:
        Whether the lock was taken; None on a file system without locks.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
        except OSError:
            return None
        time.sleep(pause)


def was_requeued() -> bool:
    """Whether this process is in a Slurm job that was put back into the queue."""
    restarts = os.environ.get("SLURM_RESTART_COUNT", "")
    return restarts.isdecimal() and int(restarts) > 0


def _lock_of_a_lost_node(descriptor: int, path: Path) -> bool:
    """In a Slurm job that was requeued, waits for the lock, which a node that was lost may seem to hold for a while.

    Returns:
        Whether the lock was taken; false at once in any other process.
    """
    if not was_requeued():
        return False
    wait = f"this requeued job waits up to {REQUEUED_SECONDS / 60:g} minutes, in case a lost node holds its lock"
    print(f"ddrl: {path} is in use by another process; {wait}", file=sys.stderr, flush=True)
    return flock(descriptor, REQUEUED_SECONDS, 1.0) is not False
