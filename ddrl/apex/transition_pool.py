"""The memory of a replay shard: transitions as rows of a table, and frames that several of them share."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ddrl.apex.segment import Segment, SegmentFormat
from ddrl.errors import UsageError
from ddrl.replay import storage

LARGEST_CAPACITY = 100_000_000  # places are numbered with 32 bits
HARD_FACTOR = 1.25  # hard capacity / soft capacity
SCATTERED_FRAMES = 2.0  # places for frames per transition, if neighbors that share frames are not evicted together


class Items(NamedTuple):
    """What is kept of each transition beside its frames: arrays [S, ...].

    Attributes:
        stacks: <int32>[S, 2, stack] places of the frames of both observations, oldest first; place 0 is a black frame.
        action: <int32>[S], or <float32>[S, A].
        reward: <float32>[S] discounted sum over the steps.
        discount: <float32>[S] of the value after them.
        version: <int64>[S] of the parameters that chose the action.
        number: <int64>[S] transitions inserted before this one.
    """

    stacks: Any
    action: Any
    reward: Any
    discount: Any
    version: Any
    number: Any


class FreePlaces:
    """Free places, given out in the order in which they came back.

    So memory that is emptied in the order in which it was filled is written from beginning to end, over and over.

    Args:
        first: the first place.
        stop: the place after the last.
    """

    def __init__(self, first: int, stop: int):
        self._ring = np.arange(first, stop, dtype=np.int32)
        self._start, self.count = 0, stop - first

    def take(self, count: int) -> np.ndarray:
        """<int32>[count] places.

        Raises:
            ValueError: so many are not free.
        """
        if count > self.count:
            raise ValueError(f"{count} places were asked for and {self.count} are free")
        places = self._ring[self._indices(self._start, count)]
        self._start, self.count = (self._start + count) % len(self._ring), self.count - count
        return places

    def give(self, places: np.ndarray) -> None:
        """Places <int>[k] are free again."""
        self._ring[self._indices(self._start + self.count, len(places))] = places
        self.count += len(places)

    def get(self) -> np.ndarray:
        """All free places <int32>[count], in the order in which they will be given out."""
        return self._ring[self._indices(self._start, self.count)]

    def set(self, places: np.ndarray) -> None:
        """The inverse of `get`."""
        self._start, self.count = 0, len(places)
        self._ring[: self.count] = places

    def _indices(self, start: int, count: int) -> np.ndarray:
        return np.arange(start, start + count) % len(self._ring)


class TransitionPool:
    """S places for transitions and P for frames, in any order. It does not decide which transitions are evicted.

    A frame is kept for as long as a stack of a transition has it.

    Args:
        format: of the segments.
        places: S.
        frames: P; one of them is the black frame.

    Attributes:
        frames: <observation's type>[P, ...].
        references: <int32>[P] how often stacks of transitions have this frame.
        items: the table of the transitions.
        free_items: free places of the table.
        free_frames: free places for frames.
        changed: <bool>[parts] which parts (see `part`) were written since these marks were last cleared.
    """

    def __init__(self, format: SegmentFormat, places: int, frames: int):
        self.format = format
        self.frames = np.zeros((frames, *format.frame_shape), format.observation_dtype)
        self.references = np.zeros(frames, np.int32)
        self.items = Items(*(np.zeros((places, *shape), dtype) for shape, dtype in item_layout(format)))
        total = self.frames.nbytes + sum(array.nbytes for array in self.items)
        self.changed = np.zeros(min(storage.SEGMENTS, max(1, total // storage.SEGMENT_BYTES)), bool)
        self.forget()

    @staticmethod
    def bytes_for(format: SegmentFormat, places: int, frames: int) -> int:
        """Bytes that such a pool takes when it is full."""
        item = sum(dtype.itemsize * int(np.prod(shape, dtype=np.int64)) for shape, dtype in item_layout(format))
        return frames * (format.frame_bytes + 8) + places * (item + 4)

    def forget(self) -> None:
        """Empties the pool."""
        self.frames[0] = 0
        self.references[:] = 0
        self.references[0] = 1  # the black frame is never free
        self.free_items, self.free_frames = FreePlaces(0, len(self.items.number)), FreePlaces(1, len(self.frames))
        self.used = [0, 1]  # places of items and frames from here on were never used
        self.changed[:] = False

    def put(self, segment: Segment, number: int) -> np.ndarray:
        """Stores a segment for which there is room; returns the items <int32>[M] of its transitions.

        The transitions are numbered from `number` on.
        """
        stacks = self._stacks(segment)
        counts = np.bincount(stacks.ravel(), minlength=len(segment.frames) + 1)
        shown = np.flatnonzero(counts[1:])  # frames that only rows that are not valid show are left out
        places = np.zeros(len(counts), np.int32)
        places[shown + 1] = new = self.free_frames.take(len(shown))
        items = self.free_items.take(len(segment.row))
        self.frames[new] = segment.frames if len(shown) == len(segment.frames) else segment.frames[shown]
        self.references[new] = counts[shown + 1]
        self.references[0] += counts[0]
        for name in ("action", "reward", "discount", "version"):
            getattr(self.items, name)[items] = getattr(segment, name)
        self.items.stacks[items] = places[stacks]
        self.items.number[items] = np.arange(number, number + len(items))
        self._mark(items, new)
        return items

    def drop(self, items: np.ndarray) -> None:
        """Frees items <int>[k], all different, and the frames that no other item has."""
        places = self.items.stacks[items].ravel()
        np.subtract.at(self.references, places, 1)
        self.free_frames.give(np.unique(places[self.references[places] == 0]))
        self.free_items.give(items)

    def observations(self, items: np.ndarray, before: np.ndarray, after: np.ndarray) -> None:
        """Writes the observations of items <int>[k], and those after their steps, into C-contiguous arrays [k, ...]."""
        stacks = self.items.stacks[items]
        for out, i in ((before, 0), (after, 1)):
            # There is nothing to clip, but with the default mode NumPy would fill another array first.
            frames = out.reshape(*stacks[:, i].shape, *self.format.frame_shape)
            self.frames.take(stacks[:, i], axis=0, out=frames, mode="clip")

    def part(self, index: int) -> list[np.ndarray]:
        """One of `len(changed)` parts of the arrays that `put` writes, without places never used; may be empty."""
        frames = slice(*(self._bound(len(self.frames), self.used[1], i) for i in (index, index + 1)))
        items = slice(*(self._bound(len(self.items.number), self.used[0], i) for i in (index, index + 1)))
        return [self.frames[frames], *(array[items] for array in self.items)]

    def check(self, live: np.ndarray) -> None:
        """Raises RuntimeError if the parts do not agree, or if the live items are not `live` <bool>[S]."""
        references = np.bincount(self.items.stacks[live].ravel(), minlength=len(self.frames))
        references[0] += 1
        if (references != self.references).any():
            raise RuntimeError("a frame's references are not those of the live transitions")
        for free, expected in ((self.free_items, ~live), (self.free_frames, references == 0)):
            if not np.array_equal(np.sort(free.get()), np.flatnonzero(expected)):
                raise RuntimeError("the free places are not those that nothing uses")
        if self.frames[:1].view(np.uint8).any():
            raise RuntimeError("the black frame is not black")

    def _stacks(self, segment: Segment) -> np.ndarray:
        """The stacks of both observations <int64>[M, 2, stack]: 1 + a frame's number in the segment, 0: black."""
        row = segment.row.astype(np.int64)
        newest = np.stack([row, row + segment.steps], axis=1)
        back = np.arange(self.format.stack - 1, -1, -1)
        return np.where(back > segment.age[newest][..., None], 0, newest[..., None] - back + 1)

    def _mark(self, items: np.ndarray, frames: np.ndarray) -> None:
        parts = len(self.changed)
        for i, (places, size) in enumerate(((items, len(self.items.number)), (frames, len(self.frames)))):
            self.changed[places.astype(np.int64) * parts // size] = True
            self.used[i] = max(self.used[i], int(places.max()) + 1)

    def _bound(self, size: int, used: int, part: int) -> int:
        return min(-(-part * size // len(self.changed)), used)


def item_layout(format: SegmentFormat) -> Items:
    """Shape and type of one transition's part of each array."""
    return Items(
        stacks=((2, format.stack), np.dtype(np.int32)),
        action=(format.action_space.action_shape, format.action_type),
        reward=((), np.dtype(np.float32)),
        discount=((), np.dtype(np.float32)),
        version=((), np.dtype(np.int64)),
        number=((), np.dtype(np.int64)),
    )


def places_for(format: SegmentFormat, capacity: int, eviction_exponent: float | None) -> tuple[int, int]:
    """Places for transitions, and for frames, the black one among these.

    Args:
        format: of the segments.
        capacity: the soft capacity, in transitions.
        eviction_exponent: None where the oldest transitions go first, and so neighbors go together.

    Raises:
        UsageError: the capacity is less than a segment has, or more than places can be numbered for.
    """
    if capacity < format.length:
        raise UsageError(
            f"--replay-capacity: the part of a shard, {capacity}, must be at least the length of a segment, "
            f"{format.length}"
        )
    places = int(HARD_FACTOR * capacity)
    if capacity > LARGEST_CAPACITY:
        raise UsageError(
            f"--replay-capacity: the part of a shard, {capacity}, must be at most {LARGEST_CAPACITY}; "
            "use more --replay-shards"
        )
    # Frames of rows that are not valid fit into the room between the two capacities.
    ratio = format.most_frames / format.length
    if eviction_exponent is not None:
        ratio = max(ratio, SCATTERED_FRAMES)
    return places, 1 + math.ceil(ratio * places) + format.most_frames
