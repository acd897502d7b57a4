"""The directory in which one mpirun and its ranks keep their files, which is gone when they are, however they ended."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path
from types import TracebackType

PREFIX = "ddrl-mpirun-"
UNOWNED = ".ddrl-mpirun-"  # of a directory that is being made
MAKING_SECONDS = 60.0  # after which nobody makes one any more
OWNER = "owner"
SHARED_MEMORY = "/dev/shm"
SESSION_DIRECTORY = "PRTE_MCA_prte_tmpdir_base"  # of Open MPI 5
SEGMENT_DIRECTORY = "OMPI_MCA_btl_sm_backing_directory"


class SessionFiles:
    """Makes a directory, and sweeps those whose owners are dead.

    Open MPI's own default is named after mpirun's process number, and is left behind when mpirun is killed: a later one
    of the same number then does not start ("The PMIx server's listener thread failed to start"). Its segments in shared
    memory are left behind, too.

    The owners hold a lock: this process, and whatever it gives `lock` to. So a directory whose lock can be had has no
    owner any more.

    Attributes:
        path: of the directory, in shared memory where there is some.
        lock: descriptor to pass on to mpirun.
    """

    def __init__(self, base: str = "") -> None:
        base = base or next(filter(_writable, (SHARED_MEMORY, tempfile.gettempdir())), tempfile.gettempdir())
        sweep(base)
        made = tempfile.mkdtemp(prefix=UNOWNED, dir=base)
        self.lock = os.open(os.path.join(made, OWNER), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.path = os.path.join(base, PREFIX + os.path.basename(made).removeprefix(UNOWNED))
        os.rename(made, self.path)

    @property
    def variables(self) -> dict[str, str]:
        """What tells an mpirun and its ranks of the directory."""
        return {SESSION_DIRECTORY: self.path, SEGMENT_DIRECTORY: self.path}

    def close(self) -> None:
        """Removes the directory; whoever still uses a file of it keeps that."""
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self.lock)

    def __enter__(self) -> SessionFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _writable(path: str) -> bool:
    return os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)


def sweep(base: str) -> None:
    """Removes what dead owners of the same user left in `base`. Of others, and of what is no directory, nothing."""
    for path in [*Path(base).glob(PREFIX + "*"), *Path(base).glob(UNOWNED + "*")]:
        with contextlib.suppress(OSError):
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and _unowned(path, status.st_mtime):
                shutil.rmtree(path, ignore_errors=True)


def _unowned(path: Path, changed: float) -> bool:
    """Raises OSError where that cannot be known."""
    if path.name.startswith(UNOWNED):
        return time.time() > changed + MAKING_SECONDS
    try:
        lock = os.open(path / OWNER, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True  # whoever removed it was killed meanwhile
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
