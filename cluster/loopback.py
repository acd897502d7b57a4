"""Keeps an mpirun of this machine off the network: it then listens on the loopback only.

Open MPI 5.0's launcher listens on all interfaces, also where all ranks are on its own machine, and has no option that
says otherwise (open-mpi/ompi#14441). So whoever starts it moves its listening sockets, through descriptors that
Linux hands to the parent of a process (pidfd_getfd).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

FIRST_SECONDS = 60.0  # in which it begins to listen
MORE_SECONDS = 3.0  # after the first socket, in which the others come
POLL_SECONDS = 0.005
PIDFD_GETFD = 438  # of every architecture
BACKLOG = 128
LOOPBACK: dict[int, str] = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
ANY = ("0.0.0.0", "::")


def confine(process: int, refused: Callable[[], None] = lambda: None) -> threading.Thread:
    """Moves the sockets of a child process from all interfaces to the loopback, as soon as it has them.

    Where the system does not allow that, they stay where they are; `ddrl doctor` shows what listens.

    Args:
        process: number of the child process.
        refused: called in another thread if the system does not allow that.
    """
    thread = threading.Thread(target=_confine, args=(process, refused), name="loopback", daemon=True)
    thread.start()
    return thread


def _confine(process: int, refused: Callable[[], None]) -> None:
    try:
        _move_all(process)
    except AttributeError:
        refused()
    except OSError as error:
        if error.errno in (errno.EPERM, errno.ENOSYS):  # else the process has ended
            refused()


def _move_all(process: int) -> None:
    """Moves the sockets.

    Raises:
        OSError: the process has ended, or the system refuses.
        AttributeError: this system has no descriptors of processes.
    """
    end, settled = time.monotonic() + FIRST_SECONDS, False
    handle = os.pidfd_open(process)
    try:
        while time.monotonic() < end:
            for copy in listening(process, handle):
                with copy:
                    if copy.getsockname()[0] in ANY and has_loopback(copy.family):
                        _move(copy)
                if not settled:
                    end, settled = time.monotonic() + MORE_SECONDS, True
            time.sleep(POLL_SECONDS)
    finally:
        os.close(handle)


@functools.cache
def has_loopback(family: int) -> bool:
    """Whether there is a loopback address of that family; many containers have none of IPv6.

    A socket that cannot be bound there must not be shut down: it would then listen on all interfaces at another port.
    """
    try:
        with socket.socket(family) as one:
            one.bind((LOOPBACK[family], 0))
    except OSError:
        return False
    return True


def listening(process: int, handle: int) -> Iterator[socket.socket]:
    """Copies of the TCP sockets of a process that listen, for the caller to close.

    Args:
        handle: pidfd of the process.

    Raises:
        OSError: the process has ended, or is another user's.
    """
    for entry in os.listdir(f"/proc/{process}/fd"):
        if not _is_socket(f"/proc/{process}/fd/{entry}"):
            continue
        try:
            copy = socket.socket(fileno=_descriptor_of(handle, int(entry)))
        except OSError as error:
            if error.errno == errno.EBADF:  # closed since
                continue
            raise
        if copy.family in LOOPBACK and copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            yield copy
        else:
            copy.close()


def _is_socket(path: str) -> bool:
    try:
        return os.readlink(path).startswith("socket:")
    except OSError:  # closed since
        return False


def _descriptor_of(handle: int, number: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.syscall(PIDFD_GETFD, handle, number, 0)
    if descriptor < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return int(descriptor)


def _move(listener: socket.socket) -> None:
    """The process' own socket, as the copy is the same: it listens at the same port of the loopback from now on."""
    port = listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RD)
    with contextlib.suppress(OSError):  # one that was bound to a certain port stays where it is
        listener.bind((LOOPBACK[listener.family], port))
    listener.listen(BACKLOG)


def listeners() -> dict[str, list[int]]:
    """Addresses of this machine -> numbers of the processes that listen there, as far as /proc tells this user."""
    owners: dict[str, int] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")) if sys.platform == "linux" else ():
        with contextlib.suppress(OSError):
            for number in os.listdir(f"/proc/{entry}/fd"):
                with contextlib.suppress(OSError):
                    owners[os.readlink(f"/proc/{entry}/fd/{number}")] = int(entry)
    addresses: dict[str, list[int]] = {}
    for table in ("tcp", "tcp6"):
        for address, inode in _listening_rows(f"/proc/net/{table}"):
            if (owner := owners.get(f"socket:[{inode}]")) is not None:
                addresses.setdefault(address, []).append(owner)
    return addresses


def _listening_rows(path: str) -> Iterator[tuple[str, str]]:
    """(address, inode) of the rows of a table of sockets that listen."""
    with contextlib.suppress(OSError), open(path) as table:
        next(table)
        for words in map(str.split, table):
            if words[3] == "0A":
                yield _address(words[1].split(":")[0]), words[9]


def _address(digits: str) -> str:
    """'0100007F' -> '127.0.0.1': each four bytes are a number of this machine's order."""
    words = (int(digits[i : i + 8], 16) for i in range(0, len(digits), 8))
    data = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    return socket.inet_ntop(socket.AF_INET if len(data) == 4 else socket.AF_INET6, data)
