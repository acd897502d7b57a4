"""Reads files that others may have replaced, writes files whole or not at all, and syncs directories."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import stat
from pathlib import Path

NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV)
"""Errors of file systems without hard links, or without those from one directory to another."""
_IRREGULAR = "it is no regular file, but a directory, pipe or device"


def open_regular(path: Path, follow: bool = True) -> io.FileIO:
    """Opens a regular file to read its bytes, unbuffered. Opening a FIFO could wait forever, and a device has no end.

    Args:
        follow: follow a link.

    Raises:
        OSError: it cannot be opened, or is no regular file; `strerror` says which.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, _IRREGULAR, str(path))
    return io.FileIO(descriptor)


def read_regular(path: Path, most: int | None = None) -> bytes:
    """All bytes of a regular file.

    Args:
        most: bytes that it may have (None: any number); files of others may have more than there is memory.

    Raises:
        OSError: as `open_regular`, or the file is larger than `most`, or does not fit into memory.
    """
    try:
        with open_regular(path) as file:
            data = file.read(-1 if most is None else most + 1)
    except MemoryError as error:
        raise OSError(errno.ENOMEM, "it does not fit into memory", str(path)) from error
    if most is not None and len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return data


def tail(path: Path, most: int, follow: bool = True) -> bytes:
    """The last bytes of a file, at most `most`; empty if it cannot be read, or is a link that is not followed."""
    try:
        with open_regular(path, follow) as file:
            file.seek(-min(most, file.seek(0, io.SEEK_END)), io.SEEK_END)
            return file.read(most)
    except OSError:
        return b""


def append_regular(path: Path) -> io.FileIO:
    """Opens a regular file to append bytes, unbuffered, and makes it if there is none.

    In the directory of somebody else, a link may lead to any file of this user: it is not followed. A FIFO is not
    waited for.

    Raises:
        OSError: it cannot be opened, or is a link or no regular file; `strerror` says which.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o664)
    except OSError as error:
        why = {errno.ELOOP: "it is a link, which is not followed", errno.ENXIO: _IRREGULAR}.get(error.errno or 0)
        if why is None:
            raise
        raise OSError(errno.EINVAL, why, str(path)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, _IRREGULAR, str(path))
    return io.FileIO(descriptor, "a")


def cut_half_line(path: Path) -> None:
    """Cuts off a half-written last line, as a killed process or a full disk leaves.

    Raises:
        OSError: the file cannot be read or cut, or is a link.
    """
    with open_regular(path, follow=False) as file:
        file.seek(-min(1, file.seek(0, io.SEEK_END)), io.SEEK_END)
        whole = file.read(1) in (b"", b"\n")
    if not whole:
        with append_regular(path) as file:
            file.truncate(read_regular(path).rfind(b"\n") + 1)


def new_file(path: Path, mode: int = 0o644) -> int:
    """Descriptor of a new, empty file to write. An earlier file or link of that name is removed, and never followed.

    Raises:
        OSError: it cannot be made.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def leave_mark(path: Path) -> None:
    """Makes an empty file, which tells other processes something, unless there is a file.

    In the directory of somebody else, a link may lead to where this user wants no file: it is replaced.

    Raises:
        OSError: it cannot be made.
    """
    if not os.path.exists(path):
        with contextlib.suppress(FileExistsError):  # another process has just made it
            os.close(new_file(path, 0o664))


def temporary_path(path: Path) -> Path:
    """A new name beside a file, under which it is written before it is renamed: `.NAME.HEX.tmp`.

    No other process has this name, on any host: several ranks may write the same file at once.
    """
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def write_whole(path: Path, data: bytes, new: bool = False) -> None:
    """Writes a file whole or not at all: if writing is interrupted, an earlier file stays as it was.

    Args:
        new: do not replace an earlier file, which another process, also on another node, may have just written.

    Raises:
        FileExistsError: `new` is true, and there is a file of that name.
        OSError: the file cannot be written; the error has its path.
    """
    temporary = temporary_path(path)
    try:
        descriptor = new_file(temporary)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)  # else a node that goes down may leave an empty file in place of the one before
        if new:
            name_new(temporary, path)
        else:
            os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None
        raise


def name_new(temporary: Path, path: Path) -> None:
    """Renames a file or directory, unless there is one of the new name. Only an empty directory may be replaced.

    A look beforehand would not do: on a network file system, a node may believe for a minute that the name is free. The
    server decides about links and new files, and refuses to rename a directory to one that has files. On a file system
    without hard links, an empty file has the name for a moment, and stays if this process is killed then.

    Raises:
        FileExistsError: there is something of that name; the error has it.
        OSError: it cannot be renamed.
    """
    try:
        if temporary.is_dir():
            os.rename(temporary, path)
        else:
            _name_new_file(temporary, path)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY) or (error.errno == errno.ENOTDIR and os.path.lexists(path)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        raise


def _name_new_file(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        # Of several processes that make a new file, one can.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
        try:
            os.replace(temporary, path)
        except BaseException:
            if temporary.exists():  # it has not got its name
                path.unlink()
            raise
    else:
        with contextlib.suppress(OSError):  # the file has its name
            temporary.unlink()


def identity(path: Path) -> tuple[int, ...]:
    """Numbers of a file that change when it is written to or replaced: device, inode, size, and times.

    Raises:
        OSError: there is no such file, or its directory cannot be searched.
    """
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def sync_directory(directory: Path) -> None:
    """Syncs a directory, so that the names in it are on the disk, if its file system supports that."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a directory; then it is up to them to keep the rename.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
