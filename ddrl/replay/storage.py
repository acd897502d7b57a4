"""Files of a replay: its ring of rows in a few segments, each in a file that is written again only when it has changed.

A file holds the bytes of several arrays one after the other; its name, size and SHA-256 are in the manifest. Files are
written beside their place, synced and renamed, and no name in a manifest is ever used again, so an older manifest stays
good for as long as its files are there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ddrl.errors import UsageError, read_as
from ddrl.files import new_file, open_regular, sync_directory, temporary_path
from ddrl.replay.history import History

SEGMENTS = 16  # files for a whole ring, at most
SEGMENT_BYTES = 64 << 20  # least size of a file, if there is as much to save
PIECE_BYTES = 16 << 20  # hashed and written at a time
OTHER = "resume from another checkpoint"

_NAME = re.compile(r"\.?replay-(\d{6,})-(rows-\d{2}|weights)\.bin((\.[0-9a-f]+)?\.tmp)?")


def save_rows(
    directory: Path, number: int, history: History, previous: Mapping[str, Any] | None, working: Callable[[], object]
) -> list[dict[str, Any]]:
    """Writes the segments that have changed.

    Args:
        directory: an existing directory.
        number: number of this save, for the names of the files.
        previous: what the last save's manifest says, with its `head` and `segments` (None: write all).
        working: as for `write`.

    Returns:
        an entry for each segment: start, stop (rows of the ring), name, bytes and sha256.
    """
    entries: list[dict[str, Any]] = []
    changed = _changed_rows(history, previous["head"] if previous else None)
    for index, (start, stop) in enumerate(_segments(history)):
        old = previous["segments"][index : index + 1] if previous else []
        if old and not ((changed >= start) & (changed < stop)).any() and is_there(directory, old[0]):
            entries += old
            continue
        arrays = [array[start:stop] for array in history.rows]
        entry = write(directory, f"replay-{number:06d}-rows-{index:02d}.bin", arrays, working)
        entries.append({"start": start, "stop": stop, **entry})
    return entries


def load_rows(directory: Path, history: History, entries: Sequence[Mapping[str, Any]]) -> None:
    """Fills the ring from the files of `save_rows`.

    Raises:
        UsageError: a file is missing or damaged.
        ValueError: together the files do not hold the rows up to the head.
    """
    stops = [0, *(entry["stop"] for entry in entries)]
    if [entry["start"] for entry in entries] != stops[:-1] or stops[-1] != min(history.head + 1, history.length):
        raise ValueError(f"files up to row {stops[-1]}, and the head is {history.head}")
    for entry in entries:
        read(directory, entry, [array[entry["start"] : entry["stop"]] for array in history.rows])


def write(
    directory: Path, name: str, arrays: Sequence[np.ndarray], working: Callable[[], object] = lambda: None
) -> dict[str, Any]:
    """Writes a file of C-contiguous arrays; returns its entry for a manifest: name, bytes and sha256.

    Args:
        directory: an existing directory.
        name: of the file, which is replaced.
        arrays: one after the other.
        working: called after each piece, since gigabytes take minutes.
    """
    temporary, digest, size = temporary_path(directory / name), hashlib.sha256(), 0
    try:
        descriptor = new_file(temporary)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            for piece in _pieces(arrays):
                digest.update(piece)
                size += len(piece)
                while len(piece):
                    piece = piece[file.write(piece) :]
                working()
            os.fsync(descriptor)
        os.replace(temporary, directory / name)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return {"name": name, "bytes": size, "sha256": digest.hexdigest()}


def read(directory: Path, entry: Mapping[str, Any], arrays: Sequence[np.ndarray] | None = None) -> None:
    """Fills C-contiguous arrays from a file of `write`, or only checks the file.

    Args:
        directory: of the file.
        entry: what `write` returned.
        arrays: of as many bytes together as the file (None: it is only checked).

    Raises:
        UsageError: the file is missing or damaged.
    """
    path, digest = directory / entry["name"], hashlib.sha256()
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if not size == entry["bytes"] == (size if arrays is None else sum(array.nbytes for array in arrays)):
                raise UsageError(f"replay file {path} has {size} bytes, not {entry['bytes']}: {OTHER}")
            for piece in _passing(size) if arrays is None else _pieces(arrays):
                left = piece
                while len(left) and (count := file.readinto(left)):
                    left = left[count:]
                digest.update(piece)
    except OSError as error:
        raise UsageError(f"cannot read replay file {path}: {error.strerror}; {OTHER}") from error
    if digest.hexdigest() != entry["sha256"]:
        raise UsageError(f"replay file {path} is damaged (its SHA-256 does not match): {OTHER}")


@contextlib.contextmanager
def new_save(directory: Path) -> Iterator[int]:
    """Makes a replay's directory and gives the number of a new save: one more than that of any save there.

    If the save fails, its files are deleted. No manifest names them, and they would take the room of later saves, none
    of which may then succeed and clean up.

    Raises:
        UsageError: a file cannot be written.
    """
    try:
        for made in (directory.parent, directory):  # not the run directory: a lost one is not made anew
            made.mkdir(exist_ok=True)
        number = 1 + max(_numbers(directory).values(), default=0)
        try:
            yield number
        except BaseException:
            with contextlib.suppress(OSError):
                for name, of in _numbers(directory).items():
                    if of == number:
                        (directory / name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError(f"cannot save the replay in {directory}: {error.strerror}; make room there") from error


def _numbers(directory: Path) -> dict[str, int]:
    """Name of each file of a save in a directory -> the number of that save."""
    return {name: int(match[1]) for name in os.listdir(directory) if (match := _NAME.fullmatch(name))}


Named = Callable[[], set[str] | None]
"""Gives the names of a replay's files that checkpoints on disk need; None if that cannot be known."""


