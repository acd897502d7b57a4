"""Parameters and optimizer slots in memory that the processes of one host share, in chunks with a lock each.

This is the asynchronous central store of Stooke and Abbeel 2018, section 4.3: a few disjoint chunks, each of which is
read, updated and written under its own lock. A process takes the chunks in whatever order they are free.

The memory is one file (in /dev/shm, if the caller names that); `ddrl.exchange.central_store.file` checks its owner and
has its locks.

**Death in the middle of an update.** A chunk's sequence number is odd while the chunk is being written. A process that
gets the lock and finds the number odd knows that the last owner died: it counts a torn update, makes the number even,
and goes on. The values can still be used. All rules are elementwise, so each value is as before the update or as after
it. The parameter and the slots of one element may be of different updates, as happens in asynchronous training anyway.
Running statistics are written together at the end of an update; if that was interrupted, some components may belong to
another count than the one that is stored.
"""

from __future__ import annotations

import dataclasses
import json
import mmap
import os
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from ddrl.errors import UsageError
from ddrl.exchange.central_store.file import (
    CREATOR_BYTE,
    FIRST_CHUNK_BYTE,
    create_file,
    has_living_creator,
    open_own,
    try_lock,
    unlock,
)
from ddrl.exchange.sharding import shard_ranges
from ddrl.exchange.transport import Waiter

HEADER_BYTES = 4096  # a page with the layout as JSON; the chunks' words and each vector follow, on pages of their own
WORDS = 8  # 64-bit words of a chunk's notes, which fill a cache line
SEQUENCE, VERSION, COUNT, TORN, HOLDER, OPENED = range(6)
"""Places of a chunk's words: the sequence number, odd while the chunk is being written; gradients applied; the
optimizer's count of updates; torn updates; the process that had the lock last; how often the store was opened."""


@dataclasses.dataclass(frozen=True, eq=False)
class Chunk:
    """A part of the vectors, in shared memory. Only the function passed to `CentralStore.update` may change it.

    Attributes:
        index: index of this chunk.
        part: the chunk's range in the whole vector.
        parameters: <float32>[n].
        slots: name -> <float32>[n].
        words: <int64>[8], the store's notes about the chunk, such as its version.
    """

    index: int
    part: slice
    parameters: np.ndarray
    slots: dict[str, np.ndarray]
    words: np.ndarray

    @property
    def version(self) -> int:
        """The number of gradients applied to this chunk, including those from before a resume."""
        return int(self.words[VERSION])

    @property
    def count(self) -> int:
        """The optimizer's count of updates (Adam's t)."""
        return int(self.words[COUNT])


@dataclasses.dataclass(frozen=True)
class Layout:
    """The layout of the file: the parameters <float32>[size], then one such vector for each of `slots`.

    All of these vectors are cut into the same `chunks`.
    """

    size: int
    slots: tuple[str, ...]
    chunks: int

    @property
    def stride(self) -> int:
        """The bytes from the beginning of one vector to that of the next."""
        return _whole_pages(4 * self.size)

    @property
    def first_vector(self) -> int:
        """The byte at which the parameters begin; the slots follow in their order."""
        return HEADER_BYTES + _whole_pages(8 * WORDS * self.chunks)

    @property
    def nbytes(self) -> int:
        """The length of the file in bytes."""
        return self.first_vector + (1 + len(self.slots)) * self.stride


