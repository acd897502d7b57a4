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
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

MARGIN_SECONDS = 30.0  # by which a launcher that can name the missing ranks is earlier than the ranks themselves
RANKS = "ranks"


BEGUN, AT_MPI, IN_JOB = 0, 1, 2
"""How far a rank has come: Python runs; it waits in MPI for the others; MPI knows all of them, and who dies."""


class Note(NamedTuple):
    """Which process a rank is, and how far it has come."""

    host: str
    pid: int
    stage: int


def leave_note(run_dir: Path, environ: Mapping[str, str], stage: int) -> None:
    """Writes RUN/ranks/RANK, a Note; in a job of one process, none. A directory that takes nothing costs the note.

    Args:
        run_dir: where it is not there, there is no note.
        environ: variables of this rank.
        stage: how far it has come.
    """
    rank = environ.get("OMPI_COMM_WORLD_RANK", environ.get("PMI_RANK", ""))
    if not rank:
        return
    with contextlib.suppress(OSError):
        (run_dir / RANKS).mkdir(exist_ok=True)
        note = Note(socket.gethostname(), os.getpid(), stage)
        (run_dir / RANKS / rank).write_text(json.dumps(note._asdict()))


def notes(run_dir: Path) -> dict[int, Note]:
    """By rank, of those that have begun."""
    by_rank = {}
    for path in _paths(run_dir):
        with contextlib.suppress(OSError, ValueError, TypeError):
            by_rank[int(path.name)] = Note(**json.loads(path.read_text()))
    return by_rank


def clear_notes(run_dir: Path) -> None:
    """Removes the notes of an earlier start."""
    for path in _paths(run_dir):
        path.unlink(missing_ok=True)


def _paths(run_dir: Path) -> list[Path]:
    try:
        return [run_dir / RANKS / name for name in os.listdir(run_dir / RANKS)]
    except OSError:
        return []


def missing(run_dir: Path, ranks: int) -> list[int]:
    """Ranks that have not come as far as MPI; none if all have, and one hangs there."""
    return sorted(set(range(ranks)) - {rank for rank, note in notes(run_dir).items() if note.stage >= AT_MPI})


def gone(run_dir: Path, living: Collection[int]) -> dict[int, Note]:
    """Ranks that began on this host and are none of its living processes any more; none where there is no /proc."""
    here = socket.gethostname() if os.path.exists("/proc/self/stat") else None
    return {rank: note for rank, note in sorted(notes(run_dir).items()) if note.host == here and note.pid not in living}


@contextlib.contextmanager
def bounded_start(seconds: float) -> Iterator[None]:
    """Around the import of mpi4py.MPI: a rank that waits longer writes its stacks to standard error, and exits."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or sys.stderr)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
