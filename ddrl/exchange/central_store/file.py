"""The file behind a central store: its creation, checks of its owner, and locks on its bytes.

The file belongs to this user, and nobody else may read it: it is created with O_EXCL and mode 0600. Code that opens it
checks its owner and mode, because in a directory where everybody may write, anybody may have made a file of that name.

Locks are "open file description" locks on single bytes (fcntl, F_OFD_SETLK; Linux), which the kernel frees when their
owner dies. Plain POSIX record locks would be freed when the process closes the file anywhere, and would not exclude
each other between two stores of one process. An open file description outlives its owner in a forked child, and as long
as memory is mapped through it. So the memory is mapped through another one, and a child closes its copy as soon as it
is forked.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import struct
import tempfile
from pathlib import Path

from ddrl.errors import UsageError

CREATOR_BYTE, FIRST_CHUNK_BYTE = 0, 1  # bytes of the file that are locked: by the creator, and for chunk 0


def store_path(run_dir: str | Path) -> Path:
    """The path of a run's store, for all its processes on one host: in /dev/shm if there is one, which is memory."""
    name = hashlib.sha256(os.fsencode(Path(run_dir).resolve())).hexdigest()[:16]
    memory = Path("/dev/shm")
    return (memory if memory.is_dir() else Path(tempfile.gettempdir())) / f"ddrl-{os.geteuid()}-{name}"


def create_file(path: Path, nbytes: int, header: bytes) -> None:
    """Creates a file with `header` at its start and zeros after it; a file that a dead run left there is replaced.

    Raises:
        UsageError: if the file cannot be created, one with its name belongs to another user or to a run that is still
            going, or there is no room.
    """
    if has_living_creator(path):
        raise UsageError(
            f"the central store {path} belongs to a run that is still going; wait until it ends, or end it"
        )
    path.unlink(missing_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise UsageError(f"the central store {path} cannot be created: {error.strerror}") from None
    try:
        # Space is reserved now: a full file system would kill the process (SIGBUS) at a first write to the memory.
        os.posix_fallocate(descriptor, 0, nbytes)
        os.pwrite(descriptor, header, 0)
    except OSError as error:
        path.unlink()
        raise UsageError(
            f"the central store {path} needs {nbytes / 1e6:.0f} MB: {error.strerror}; "
            f"make room in {path.parent} (of a container: --shm-size), or use --exchange parameter_server"
        ) from None
    finally:
        os.close(descriptor)


def has_living_creator(path: Path) -> bool:
    """Whether the file exists, and the process that created it still holds its lock.

    Raises:
        UsageError: if other users may access the file, or the system has no such locks.
    """
    if not hasattr(fcntl, "F_OFD_GETLK"):
        raise UsageError("the central store needs locks that only Linux has; choose another --exchange")
    try:
        descriptor = open_own(path)
    except FileNotFoundError:
        return False
    try:
        answer = _lock_call(descriptor, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, CREATOR_BYTE)
        return struct.unpack_from("h", answer)[0] != fcntl.F_UNLCK
    finally:
        os.close(descriptor)


def open_own(path: Path) -> int:
    """Opens the file, if it is a regular file of this user that nobody else may access; returns its descriptor.

    Raises:
        FileNotFoundError: if there is no such file.
        UsageError: if the file cannot be opened, is no regular file, or other users may access it.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        reason = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise UsageError(f"the central store {path} cannot be opened: {reason}; remove it") from None
    status = os.fstat(descriptor)
    wrong = None
    if not stat.S_ISREG(status.st_mode):
        wrong = "is not a regular file"
    elif status.st_uid != os.geteuid():
        wrong = f"belongs to user {status.st_uid}, not to {os.geteuid()}"
    elif stat.S_IMODE(status.st_mode) != 0o600:
        wrong = f"has mode {stat.S_IMODE(status.st_mode):04o}, not 0600"
    if wrong:
        os.close(descriptor)
        raise UsageError(f"the central store {path} {wrong}: remove it, or name another directory")
    return descriptor


def try_lock(descriptor: int, byte: int) -> bool:
    """Locks a byte of the file if it is not locked; returns whether it has done so."""
    try:
        _lock_call(descriptor, fcntl.F_OFD_SETLK, fcntl.F_WRLCK, byte)
    except (BlockingIOError, PermissionError):  # EAGAIN, EACCES
        return False
    return True


def unlock(descriptor: int, byte: int) -> None:
    """Unlocks a byte of the file."""
    _lock_call(descriptor, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, byte)


def _lock_call(descriptor: int, command: int, kind: int, byte: int) -> bytes:
    # struct flock: type, whence, start, length, process (0 for these locks), padded as in C.
    return fcntl.fcntl(descriptor, command, struct.pack("hhqqi0q", kind, os.SEEK_SET, byte, 1, 0))
