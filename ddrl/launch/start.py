"""The start of a rank, before MPI: the note that it leaves, and the end of its wait for the others.

MPI_Init waits for all ranks, for ever, and holds the interpreter meanwhile: only a thread that needs no
interpreter (faulthandler's) can end it. Standard library only, so that it comes before anything that may fail.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import socket
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

START_SECONDS = 300.0  # imports, environments and MPI on a slow file system
MARGIN_SECONDS = 30.0  # by which a launcher that can name the missing ranks is earlier than the ranks themselves
RANKS = "ranks"


def leave_note(run_dir: Path, rank: int) -> None:
    """Writes RUN/ranks/RANK: the process that this rank is. A directory that cannot be written costs the note."""
    with contextlib.suppress(OSError):
        (run_dir / RANKS).mkdir(exist_ok=True)
        note = {"pid": os.getpid(), "host": socket.gethostname()}
        (run_dir / RANKS / str(rank)).write_text(json.dumps(note))


def notes(run_dir: Path) -> dict[int, tuple[str, int]]:
    """Rank -> host and process id, of the ranks that have begun."""
    found = {}
    for path in run_dir.glob(f"{RANKS}/*"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            content = json.loads(path.read_text())
            found[int(path.name)] = (str(content["host"]), int(content["pid"]))
    return found


def clear_notes(run_dir: Path) -> None:
    """Removes the notes of an earlier start."""
    for path in run_dir.glob(f"{RANKS}/*"):
        path.unlink(missing_ok=True)


def missing(run_dir: Path, ranks: int) -> list[int]:
    """Ranks that have not begun."""
    return sorted(set(range(ranks)) - set(notes(run_dir)))


def gone(run_dir: Path, living: Collection[int]) -> list[int]:
    """Ranks that have begun on this host and are none of its living processes any more."""
    here = socket.gethostname()
    return sorted(rank for rank, (host, pid) in notes(run_dir).items() if host == here and pid not in living)


@contextlib.contextmanager
def bounded_start(seconds: float = START_SECONDS + MARGIN_SECONDS) -> Iterator[None]:
    """Around the import of mpi4py.MPI: a rank that waits longer writes its stacks to standard error, and exits."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