class CentralStore:
    """One process' access to a store. Two threads must not share it: each of them has to open its own.

    No call blocks forever: if no chunk is free, it yields, then sleeps, a little longer each time, and after
    `patience_seconds` raises a TimeoutError that names the process that holds the lock.

    Attributes:
        path: path of the file.
        size: float32 values in each vector.
        chunks: all chunks, whose versions may be read at any time; only `update` and `read` may access their values.
    """

    def __init__(self, path: Path, patience_seconds: float):
        self.path, self.patience_seconds = path, patience_seconds
        memory = open_own(path)
        try:
            layout = _read_layout(path, memory)
            mapping = mmap.mmap(memory, layout.nbytes)
            self._descriptor = open_own(path)  # for locks: an open file description of its own
            if not os.path.samestat(os.fstat(memory), os.fstat(self._descriptor)):
                raise UsageError(f"the central store {path} was replaced while it was being opened; start again")
        finally:
            os.close(memory)
        self.size = layout.size
        self.chunks = _chunks(mapping, layout)
        _open_stores.add(self)

    @classmethod
    def create(
        cls,
        path: str | Path,
        parameters: np.ndarray,
        slots: Mapping[str, np.ndarray],
        *,
        version: int = 0,
        count: int = 0,
        chunks: int = 3,
        patience_seconds: float = 60.0,
    ) -> CentralStore:
        """Creates a store with these values; a file that a dead run left at `path` is replaced.

        Args:
            parameters: <float32>[size].
            slots: name -> <float32>[size].
            version: number of gradients applied so far.
            count: the optimizer's count of updates.
            chunks: number of parts with a lock each, from 1 to `size`.
            patience_seconds: how long to wait for a chunk to become free.

        Raises:
            UsageError: if the file cannot be created, one with its name belongs to another user or to a run that is
                still going, or there is no room.
        """
        path = Path(path)
        if not 1 <= chunks <= parameters.size:
            raise UsageError(f"{chunks} chunks of {parameters.size} parameters: choose 1 to {parameters.size}")
        if any(values.shape != parameters.shape for values in slots.values()):
            raise ValueError(f"slots must have the parameters' shape {parameters.shape}")
        layout = Layout(parameters.size, tuple(slots), chunks)
        create_file(path, layout.nbytes, json.dumps(dataclasses.asdict(layout)).encode())
        store = cls(path, patience_seconds)
        for chunk in store.chunks:
            chunk.words[VERSION], chunk.words[COUNT] = version, count
            chunk.parameters[:] = parameters[chunk.part]
            for name, values in slots.items():
                chunk.slots[name][:] = values[chunk.part]
        try_lock(store._descriptor, CREATOR_BYTE)  # from here on others may open it
        return store

    @classmethod
    def open(cls, path: str | Path, *, patience_seconds: float = 60.0) -> CentralStore:
        """Opens the store that another process creates; waits for it at most `patience_seconds`.

        A file whose creator is dead is ignored, because its run has ended.

        Raises:
            TimeoutError: if no store is created in that time.
            UsageError: if the file is no store, or another user owns it or may read it.
        """
        path, waiter, end = Path(path), Waiter(), time.monotonic() + patience_seconds
        while not has_living_creator(path):
            if time.monotonic() >= end:
                raise TimeoutError(f"no process created the central store {path} within {patience_seconds:g} s")
            waiter.wait(progress=False, due=True)
        store = cls(path, patience_seconds)
        store._each(_count_opening)
        return store

    @property
    def versions(self) -> np.ndarray:
        """The version of each chunk, <int64>[chunks]."""
        return np.array([chunk.version for chunk in self.chunks], np.int64)

    @property
    def version(self) -> int:
        """The smallest version of a chunk, which is the number of gradients that are applied to all chunks."""
        return int(self.versions.min())

    @property
    def count(self) -> int:
        """The smallest of the chunks' counts of updates."""
        return min(chunk.count for chunk in self.chunks)

    @property
    def torn(self) -> int:
        """The number of updates during which a process died, over all chunks."""
        return sum(int(chunk.words[TORN]) for chunk in self.chunks)

    @property
    def opened(self) -> int:
        """How often `open` has opened the store, which does not include its creation."""
        return min(int(chunk.words[OPENED]) for chunk in self.chunks)

    def update(self, work: Callable[[Chunk], None], steps: int = 1) -> None:
        """Calls `work` once for every chunk, under the chunk's lock, in whatever order they are free.

        After each call the chunk's version and count grow by `steps`. If `work` raises, the update counts as torn.

        Raises:
            TimeoutError: see the class.
        """

        def write(chunk: Chunk) -> None:
            chunk.words[SEQUENCE] += 1
            work(chunk)
            chunk.words[VERSION] += steps
            chunk.words[COUNT] += steps
            chunk.words[SEQUENCE] += 1

        self._each(write)

    def read(self, parameters: np.ndarray, slots: Mapping[str, np.ndarray] | None = None) -> np.ndarray:
        """Copies the vectors out of the store; the values of a chunk have one version, but chunks may differ in theirs.

        Args:
            parameters: <float32>[size] that takes the parameters.
            slots: name -> <float32>[size] that takes the slot (None: no slots are read).

        Returns:
            the version of each chunk when it was read, <int64>[chunks].

        Raises:
            TimeoutError: see the class.
        """
        versions = np.empty(len(self.chunks), np.int64)

        def copy(chunk: Chunk) -> None:
            versions[chunk.index] = chunk.version
            parameters[chunk.part] = chunk.parameters
            for name, out in (slots or {}).items():
                out[chunk.part] = chunk.slots[name]

        self._each(copy)
        return versions

    def close(self) -> None:
        """Frees this process' locks. The memory is unmapped with the last reference to a chunk."""
        _open_stores.discard(self)
        self.chunks = ()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def unlink(self) -> None:
        """Removes the file's name. Processes that have opened the file keep the memory, and no others can open it."""
        self.path.unlink(missing_ok=True)

    def _each(self, work: Callable[[Chunk], None]) -> None:
        """Calls `work` for every chunk, under the chunk's lock; those that are free come first."""
        waiting, waiter = list(self.chunks), Waiter()
        end = time.monotonic() + self.patience_seconds
        while waiting:
            left = [chunk for chunk in waiting if not self._try(chunk, work)]
            if left and time.monotonic() >= end:
                raise TimeoutError(
                    f"chunk {left[0].index} of the central store {self.path} was not free for "
                    f"{self.patience_seconds:g} s: process {left[0].words[HOLDER]} had its lock last"
                )
            if left:
                waiter.wait(progress=len(left) < len(waiting), due=True)
            waiting = left

    def _try(self, chunk: Chunk, work: Callable[[Chunk], None]) -> bool:
        """Calls `work` for a chunk under its lock if the chunk is free; returns whether it was."""
        byte, words = FIRST_CHUNK_BYTE + chunk.index, chunk.words
        if not try_lock(self._descriptor, byte):
            return False
        try:
            words[HOLDER] = os.getpid()
            if words[SEQUENCE] % 2:
                words[TORN] += 1
                words[SEQUENCE] += 1
            work(chunk)
        finally:
            unlock(self._descriptor, byte)
        return True


