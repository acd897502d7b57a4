"""What a mutation is, and how it gets into a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class Mutant(NamedTuple):
    """One fault that tests must notice.

    Attributes:
        name: unique; the first word says which area it belongs to.
        path: of the file, from the root of the repository.
        old: exact text that occurs once in the file.
        new: what stands there instead.
        tests: node ids of pytest that must notice it, the fewest and fastest that do.
        why: what it would break, in one line.
    """

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str


def mutated(mutant: Mutant, source: str) -> str:
    """The text of the file with the fault in it.

    Raises:
        ValueError: the text to be replaced does not occur exactly once.
    """
    count = source.count(mutant.old)
    if count != 1:
        raise ValueError(f"{mutant.name}: {mutant.old!r} occurs {count} times in {mutant.path}, not once")
    return source.replace(mutant.old, mutant.new)


class Applied:
    """A context in which a mutant is in a tree; afterward its file is as it was.

    Python knows what it has compiled by the size and by the second of its source's last change. So a mutant's file gets
    another second, however fresh the file is, and afterward its own time back.

    Args:
        root: of the tree, a copy that nobody else uses.
    """

    def __init__(self, mutant: Mutant, root: Path):
        self._mutant, self._path = mutant, root / mutant.path

    def __enter__(self) -> None:
        self._status, self._source = self._path.stat(), self._path.read_bytes()
        self._path.write_text(mutated(self._mutant, self._source.decode()))
        os.utime(self._path, (self._status.st_atime, self._status.st_mtime + 1.0))

    def __exit__(self, *error: object) -> None:
        self._path.write_bytes(self._source)
        os.utime(self._path, ns=(self._status.st_atime_ns, self._status.st_mtime_ns))
