"""The lock of a run's or a study's directory, which whoever works there holds."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from ddrl.errors import UsageError
from ddrl.files import append_regular, open_regular, tail

LOCK = "lock"
"""Name of the file in the directory that is locked. It says which process locked it last, and on which host."""
BUSY_SECONDS = 0.5
"""How long a lock is tried again: whoever looks whether a run is still running holds it for a moment."""
REQUEUED_SECONDS = 120.0
"""How long after its start a process of a requeued Slurm job still waits for locks: a file server may keep those of a
lost node until its lease ends."""
STARTED = time.monotonic()
"""When this process started, to within its imports."""
LIVELY_SECONDS = 30.0
"""A run without a result that wrote within this time counts as running, even if its lock cannot be seen, as that of
another node."""
MOST_BYTES = 300
"""What is read of a lock's file."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_HOLDER = re.compile(rb"(\d{1,20}) ([\w.-]{1,255})\n", re.ASCII)


@contextlib.contextmanager
def locked(path: Path, refusal: str = "") -> Iterator[int]:
    """Context manager that locks a directory and yields the lock's file descriptor.

    The lock of a process that is killed is free again. mpirun inherits the lock of its run, and so still holds it after
    its launcher was killed. A lock that is held is tried again for BUSY_SECONDS, and in a Slurm job that was requeued
    for `lost_node_seconds`.

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
        _sign(path / LOCK, descriptor)
        yield descriptor


def is_held(path: Path) -> bool:
    """Whether a process has locked a directory; false on a file system without locks."""
    try:
        with open_regular(path / LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: others may look at the same time
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def holder(path: Path) -> str:
    """Who locked a directory last, such as 'process 4711 on node7'; empty if it is not known."""
    found = _HOLDER.fullmatch(tail(path / LOCK, MOST_BYTES))
    return f"process {found[1].decode()} on {found[2].decode()}" if found else ""


def is_lively(changed: float, log_every_seconds: float) -> bool:
    """Whether a run whose metrics changed at that time, in seconds since 1970, wrote them lately."""
    age = abs(time.time() - changed)  # after a clock was set back, files are from the future
    return age < max(LIVELY_SECONDS, 3 * log_every_seconds)


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


def boot_id() -> str:
    """The id that Linux draws at each boot, whatever the host name; empty where the system gives none. Containers that
    share a kernel mostly share it."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def lost_node_seconds() -> float:
    """Seconds for which this process still has to wait for locks, which a lost node may seem to hold; 0 unless it is in
    a Slurm job that was put back into the queue."""
    restarts = os.environ.get("SLURM_RESTART_COUNT", "")
    was_requeued = restarts.isdecimal() and int(restarts) > 0
    return max(0.0, STARTED + REQUEUED_SECONDS - time.monotonic()) if was_requeued else 0.0


def tell_of_wait(path: Path) -> None:
    """Says that this process waits for the lock of a directory for `lost_node_seconds`."""
    wait = f"this requeued job waits up to {lost_node_seconds():.0f} s, in case a lost node holds its lock"
    print(f"ddrl: {path} is in use by another process; {wait}", file=sys.stderr, flush=True)


def _sign(lock: Path, descriptor: int) -> None:
    """Writes into a lock's file who holds it, unless it has another text, which may be somebody's.

    An error is ignored: nothing but `holder` needs the text.
    """
    with contextlib.suppress(OSError):
        with open_regular(lock) as file:
            said = file.read(MOST_BYTES)
        if not said or _HOLDER.fullmatch(said):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode())


def _lock_of_a_lost_node(descriptor: int, path: Path) -> bool:
    """Waits for the lock for `lost_node_seconds`; returns whether it was taken."""
    seconds = lost_node_seconds()
    if not seconds:
        return False
    tell_of_wait(path)
    return flock(descriptor, seconds, 1.0) is not False
