"""Parameters and optimizer slots in memory that the processes of one host share, in chunks with a lock each.

The asynchronous central store of Stooke and Abbeel 2018, section 4.3: a few disjoint chunks, each read, updated and
written under its own lock; whoever comes takes the chunks in whatever order they are free.

The memory is one file (in /dev/shm, if the caller names that); `ddrl.exchange.central_store.file` says whose it is and
how it is locked.

**Death in the middle of an update.** A chunk's sequence number is odd while it is being written. Who gets the lock
and finds it odd knows that the last owner died: it counts a torn update, makes the number even, and goes on. The values
are usable: all rules are elementwise, so each element is as before the update or as after it; in at most one block of
a slot a mean is decayed and its gradient missing, as if that had been zero. Two values of one element may stem
from different updates, which asynchronous training brings anyway. Running statistics are written at once at an update's
end; where it was not whole, some components have another count than is said.
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

HEADER_BYTES = 4096  # the layout as JSON; the chunks' words and the vectors follow, each on a page of its own
WORDS = 8  # 64-bit words of a chunk: a cache line
SEQUENCE, VERSION, COUNT, TORN, HOLDER, OPENED = range(6)


@dataclasses.dataclass(frozen=True, eq=False)
class Chunk:
    """A part of the vectors, in shared memory. Only who was given it by `CentralStore.update` may change it.

    Attributes:
        index: of this chunk.
        part: where it lies in the whole vector.
        parameters: <float32>[n].
        slots: name -> <float32>[n].
        words: <int64>[8], the store's own notes.
    """

    index: int
    part: slice
    parameters: np.ndarray
    slots: dict[str, np.ndarray]
    words: np.ndarray

    @property
    def version(self) -> int:
        """Gradients applied to this chunk, those before a resume included."""
        return int(self.words[VERSION])

    @property
    def count(self) -> int:
        """The optimizer's count of updates (Adam's t)."""
        return int(self.words[COUNT])


@dataclasses.dataclass(frozen=True)
class Layout:
    """What lies where in the file: the parameters <float32>[size], then a vector for each of `slots`, in `chunks`."""

    size: int
    slots: tuple[str, ...]
    chunks: int

    @property
    def stride(self) -> int:
        """Bytes from one vector to the next."""
        return _whole_pages(4 * self.size)

    @property
    def first_vector(self) -> int:
        """Byte at which the parameters begin; the slots follow in their order."""
        return HEADER_BYTES + _whole_pages(8 * WORDS * self.chunks)

    @property
    def nbytes(self) -> int:
        """Length of the file."""
        return self.first_vector + (1 + len(self.slots)) * self.stride


class CentralStore:
    """One process' access to a store. Not for two threads at once: each opens its own.

    Nothing blocks without end: whoever finds no chunk free yields, then sleeps, a little longer each time, and after
    `patience_seconds` raises TimeoutError, which names the process that holds the lock.

    Attributes:
        path: of the file.
        size: float32 values of a vector.
        chunks: all of them, for reading their versions; values only by `update` and `read`.
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
        """A new store with these values; a file that a dead run left at `path` is replaced.

        Args:
            parameters: <float32>[size].
            slots: name -> <float32>[size].
            version: gradients applied so far.
            count: the optimizer's count of updates.
            chunks: parts with a lock each, 1 to `size`.
            patience_seconds: for a chunk to become free.

        Raises:
            UsageError: if the file cannot be had, belongs to somebody else or to a run that lives, or there is no room.
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
        """The store that another process creates; waits for it at most `patience_seconds`.

        A file whose creator is dead does not count: the run that it was of has ended.

        Raises:
            TimeoutError: if there is none.
            UsageError: if the file is no store, or somebody else owns it or may read it.
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
        """Version of each chunk, <int64>[chunks]."""
        return np.array([chunk.version for chunk in self.chunks], np.int64)

    @property
    def version(self) -> int:
        """Smallest version of a chunk: so many gradients are applied everywhere."""
        return int(self.versions.min())

    @property
    def count(self) -> int:
        """Smallest of the chunks' counts of updates."""
        return min(chunk.count for chunk in self.chunks)

    @property
    def torn(self) -> int:
        """Updates of a chunk in whose middle a process died, over all chunks."""
        return sum(int(chunk.words[TORN]) for chunk in self.chunks)

    @property
    def opened(self) -> int:
        """How often the store was opened, its creator's own opening left out."""
        return min(int(chunk.words[OPENED]) for chunk in self.chunks)

    def update(self, work: Callable[[Chunk], None], steps: int = 1) -> None:
        """Has `work` change every chunk once, under its lock, in whatever order they are free.

        Versions and counts grow by `steps` after it. If it raises, the update counts as torn.

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
        """Copies <float32>[size] vectors; each chunk is of one version, and they may differ.

        Args:
            parameters: <float32>[size] that takes them.
            slots: name -> <float32>[size] that takes it (None: no slots are read).

        Returns:
            the version of each chunk as it was read, <int64>[chunks].

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
        """Frees this process' locks. The memory goes with the last reference to a chunk."""
        _open_stores.discard(self)
        self.chunks = ()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def unlink(self) -> None:
        """Removes the name; the memory stays for those who have opened it, and nobody else can any more."""
        self.path.unlink(missing_ok=True)

    def _each(self, work: Callable[[Chunk], None]) -> None:
        """`work` on every chunk, under its lock, those first that are free."""
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
        """Whether the chunk was free; if so, the work is done."""
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
    """A forked child would keep the locks of its parent after the parent's death."""
    for store in list(_open_stores):
        store.close()


os.register_at_fork(after_in_child=_close_in_child)
