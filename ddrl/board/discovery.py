"""Which directories are runs: those that are named, and all that are below them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from ddrl import rundir
from ddrl.errors import UsageError
from ddrl.files import open_regular

DEEPEST = 6
"""Levels below a directory that is named: a study of studies has its runs four levels down."""
MOST_DIRECTORIES = 20_000
"""Directories that are looked into in one search; a home directory with more holds no runs that anybody looks for."""


def find_runs(roots: Sequence[Path], known: Collection[Path] = ()) -> dict[Path, str]:
    """Directory of each run -> its name, which is what tells it from the others.

    Args:
        roots: runs, or directories that hold some at any level. What cannot be read is left out.
        known: directories that were runs before; of these it is enough that they still have settings.
    """
    found: dict[Path, str] = {}
    seen: set[tuple[int, int]] = set()
    for root in roots:
        for path in _below(root, DEEPEST, seen, known):
            inner = os.path.relpath(path, root)
            own = str(root) if len(roots) > 1 else root.resolve().name
            found[path] = own if inner == "." else inner if len(roots) == 1 else os.path.join(own, inner)
    return found


def check_roots(roots: Sequence[Path]) -> None:
    """Every directory that is named must be one that can be read.

    Raises:
        UsageError: it is not there, is no directory, or holds no run.
    """
    for root in roots:
        if not root.is_dir():
            why = "is no directory" if root.exists() else "does not exist"
            raise UsageError(f"{root} {why}: name directories of runs, or one that holds them (ddrl board runs)")
        if next(_below(root, DEEPEST, set()), None) is None:
            raise UsageError(
                f"{root} holds no run (a directory with a {rundir.CONFIG} of ddrl): start one with `ddrl train`, or "
                "name another directory"
            )


def is_run(path: Path) -> bool:
    """Whether a directory holds the settings of a run, of whatever version and however damaged."""
    try:
        with open_regular(path / rundir.CONFIG) as file:
            return b'"algorithm_name"' in file.read(1 << 16)
    except OSError:
        return False


def _below(directory: Path, levels: int, seen: set[tuple[int, int]], known: Collection[Path] = ()) -> Iterator[Path]:
    """Runs in and below a directory, each once; links are followed, and what was seen before is not looked at again."""
    try:
        status = directory.stat()
        if (status.st_dev, status.st_ino) in seen or len(seen) >= MOST_DIRECTORIES:
            return
        seen.add((status.st_dev, status.st_ino))
        if (directory / rundir.CONFIG).exists() if directory in known else is_run(directory):
            yield directory
            return
        inner = sorted(
            entry.name for entry in os.scandir(directory) if not entry.name.startswith(".") and entry.is_dir()
        )
    except OSError:
        return
    for name in inner if levels else ():
        yield from _below(directory / name, levels - 1, seen, known)