def nothing_named() -> set[str]:
    """The `Named` of a replay without checkpoints, which need no files."""
    return set()


def finish(directory: Path, needed: set[str], named: Named) -> None:
    """Syncs the directory, so that renames last, and deletes files that no save and no checkpoint needs.

    If it cannot be known which files checkpoints need, all files stay.

    Args:
        directory: of the files.
        needed: names of the files that the last saves need.
        named: gives the names of the files that checkpoints on disk need.
    """
    sync_directory(directory)
    others = named()
    if others is None:
        return
    for name in os.listdir(directory):
        if _NAME.fullmatch(name) and name not in needed | others:
            (directory / name).unlink(missing_ok=True)


def facts_in(manifest: np.ndarray) -> dict[str, Any]:
    """The facts in a manifest of `Replay.save` or `ShardReplay.save`, which are JSON as bytes.

    Raises:
        UsageError: it is no such manifest, or has names that files of a replay cannot have.
    """
    with read_as("the manifest of a replay", OTHER):
        facts = json.loads(manifest.tobytes())
        for entry in entries_of(facts):
            named = isinstance(entry["name"], str) and _NAME.fullmatch(entry["name"])
            numbers = [entry[name] for name in ("bytes", "start", "stop", "part") if name in entry]
            if not named or not all(type(number) is int and number >= 0 for number in [entry["bytes"], *numbers]):
                raise ValueError(f"an entry {entry!r:.80}")
        return facts


def check_same(saved: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    """Checks that a saved replay is of the same kind as this run's replay.

    Args:
        saved: facts of the saved replay, by name.
        present: facts of this run's replay.

    Raises:
        UsageError: they differ; the message names the first that does.
    """
    for name, value in present.items():
        if saved.get(name) != value:
            raise UsageError(
                f"the saved replay has {name.replace('_', ' ')} {saved.get(name)}, this run has {value}: resume with "
                "the settings of the checkpoint"
            )


def within(value: Any, most: int) -> int:
    """`value`, a number of a manifest. Raises ValueError if it is no whole number from 0 to `most`."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{value!r:.40} is not in 0 to {most}")
    return value


def entries_in(manifest: np.ndarray) -> list[dict[str, Any]]:
    """The entries of all files that a manifest names. Raises UsageError as `facts_in`."""
    return entries_of(facts_in(manifest))


def entries_of(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The entries of all files of a save, by its facts: parts of a replay or of a shard, then the file of the rest."""
    return [*facts.get("segments", []), *facts.get("parts", []), facts.get("weights", facts.get("rest"))]


def check_size(directory: Path, entry: Mapping[str, Any]) -> None:
    """As `read`, without reading the file: only its size is compared.

    Raises:
        UsageError: the file is missing, or has another size.
    """
    if not is_there(directory, entry):
        path = directory / entry["name"]
        raise UsageError(f"replay file {path} is missing, or has not {entry['bytes']} bytes: {OTHER}")


def _segments(history: History) -> list[tuple[int, int]]:
    """The segments of the rows that have been written: (start, stop) in rows of the ring."""
    row_bytes = sum(array[0].nbytes for array in history.rows)
    length = max(-(-history.length // SEGMENTS), -(-SEGMENT_BYTES // row_bytes))
    filled = min(history.head + 1, history.length)
    return [(start, min(start + length, filled)) for start in range(0, filled, length)]


def _changed_rows(history: History, saved_head: int | None) -> np.ndarray:
    """Rows of the ring that were written since the head was `saved_head`."""
    if saved_head == history.head:
        return np.zeros(0, np.int64)
    # The row before the open one is written again if the episodes under way are cut off.
    first = 0 if saved_head is None else saved_head - 1
    return np.arange(max(0, first, history.head + 1 - history.length), history.head + 1) % history.length


def is_there(directory: Path, entry: Mapping[str, Any]) -> bool:
    """Whether the file of an entry is, by its name and size, still where `write` put it."""
    try:
        return (directory / entry["name"]).stat().st_size == entry["bytes"]
    except OSError:
        return False


def _pieces(arrays: Sequence[np.ndarray]) -> Iterator[memoryview]:
    for array in arrays:
        data = array.reshape(-1).view(np.uint8).data
        for start in range(0, len(data), PIECE_BYTES):
            yield data[start : start + PIECE_BYTES]


def _passing(size: int) -> Iterator[memoryview]:
    """Pieces that have `size` bytes together, all in the same memory."""
    memory = memoryview(bytearray(min(size, PIECE_BYTES)))
    for start in range(0, size, PIECE_BYTES):
        yield memory[: size - start]
