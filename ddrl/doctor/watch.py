"""Work that may hang in C code, as MPI_Init does when a rank is missing: a child does it, and this process watches.

No thread could: mpi4py holds the interpreter's lock while MPI starts.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable

from ddrl import programs

LOOK_SECONDS = 0.5
PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


class Overdue(Exception):
    """The child did not get as far as it should have in time, and was killed."""


class Died(Exception):
    """A signal ended the child: its number."""


def guarded(
    work: Callable[[Callable[[], None]], int],
    start_seconds: float,
    work_seconds: float,
    look: Callable[[], None] = lambda: None,
) -> int:
    """Runs `work(began)` in a child process; returns its status. The child has no threads and no MPI yet.

    Args:
        work: calls `began` when its start is over.
        start_seconds: time until then.
        work_seconds: time for the rest.
        look: called now and then until `began`; what it raises ends the child.

    Raises:
        Overdue: when one of the two times is over.
        Died: when a signal ended the child.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _child(lambda: work(lambda: _tell(writing)))
    os.close(writing)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        _watch(reading, start_seconds, work_seconds, look)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        child = 0
    finally:
        os.close(reading)
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    if status < 0:
        raise Died(-status)
    return status


def _watch(reading: int, start_seconds: float, work_seconds: float, look: Callable[[], None]) -> None:
    """Returns when the child has ended, which closes the pipe."""
    began, deadline = False, time.monotonic() + start_seconds
    while True:
        if select.select([reading], [], [], LOOK_SECONDS)[0]:
            if not os.read(reading, 1):
                return
            began, deadline = True, time.monotonic() + work_seconds
        if not began:
            look()
        if time.monotonic() > deadline:
            raise Overdue("the start" if not began else "the checks")


def _tell(writing: int) -> None:
    os.write(writing, b".")


def _child(work: Callable[[], int]) -> None:
    """Never returns: what its parent holds open or would clean up is not this process' affair."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    status = 1
    try:
        status = programs.run(work)
    except BaseException:  # noqa: BLE001 - a child reports whatever ends it, and ends
        traceback.print_exc()
    os._exit(status)
