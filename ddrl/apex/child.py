"""A child process and the frames of bytes that pass over two pipes between it and its parent, which never waits.

A frame is a header with its kind, a number and the length of its data, and then the data. Nothing is pickled.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import os
import signal
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cluster.launch import local_environment
from cluster.roles import Assignment
from ddrl.programs import python_command

HEADER = struct.Struct("<iqq")
READ_BYTES = 1 << 20
F_SETPIPE_SZ = 1031  # <fcntl.h> of Linux
PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
LARGEST_BYTES = 1 << 33  # of the data of a frame; a header that says more is no header
KILL_SECONDS = 10.0  # for which the parent waits for the end of a killed process


class Frame(enum.IntEnum):
    """Kind of a frame."""

    PARAMETERS = 1  # to an actor's child: a version, and the vector <float32>[N]
    REFRESH = 2  # from it: which version it has, to ask for a newer one
    SEGMENT = 3  # from it: transitions
    REPORT = 4  # from it: metrics (JSON)
    COMPLAINT = 5  # from it: a line to be noted
    TAKEN = 6  # to it: how many of its segments have gone to a shard
    FAILURE = 7  # from it, at last: the error that ends it (JSON)


class Received(NamedTuple):
    """A frame."""

    kind: Frame
    number: int
    data: bytes


class FrameReader:
    """Puts frames together from whatever pieces come."""

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, data: bytes) -> None:
        """Takes bytes."""
        self._data += data

    def next(self) -> Received | None:
        """The next whole frame.

        Raises:
            ValueError: what came is no frame.
        """
        if len(self._data) < HEADER.size:
            return None
        kind, number, size = _header(self._data[: HEADER.size])
        if len(self._data) < HEADER.size + size:
            return None
        frame = Received(kind, number, bytes(self._data[HEADER.size : HEADER.size + size]))
        del self._data[: HEADER.size + size]
        return frame


class Child:
    """A process that was started with `python -m MODULE ARGUMENTS... READ WRITE`.

    READ and WRITE are the descriptors of its two pipes. When the parent ends, the pipes close and the process ends, too
    (see `end_with_parent`).
    """

    def __init__(self, module: str, arguments: Sequence[str], environment: Mapping[str, str]):
        theirs_in, self._write = os.pipe()
        self._read, theirs_out = os.pipe()
        for descriptor in (self._read, self._write):
            os.set_blocking(descriptor, False)
            _widen(descriptor)
        try:
            self.process = subprocess.Popen(
                [*python_command(module), *arguments, str(theirs_in), str(theirs_out)],
                stdin=subprocess.DEVNULL,
                env=dict(environment),
                pass_fds=(theirs_in, theirs_out),
            )
        except OSError:
            os.close(self._read)
            os.close(self._write)
            raise
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        self._reader = FrameReader()
        self._outgoing: deque[memoryview] = deque()

    def send(self, kind: Frame, number: int, data: Any = b"") -> None:
        """Sends a frame when there is room in the pipe; `data` must not change."""
        view = memoryview(data).cast("B")
        self._outgoing.append(memoryview(HEADER.pack(kind, number, view.nbytes)))
        self._outgoing.append(view)
        self.flush()

    def flush(self) -> None:
        """Sends what there is room for."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._outgoing:
                sent = os.write(self._write, self._outgoing[0])
                if sent < self._outgoing[0].nbytes:
                    self._outgoing[0] = self._outgoing[0][sent:]
                else:
                    self._outgoing.popleft()

    def receive(self) -> Received | None:
        """A whole frame, if there is one. As long as nobody calls this, the child waits when its pipe is full."""
        frame = self._reader.next()
        if frame is not None:
            return frame
        try:
            self._reader.add(os.read(self._read, READ_BYTES))
        except BlockingIOError:
            return None
        return self._reader.next()

    def last_words(self) -> list[Received]:
        """The whole frames that a child that has ended has left in its pipe.

        Raises:
            ValueError: what came is no frame.
        """
        frames = []
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._read, READ_BYTES):
                self._reader.add(data)
        while (frame := self._reader.next()) is not None:
            frames.append(frame)
        return frames

    def status(self) -> int | None:
        """Its exit status once it has ended, negative where a signal ended it."""
        return self.process.poll()

    def end(self) -> None:
        """Kills the process, which has nothing to save."""
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel, as on a file system that is lost
            self.process.wait(KILL_SECONDS)
        os.close(self._read)
        os.close(self._write)


def acting_process(run_dir: Path, assignment: Assignment) -> Callable[[int, int], Child]:
    """A function (run_id, agent steps so far) -> the process that acts for an actor, see `ddrl.apex.acting`."""

    def start(run_id: int, agent_steps: int) -> Child:
        numbers = (assignment.index, run_id, agent_steps, assignment.cores, os.getpid())
        return Child("ddrl.apex.acting", [str(run_dir), *map(str, numbers)], local_environment(os.environ))

    return start


def end_with_parent(parent: int) -> None:
    """Makes this process end when process `parent`, which started it, ends: at once on Linux, else with its pipe.

    It ignores the signals that ask a whole job to stop (SIGTERM and the like), which are for the parent.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def write_frame(descriptor: int, kind: Frame, number: int, data: bytes = b"") -> None:
    """Sends a frame, and waits for room. Raises BrokenPipeError when the other end is gone."""
    for part in (HEADER.pack(kind, number, len(data)), data):
        view = memoryview(part)
        while view:
            view = view[os.write(descriptor, view) :]


def read_frame(descriptor: int) -> Received | None:
    """Waits for a frame; None when the other end is gone, also in the middle of one.

    Raises:
        ValueError: what came is no frame.
    """
    header = _read_bytes(descriptor, HEADER.size)
    if header is None:
        return None
    kind, number, size = _header(header)
    data = _read_bytes(descriptor, size)
    return None if data is None else Received(kind, number, data)


def _header(data: bytes | bytearray) -> tuple[Frame, int, int]:
    """Kind, number and length of the data, from a frame's header."""
    kind, number, size = HEADER.unpack(data)
    if not 0 <= size <= LARGEST_BYTES:
        raise ValueError(f"a frame of {size} bytes")
    return Frame(kind), number, size


def _read_bytes(descriptor: int, size: int) -> bytes | None:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = os.readv(descriptor, [view])
        if not count:
            return None
        view = view[count:]
    return data


def _widen(descriptor: int) -> None:
    """Enlarges a pipe, which has 64 KB at first on Linux; where no more is allowed, that will do."""
    if sys.platform == "linux":
        import fcntl

        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, F_SETPIPE_SZ, READ_BYTES)
