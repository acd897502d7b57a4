"""A shard of Ape-X's replay: transitions of many actors, drawn by priority (Horgan et al. 2018, appendix F)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ddrl.apex.eviction import InversePriority, OldestFirst
from ddrl.apex.segment import Segment, SegmentFormat
from ddrl.apex.shard_files import ShardFiles
from ddrl.apex.transition_pool import TransitionPool, places_for
from ddrl.errors import UsageError, read_as
from ddrl.replay import storage
from ddrl.replay.replay import PRIORITY_EPSILON, checked_priorities
from ddrl.replay.storage import Named, nothing_named, within
from ddrl.replay.sum_tree import SumTree
from ddrl.types import Replayed

KEYS_PER_RUN = 2**47
RUNS = 2**15
COUNTERS = ("inserted", "sampled", "updated", "evicted", "ignored", "refused")


class ShardReplay:
    """Transitions of n steps of many actors, in the order in which they come. Used by one thread at a time.

    Transition i is drawn with probability p_i^w / sum_j p_j^w, one from each of M equal parts of the sum (stratified).

    Inserting always succeeds, so nobody ever waits for a learner: what is above the hard capacity, 1.25 times the soft
    one, is evicted at once, and `trim` evicts down to the soft one. The oldest transitions are evicted, or, with an
    eviction exponent x, transitions drawn with probability p_i^x / sum_j p_j^x.

    A frame is stored once for all transitions of its segment, and goes with the last of them. If segments have more
    frames for each transition than places were made for, transitions are also evicted to make room for frames.

    The key of a transition is that of its place, which grows by the number of places with each use. So no key is given
    twice, not even by a later incarnation of this shard, since each `run` has keys of its own.

    Args:
        format: of the segments.
        capacity: the soft capacity, in transitions.
        priority_exponent: w, in [0, 1].
        eviction_exponent: x, in [-2, 0]; None: the oldest go first.
        run: number of this incarnation of the shard, larger than any before, below 32,768.
        seed: of the evictions.

    Attributes:
        size: transitions that can be drawn.
        hard_capacity: the most transitions that there ever are.
        inserted: transitions inserted so far.
        sampled: transitions drawn so far, repetitions included.
        updated: priorities set so far.
        evicted: transitions evicted so far.
        ignored: priorities that came for transitions which were gone, or never there.
        refused: segments with bad values, or with steps that were here before.

    Raises:
        UsageError: a number is out of range.
    """

    def __init__(
        self,
        format: SegmentFormat,
        capacity: int,
        *,
        priority_exponent: float = 0.6,
        eviction_exponent: float | None = None,
        run: int = 0,
        seed: int = 0,
    ):
        places, frames = places_for(format, capacity, eviction_exponent)
        if not 0.0 <= priority_exponent <= 1.0:
            raise UsageError(
                f"--priority-exponent {priority_exponent}: must be between 0 (uniform) and 1 (proportional)"
            )
        if eviction_exponent is not None and not -2.0 <= eviction_exponent <= 0.0:
            raise UsageError(f"--eviction-exponent {eviction_exponent}: must be between -2 and 0 (uniform)")
        if not 0 <= run < RUNS:
            raise UsageError(f"incarnation {run} of a replay shard: must be between 0 and {RUNS - 1}")
        self.format, self.capacity, self.hard_capacity = format, capacity, places
        self.priority_exponent, self.eviction_exponent = priority_exponent, eviction_exponent
        self._pool = TransitionPool(format, places, frames)
        self._tree = SumTree(places)  # of weights to draw with: 0 where there is no transition
        self._eviction_tree = None if eviction_exponent is None else SumTree(places)
        self._random = np.random.default_rng(seed)
        self._order: OldestFirst | InversePriority = (
            OldestFirst(self._pool.items.number, self._tree)
            if self._eviction_tree is None
            else InversePriority(self._eviction_tree, self._random)
        )
        self._first_keys = -(-run * KEYS_PER_RUN // places) * places + np.arange(places)
        self._files = ShardFiles()
        self.size: int
        self.inserted: int
        self.evicted: int
        self._keys: np.ndarray
        self._forget()

    @staticmethod
    def bytes_for(format: SegmentFormat, capacity: int, eviction_exponent: float | None = None) -> int:
        """Bytes that such a replay takes when it is full; nothing is allocated.

        Raises:
            UsageError: as the constructor.
        """
        places, frames = places_for(format, capacity, eviction_exponent)
        trees = SumTree.bytes_for(places) * (1 if eviction_exponent is None else 2)
        return TransitionPool.bytes_for(format, places, frames) + 2 * 8 * places + trees

    def insert(self, data: bytes | Segment) -> bool:
        """Takes a segment, as bytes or as it is; returns False if its first step, or a later one, was here before.

        Raises:
            UsageError: it is not of this format, or has values that make no sense; nothing was taken.
        """
        try:
            if isinstance(data, Segment):
                self.format.check(data)
                segment = data
            else:
                segment = self.format.decode(data)
        except UsageError:
            self.refused += 1
            raise
        stream, first = (segment.actor, segment.simulator), (segment.run_id, segment.first_step)
        if first < self._streams.get(stream, first):
            self.refused += 1
            return False
        self._streams[stream] = (segment.run_id, segment.first_step + int(segment.row[-1] - segment.row[0]) + 1)
        self._make_room(len(segment.row), len(segment.frames))
        items = self._pool.put(segment, self.inserted)
        self.size, self.inserted = self.size + len(items), self.inserted + len(items)
        self._weigh(items, segment.priority.astype(np.float64))
        return True

    def sample(
        self,
        random: np.random.Generator,
        batch_size: int,
        importance_exponent: float = 0.0,
        into: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> Replayed:
        """Draws M transitions, with replacement.

        Args:
            random: the only source of chance: equal states give equal samples.
            batch_size: M.
            importance_exponent: beta of the weights (N P(i))^-beta, divided by the largest of the batch.
            into: C-contiguous arrays [M, ...] for the two observations. New memory for images costs as much time as
                filling it.

        Raises:
            ValueError: there are no transitions.
        """
        if not self.size:
            raise ValueError("the replay has no transition to draw")
        parts = (np.arange(batch_size) + random.random(batch_size)) / batch_size
        drawn = self._tree.find(parts * self._tree.total)
        importance = (self.size * self._tree.weights[drawn] / self._tree.total) ** -importance_exponent
        self.sampled += batch_size
        return self._gather(drawn, (importance / importance.max()).astype(np.float32), into)

    def set_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Gives drawn transitions new priorities. The last of equal keys wins; `ignored` counts keys that are gone.

        Args:
            keys: <int64>[M] from `sample`.
            priorities: <float32>[M], at least 0.

        Raises:
            ValueError: there are not as many priorities as keys.
            UsageError: a priority that is negative, infinite or not a number; nothing was changed.
        """
        keys = np.asarray(keys, np.int64)
        priorities = checked_priorities(priorities, keys.shape)
        items, live = self._find(keys)
        self.updated += len(items)
        self._weigh(items, priorities[live])

    def trim(self) -> int:
        """Evicts what is above the soft capacity, for which the learner asks now and then; returns how many."""
        excess = max(0, self.size - self.capacity)
        self._evict(self._order.choose(excess))
        return excess

    @property
    def weight(self) -> float:
        """Sum of the weights by which transitions are drawn: their priorities to the power of the exponent."""
        return float(self._tree.total)

    def counters(self) -> dict[str, int]:
        """The counts among the attributes, `frames` in use, and `streams`: simulators that were heard of."""
        frames = len(self._pool.frames) - 1 - self._pool.free_frames.count
        counts = {name: getattr(self, name) for name in COUNTERS}
        return {**counts, "size": self.size, "frames": frames, "streams": len(self._streams)}

    def ages(self, quantiles: np.ndarray) -> np.ndarray:
        """Quantiles <float64>[k] of the transitions' ages. Looks at all of them.

        The age of a transition is the number of transitions inserted since.

        Raises:
            ValueError: there are no transitions.
        """
        if not self.size:
            raise ValueError("the replay has no transition that has an age")
        numbers = self._pool.items.number[self._tree.weights > 0]
        return np.quantile(self.inserted - 1 - numbers, quantiles)

    def priority_histogram(self, edges: np.ndarray) -> np.ndarray:
        """Numbers of transitions <int64>[k + 1] with priorities below, between, and above the k rising `edges`.

        Looks at all transitions. With a priority exponent of 0 their priorities are not known, and all are above.
        """
        weights = self._tree.weights[self._tree.weights > 0]
        return np.bincount(np.searchsorted(self._weight(edges), weights, side="right"), minlength=len(edges) + 1)

    def save(
        self, directory: str | Path, named: Named = nothing_named, working: Callable[[], object] = lambda: None
    ) -> dict[str, np.ndarray]:
        """Writes what has changed since the last save, in files next to those that are still right.

        Files that neither this save nor the one before needs, and that no checkpoint names, are deleted at the end.

        Args:
            directory: of this shard alone.
            named: gives the names of the files that checkpoints on disk need.
            working: called again and again while files are written.

        Returns:
            the manifest, an array of some kilobytes that `load` needs.

        Raises:
            UsageError: the files cannot be written; those of earlier saves are as they were.
        """
        pool = self._pool
        facts = {
            "kind": self._kind(),
            "counters": {name: getattr(self, name) for name in COUNTERS},
            "size": self.size,
            "used": pool.used,
            "free": [pool.free_items.count, pool.free_frames.count],
            "streams": [[*stream, *next_] for stream, next_ in self._streams.items()],
            "random": self._random.bit_generator.state,
        }
        rest = [*self._everywhere(), pool.free_items.get(), pool.free_frames.get()]
        return self._files.save(Path(directory), facts, pool, rest, named, working)

    def load(self, directory: str | Path, manifest: dict[str, np.ndarray]) -> None:
        """Replaces the content by what `save` wrote; the replay then goes on, bit for bit, as the one that was saved.

        Only in a later incarnation, transitions that are inserted from then on have other keys.

        Raises:
            UsageError: the files are missing or damaged, or from another kind of replay; this one is empty then.
        """
        self._forget()
        try:
            with read_as("the manifest of the replay", storage.OTHER):
                self._load(Path(directory), manifest)
        except UsageError:
            self._forget()
            raise

    def _load(self, directory: Path, manifest: dict[str, np.ndarray]) -> None:
        pool, facts = self._pool, self._files.facts(manifest, self._kind())
        places = (len(pool.items.number), len(pool.frames))
        used, counts = ([within(*pair) for pair in zip(facts[name], places, strict=True)] for name in ("used", "free"))
        pool.used[:] = used
        everywhere = [np.empty_like(array) for array in self._everywhere()]
        free = [np.zeros(count, np.int32) for count in counts]
        self._files.load(directory, facts, pool, [*everywhere, *free])
        pool.free_items.set(free[0])
        pool.free_frames.set(free[1])
        pool.references[:], self._keys[:] = everywhere[:2]
        for tree, weights in zip(self._trees(), everywhere[2:], strict=True):
            tree.set_all(weights)
        for name in COUNTERS:
            setattr(self, name, within(facts["counters"][name], sys.maxsize))
        self.size = within(facts["size"], self.hard_capacity)
        for stream in facts["streams"]:
            actor, simulator, run, step = (within(number, sys.maxsize) for number in stream)
            self._streams[actor, simulator] = run, step
        self._random.bit_generator.state = facts["random"]
        self._renew_keys(pool.free_items.get())
        self.check()

    def check(self) -> None:
        """Raises RuntimeError where the parts do not agree, or a limit was passed."""
        for tree in self._trees():
            tree.check()
        live = self._tree.weights > 0
        if any((live != (tree.weights > 0)).any() for tree in self._trees()):
            raise RuntimeError("the trees do not have the same transitions")
        if not self.size == np.count_nonzero(live) <= self.hard_capacity:
            raise RuntimeError(f"{np.count_nonzero(live)} transitions of at most {self.hard_capacity}, not {self.size}")
        if (self._keys % self.hard_capacity != np.arange(self.hard_capacity)).any():
            raise RuntimeError("a key does not belong to its place")
        self._pool.check(live)

    def _gather(
        self, drawn: np.ndarray, weight: np.ndarray, into: tuple[np.ndarray, np.ndarray] | None = None
    ) -> Replayed:
        items, shape = self._pool.items, (len(drawn), *self.format.observation_shape)
        before, after = into or (np.empty(shape, self.format.observation_dtype) for _ in range(2))
        self._pool.observations(drawn, before, after)
        return Replayed(
            observation=before,
            action=items.action[drawn],
            reward=items.reward[drawn],
            discount=items.discount[drawn],
            next_observation=after,
            weight=weight,
            behaviour_version=items.version[drawn],
            key=self._keys[drawn],
        )

    def _find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The items with these keys <int64>[M], and which keys have one <bool>[M]; `ignored` counts the others."""
        items = keys % self.hard_capacity
        live = (self._keys[items] == keys) & (self._tree.weights[items] > 0)
        items = items[live]
        self.ignored += len(keys) - len(items)
        return items, live

    def _make_room(self, transitions: int, frames: int) -> None:
        """Evicts transitions until there is room for so many transitions and frames."""
        self._evict(self._order.choose(max(0, self.size + transitions - self.hard_capacity)))
        while (missing := frames - self._pool.free_frames.count) > 0:
            self._evict(self._order.choose(min(self.size, missing)))

    def _evict(self, items: np.ndarray) -> None:
        if not len(items):
            return
        for tree in self._trees():
            tree.set(items, np.zeros(len(items)))
        self._pool.drop(items)
        self._keys[items] += self.hard_capacity
        self._renew_keys(items)
        self.size, self.evicted = self.size - len(items), self.evicted + len(items)

    def _renew_keys(self, items: np.ndarray) -> None:
        """Raises the keys of free items to those of this incarnation, if they are lower."""
        self._keys[items] = np.maximum(self._keys[items], self._first_keys[items])

    def _weigh(self, items: np.ndarray, priorities: np.ndarray) -> None:
        self._tree.set(items, self._weight(priorities))
        if self._eviction_tree is not None and self.eviction_exponent is not None:
            self._eviction_tree.set(items, (priorities + PRIORITY_EPSILON) ** self.eviction_exponent)

    def _weight(self, priorities: np.ndarray) -> np.ndarray:
        return (np.asarray(priorities, np.float64) + PRIORITY_EPSILON) ** self.priority_exponent

    def _trees(self) -> list[SumTree]:
        return [self._tree] if self._eviction_tree is None else [self._tree, self._eviction_tree]

    def _everywhere(self) -> list[np.ndarray]:
        """The arrays that change in all places, and so are saved as a whole."""
        return [self._pool.references, self._keys, *(tree.weights for tree in self._trees())]

    def _forget(self) -> None:
        """Empties the replay."""
        self.size = self.inserted = self.sampled = self.updated = self.evicted = self.ignored = self.refused = 0
        self._keys = self._first_keys.copy()
        self._streams: dict[tuple[int, int], tuple[int, ...]] = {}  # (actor, simulator): (run_id, next step)
        for tree in self._trees():
            tree.set_all(np.zeros(self.hard_capacity))
        self._pool.forget()
        self._order.forget()
        self._files.forget()

    def _kind(self) -> dict[str, Any]:
        """The facts in which a saved replay must agree with this one."""
        return {
            "format": self.format.description.decode().rstrip(),
            "capacity": self.capacity,
            "priority_exponent": self.priority_exponent,
            "eviction_exponent": self.eviction_exponent,
        }
