"""The start of a rank, before MPI: notes that tell how far each rank has come, and a limit on its wait for the others.

MPI_Init waits for all ranks without a limit, and holds Python's global interpreter lock meanwhile: only a thread that
does not need this lock, such as that of faulthandler, can end the wait. This module, `cluster.job`, and `ddrl.files`
need only the standard library, so that they can run before anything that may fail.
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

from cluster.job import detect_job
from ddrl.files import new_file, read_regular

MARGIN_SECONDS = 30.0  # the launcher gives up so long before the ranks do, since it can name those that are missing
RANKS = "ranks"


BEGUN, AT_MPI, IN_JOB = 0, 1, 2
"""Stages of a rank's start: Python runs; the rank is at MPI, where it waits for the others; it is in the job, in which
MPI knows all ranks, and which of them die."""


class Note(NamedTuple):
    """A note about a rank: its host and process, how far its start has come, and its name once it has a role.

    `job.sh` searches the text of these files for hosts, to find the names of ranks.
    """

    host: str
    pid: int
    stage: int
    name: str = ""


def leave_note(run_dir: Path, environ: Mapping[str, str], stage: int, name: str = "") -> None:
    """Writes RUN/ranks/RANK, a Note, except in a job of one process. An error in writing is ignored.

    In the directory of somebody else, a link may lead to any file of this user: it is not followed.

    Args:
        run_dir: the run directory; if it does not exist, no note is written.
        environ: environment variables of this rank.
        stage: how far the rank's start has come.
        name: name of the rank, such as 'worker 1 (rank 2)'; empty while it has no role yet.
    """
    job = detect_job(environ)
    if job is None:
        return
    note, directory = Note(socket.gethostname(), os.getpid(), stage, name), run_dir / RANKS
    with contextlib.suppress(OSError):
        directory.mkdir(exist_ok=True)
        if not directory.is_symlink():
            with open(new_file(directory / str(job.rank)), "w") as file:
                file.write(json.dumps(note._asdict()) + "\n")


def notes(run_dir: Path) -> dict[int, Note]:
    """The notes of all ranks that have written one, by rank."""
    by_rank = {}
    for path in _paths(run_dir):
        with contextlib.suppress(OSError, ValueError, TypeError):
            by_rank[int(path.name)] = Note(**json.loads(read_regular(path)))
    return by_rank


def clear_notes(run_dir: Path) -> None:
    """Removes the notes of an earlier start, and no other files."""
    for path in _paths(run_dir):
        path.unlink(missing_ok=True)


def _paths(run_dir: Path) -> list[Path]:
    """The files of notes; none if a link is in the place of their directory."""
    directory = run_dir / RANKS
    try:
        names = [] if directory.is_symlink() else os.listdir(directory)
    except OSError:
        return []
    return [directory / name for name in names if name.isdecimal()]


def missing(run_dir: Path, ranks: int) -> list[int]:
    """The ranks that have not reached MPI; the list is empty if all have reached it, even if one hangs there."""
    return sorted(set(range(ranks)) - {rank for rank, note in notes(run_dir).items() if note.stage >= AT_MPI})


def gone(run_dir: Path, living: Collection[int]) -> dict[int, Note]:
    """The ranks that began on this host and are not among its `living` processes any more."""
    here = socket.gethostname()
    return {rank: note for rank, note in sorted(notes(run_dir).items()) if note.host == here and note.pid not in living}


@contextlib.contextmanager
def bounded_start(seconds: float) -> Iterator[None]:
    """A context in which a rank may wait for the others, as in the import of mpi4py.MPI, but no longer than `seconds`.

    After that time it writes its stacks to standard error, and exits.
    """
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or sys.stderr)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