def _count_opening(chunk: Chunk) -> None:
    chunk.words[OPENED] += 1


def _read_layout(path: Path, descriptor: int) -> Layout:
    try:
        fields = json.loads(os.pread(descriptor, HEADER_BYTES, 0).rstrip(b"\0"))
        layout = Layout(int(fields["size"]), tuple(fields["slots"]), int(fields["chunks"]))
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{path} is not a central store; remove it") from None
    length = os.fstat(descriptor).st_size
    if length != layout.nbytes:
        raise UsageError(f"the central store {path} has {length} bytes, not {layout.nbytes}: remove it")
    return layout


def _chunks(mapping: mmap.mmap, layout: Layout) -> tuple[Chunk, ...]:
    words = np.frombuffer(mapping, np.int64, WORDS * layout.chunks, HEADER_BYTES).reshape(-1, WORDS)
    vectors = [
        np.frombuffer(mapping, np.float32, layout.size, layout.first_vector + i * layout.stride)
        for i in range(1 + len(layout.slots))
    ]
    parts = [slice(start, stop) for start, stop in shard_ranges(layout.size, layout.chunks)]
    return tuple(
        Chunk(i, part, vectors[0][part], {name: v[part] for name, v in zip(layout.slots, vectors[1:])}, words[i])
        for i, part in enumerate(parts)
    )


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // HEADER_BYTES) * HEADER_BYTES


_open_stores: weakref.WeakSet[CentralStore] = weakref.WeakSet()


def _close_in_child() -> None:
    """Closes all stores in a forked child, which would otherwise keep its parent's locks after the parent's death."""
    for store in list(_open_stores):
        store.close()


os.register_at_fork(after_in_child=_close_in_child)
