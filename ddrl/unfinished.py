"""Where exports, videos, and unpacked studies are written until they are complete.

What killed processes have left there is removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from ddrl.files import new_file, open_regular, temporary_path
from ddrl.run_lock import boot_id

MOST_BYTES = 300  # of the file that names the machine


@contextlib.contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """Context manager that yields the place for a file or directory that is to be renamed to `path` once it is whole.

    The place has the name of `path`, so that writers know the format by it. It is in a new directory beside `path`,
    `.NAME.HEX.tmp`, in which nobody else can put a link, and which is removed in the end. Before that, such
    directories of processes that were killed on this machine since it was booted are removed. A process that lives
    keeps its own locked.

    Args:
        path: in an existing directory.

    Raises:
        OSError: nothing can be made beside `path`. Errors that would name the place name `path`.
    """
    for leftover in _beside(path):
        if _is_abandoned(leftover, path.name):
            shutil.rmtree(leftover, ignore_errors=True)
    directory = temporary_path(path)
    place = directory / path.name
    try:
        directory.mkdir(mode=0o700)
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            owner = stack.enter_context(os.fdopen(new_file(owner_of(place)), "wb", buffering=0))
            with contextlib.suppress(OSError):  # on a file system without locks no machine is named: it is in use
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                owner.write(_machine())
            yield place
    except OSError as error:
        if str(error.filename).startswith(str(directory)):  # which is soon gone, and means nothing to the user
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def check_place(path: Path) -> None:
    """Finds out, before minutes of work, whether the user may write in the directory of `path`, or in the one in which
    that would be made.

    Raises:
        OSError: the user may not write there; it has the path of the directory.
    """
    directory = next(each for each in path.absolute().parents if os.path.lexists(each))
    if not directory.is_dir():
        number = errno.ENOTDIR
    elif os.statvfs(directory).f_flag & os.ST_RDONLY:
        number = errno.EROFS
    elif not os.access(directory, os.W_OK | os.X_OK):
        number = errno.EACCES
    else:
        return
    raise OSError(number, os.strerror(number), str(directory))


def owner_of(place: Path) -> Path:
    """The file beside a place that the process which writes there keeps locked. It says on which machine that is."""
    return place.with_name(f"{place.name}.owner")  # whatever the place is called, it is another name


def _beside(path: Path) -> list[Path]:
    """The directories in which `path` is or was being written."""
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]+\.tmp")
    try:
        return [each for each in path.parent.iterdir() if name.fullmatch(each.name)]
    except OSError:
        return []


def _machine() -> bytes:
    """This machine until it is booted again; empty where the system does not say. Containers of one machine, and copies
    of a virtual one, may have the same boot."""
    boot = boot_id()
    return f"{boot} {socket.gethostname()}".encode() if boot else b""


def _is_abandoned(directory: Path, name: str) -> bool:
    """Whether the process that made it was on this machine, and has ended. Locks of other machines cannot always be
    seen, and one of them may have the same host name."""
    machine = _machine()
    try:
        with open_regular(owner_of(directory / name), follow=False) as owner:
            if not machine or owner.read(MOST_BYTES) != machine:
                return False
            fcntl.flock(owner, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: others may look at the same time
    except OSError:
        return False
    return True
