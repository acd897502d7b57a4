"""Experience replay of one worker: uniform (Mnih et al. 2015) or prioritized (Schaul et al. 2016), n-step."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ddrl.errors import UsageError, read_as
from ddrl.replay import storage
from ddrl.replay.history import History, row_layout
from ddrl.replay.storage import Named, nothing_named
from ddrl.replay.sum_tree import SumTree
from ddrl.types import Replayed, Unroll

PRIORITY_EPSILON = 1e-6  # added to every priority, so that no transition is lost (Schaul et al. 2016, section 3.3)
KEPT_SAVES = 2  # the newest may belong to a checkpoint that was never finished
FORMAT = 1  # version of the saved files
LARGEST_PRIORITY = float(np.finfo(np.float32).max)  # sums of these are finite in float64


class Replay:
    """The newest `capacity` transitions of B simulators. Used by one thread at a time.

    Transition (t, b) is the action of simulator b at row t and the n steps from it on; its key is t B + b, which is
    never given again. It can be drawn once row t + n is there, whether or not its episode ends before. A row that is
    not valid (an episode's last observation) takes the place of one transition and is never drawn.

    With exponent w > 0, transition i is drawn with probability p_i^w / sum_j p_j^w, one from each of M equal parts of
    the sum (stratified); with 0, uniformly and independently.

    Args:
        capacity: transitions of all simulators together, rounded down to a multiple of B.
        simulators: B.
        observation_shape: of one observation.
        observation_dtype: of one.
        stack: frames in an observation, oldest first along its first axis; frames before an episode are zero.
        n_step: n.
        priority_exponent: w, in [0, 1].
        action: shape and type of one action.

    Attributes:
        size: transitions that can be drawn.
        ignored: priorities that came for transitions which were gone already.

    Raises:
        UsageError: a number is out of range, or the observation is not that many frames.
    """

    def __init__(
        self,
        capacity: int,
        simulators: int,
        observation_shape: tuple[int, ...],
        observation_dtype: Any,
        *,
        stack: int = 1,
        n_step: int = 1,
        priority_exponent: float = 0.0,
        action: tuple[tuple[int, ...], Any] = ((), np.int32),
    ):
        rows = _rows(capacity, simulators, stack, n_step)
        if not 0.0 <= priority_exponent <= 1.0:
            raise UsageError(
                f"--priority-exponent {priority_exponent}: must be between 0 (uniform) and 1 (proportional)"
            )
        self.n_step, self.priority_exponent = n_step, priority_exponent
        self._row_capacity = capacity // simulators
        self._history = History(rows, simulators, observation_shape, observation_dtype, stack, action)
        self._tree = SumTree(rows * simulators)
        self._largest: float  # largest priority so far
        self._saves_in: Path | None  # directory of the last saves
        self._saves: list[dict[str, Any]]  # what the manifests of the last saves say
        self._forget()

    @staticmethod
    def bytes_for(
        capacity: int,
        simulators: int,
        observation_shape: tuple[int, ...],
        observation_dtype: Any,
        *,
        stack: int = 1,
        n_step: int = 1,
        action: tuple[tuple[int, ...], Any] = ((), np.int32),
    ) -> int:
        """Bytes that such a replay takes when it is full; nothing is allocated.

        Raises:
            UsageError: as the constructor.
        """
        slots = _rows(capacity, simulators, stack, n_step) * simulators
        layout = row_layout(observation_shape, observation_dtype, stack, action)
        row = sum(dtype.itemsize * int(np.prod(shape, dtype=np.int64)) for shape, dtype in layout)
        return slots * row + SumTree.bytes_for(slots)

    def add(self, unroll: Unroll, left_out: np.ndarray | None = None) -> None:
        """Takes T steps of all simulators, which continue those of the last call; the oldest make room.

        Their priority is the largest that any transition has had, 1 at first. Where the first observation is not what
        the last unroll ended with, the simulators were reset in between: the episodes under way count as truncated
        there.

        Args:
            unroll: [T, B]; copied.
            left_out: <bool>[T, B] steps that are never drawn (`ddrl.replay.finite`); None: none.

        Raises:
            ValueError: shapes or types are not those of this replay.
            UsageError: a stack of frames that cannot be rebuilt; nothing was stored.
        """
        steps, simulators = unroll.reward.shape
        if left_out is not None:
            self._history.cut(left_out[0])
        completed = self._history.append(unroll)
        weights = np.zeros((completed, simulators))
        drawn = self._weight(np.full((steps, simulators), self._largest))
        counted = unroll.valid > 0 if left_out is None else (unroll.valid > 0) & ~left_out
        weights[completed - steps :] = np.where(counted, drawn, 0.0)
        self._admit(np.concatenate([self._waiting, weights]))

    def sample(
        self,
        random: np.random.Generator,
        batch_size: int,
        importance_exponent: float = 0.0,
        batches: int = 1,
        into: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> Replayed:
        """Draws k batches of M transitions each, with replacement; the result is the same as that of k calls.

        Args:
            random: the only source of chance: equal states give equal samples.
            batch_size: M.
            importance_exponent: beta of the weights (N P(i))^-beta, divided by the largest of the batch.
            batches: k; row i M + j of the k M rows is row j of batch i.
            into: C-contiguous arrays [k M, ...] for the two observations (None: new ones). New memory for images costs
                as much time as filling it.

        Raises:
            ValueError: there are no transitions.
        """
        if not self.size:
            raise ValueError("the replay has no transition to draw")
        history, n = self._history, self.n_step
        parts = random.random((batches, batch_size))
        if self.priority_exponent:
            parts = (np.arange(batch_size) + parts) / batch_size
        slots = self._tree.find(parts.ravel() * self._tree.total)
        ring, simulators = np.divmod(slots, history.simulators)
        rows = history.head - (history.head - ring) % history.length
        reward, discount, steps = history.returns(rows, simulators, n)
        chances = self._tree.weights[slots] / self._tree.total
        importance = ((self.size * chances) ** -importance_exponent).reshape(batches, batch_size)
        importance /= importance.max(axis=1, keepdims=True)
        before, after = into or (None, None)
        return Replayed(
            observation=history.observations(rows, simulators, before),
            action=history.rows.action[ring, simulators],
            reward=reward,
            discount=discount,
            next_observation=history.observations(rows + steps, simulators, after),
            weight=importance.ravel().astype(np.float32),
            behaviour_version=history.rows.version[ring, simulators],
            key=rows * history.simulators + simulators,
        )

    def memory_for(self, transitions: int) -> tuple[np.ndarray, np.ndarray]:
        """Arrays for `into` of `sample`."""
        shape, dtype = (transitions, *self._history.observation_shape), self._history.rows.frame.dtype
        return np.empty(shape, dtype), np.empty(shape, dtype)

    def set_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Gives drawn transitions new priorities. The last of equal keys wins; keys of transitions that are gone
        are counted in `ignored`.

        Args:
            keys: <int64>[M] from `sample`.
            priorities: <float32>[M], at least 0.

        Raises:
            ValueError: a key that was never drawn.
            UsageError: a priority that is negative, infinite or not a number; nothing was changed.
        """
        keys = np.asarray(keys, np.int64)
        priorities = checked_priorities(priorities, keys.shape)
        rows, simulators = np.divmod(keys, self._history.simulators)
        window = self._window()
        if ((keys < 0) | (rows >= window.stop)).any():
            given = window.stop * self._history.simulators
            raise ValueError(f"keys {keys.min()} to {keys.max()}: only those below {given} have been given out so far")
        live = rows >= window.start
        slots = (rows % self._history.length * self._history.simulators + simulators)[live]
        if not self._tree.weights[slots].all():
            raise ValueError("a key names a row that is not a transition")
        self.ignored += int(len(keys) - live.sum())
        if live.any():
            self._tree.set(slots, self._weight(priorities[live]))
            self._largest = max(self._largest, float(priorities[live].max()))

    def save(
        self, directory: str | Path, named: Named = nothing_named, working: Callable[[], object] = lambda: None
    ) -> dict[str, np.ndarray]:
        """Writes what has changed since the last save, in files next to those that are still right.

        Files that neither this save nor the one before needs, and that no checkpoint names, are deleted at the end.

        Args:
            directory: of this replay alone.
            named: gives the names of the files that checkpoints on disk need.
            working: called again and again while files are written.

        Returns:
            the manifest, a few arrays of some kilobytes that `load` needs.

        Raises:
            UsageError: the files cannot be written; those of earlier saves are as they were.
        """
        directory = Path(directory)
        earlier = self._saves if self._saves_in == directory else []
        facts = {
            "kind": self._kind(),
            "head": self._history.head,
            "size": self.size,
            "ignored": self.ignored,
            "largest": self._largest,
            "waiting": len(self._waiting),
        }
        with storage.new_save(directory) as number:
            previous = earlier[-1] if earlier else None
            facts["segments"] = storage.save_rows(directory, number, self._history, previous, working)
            facts["weights"] = storage.write(
                directory, f"replay-{number:06d}-weights.bin", [self._tree.weights, self._waiting], working
            )
            saves = [*earlier, facts][-KEPT_SAVES:]
            storage.finish(directory, {entry["name"] for save in saves for entry in storage.entries_of(save)}, named)
        self._saves_in, self._saves = directory, saves
        return {"replay": np.frombuffer(json.dumps(facts).encode(), np.uint8)}

    def load(self, directory: str | Path, manifest: dict[str, np.ndarray]) -> None:
        """Replaces the content by what `save` wrote; the replay then goes on, bit for bit, as the one that was saved.

        Raises:
            UsageError: the files are missing or damaged, or from another kind of replay; this one is empty then.
        """
        self._forget()
        try:
            with read_as("the manifest of the replay", storage.OTHER):
                self._load(Path(directory), storage.facts_in(manifest["replay"]))
        except UsageError:
            self._forget()
            raise

    def _load(self, directory: Path, facts: dict[str, Any]) -> None:
        storage.check_same(facts["kind"], self._kind())
        size, ignored = (storage.within(facts[name], sys.maxsize) for name in ("size", "ignored"))
        head = storage.within(facts["head"] + 1, sys.maxsize) - 1  # -1: empty
        waiting = storage.within(facts["waiting"], self._history.length)
        if not 0.0 <= facts["largest"] <= LARGEST_PRIORITY:
            raise ValueError(f"a largest priority of {facts['largest']}")
        weights, waits = np.zeros(self._tree.size), np.zeros((waiting, self._history.simulators))
        storage.read(directory, facts["weights"], [weights, waits])
        self._history.head, self._waiting = head, waits
        storage.load_rows(directory, self._history, facts["segments"])
        self.size, self.ignored, self._largest = size, ignored, facts["largest"]
        self._tree.set_all(weights)
        self.check()
        self._saves_in, self._saves = directory, [facts]

    def drop_not_finite(self) -> int:
        """Excludes transitions that hold or lead to a number that is not finite from drawing; returns how many.

        It also sets these numbers to 0. It is for replays that were saved by a version that let them in; new steps have
        `left_out` of `add`.
        """
        history, window = self._history, self._window()
        wrong = history.mend()
        ring = np.arange(window.start, window.stop) % history.length
        weights = self._tree.weights.reshape(history.length, history.simulators).copy()
        dropped = int(np.count_nonzero(weights[ring][wrong[ring]]))
        if wrong.any():
            weights[wrong] = 0.0
            self._tree.set_all(weights.ravel())
            self.size -= dropped
            self._waiting[wrong[np.arange(window.stop, window.stop + len(self._waiting)) % history.length]] = 0.0
        return dropped

    def may_have_priorities(self, keys: np.ndarray) -> np.ndarray:
        """<bool>[M] whether `set_priorities` takes these keys of drawn transitions: False where `drop_not_finite` has
        excluded them since.

        Args:
            keys: <int64>[M] from `sample`.
        """
        rows, simulators = np.divmod(np.asarray(keys, np.int64), self._history.simulators)
        slots = rows % self._history.length * self._history.simulators + simulators
        return (rows < self._window().start) | (self._tree.weights[slots] > 0.0)

    def check(self) -> None:
        """Raises RuntimeError where the parts do not agree."""
        self._tree.check()
        history, window = self._history, self._window()
        ring = np.arange(window.start, window.stop) % history.length
        weights = self._tree.weights.reshape(history.length, history.simulators)
        if ((weights[ring] > 0) & ~history.rows.valid[ring]).any():
            raise RuntimeError("a transition that is not valid has a weight")
        if np.count_nonzero(weights) != self.size or np.count_nonzero(weights[ring]) != self.size:
            raise RuntimeError(f"{np.count_nonzero(weights)} transitions have a weight, and the size is {self.size}")

    def _forget(self) -> None:
        """Empties the replay."""
        self._history.head, self.size, self.ignored = -1, 0, 0
        self._largest = 1.0
        self._waiting = np.zeros((0, self._history.simulators))  # weights of rows whose n next rows are not there
        self._tree.set_all(np.zeros(self._tree.size))
        self._saves_in, self._saves = None, []

    def _kind(self) -> dict[str, Any]:
        """The facts in which a saved replay must agree with this one."""
        action = self._history.rows.action
        vectors = {"action_components": action.shape[2]} if action.ndim > 2 else {}  # other saves lack it
        return vectors | {
            "format": FORMAT,
            "capacity": self._row_capacity * self._history.simulators,
            "simulators": self._history.simulators,
            "observation_shape": list(self._history.observation_shape),
            "observation_type": str(self._history.rows.frame.dtype),
            "stack": self._history.stack,
            "n_step": self.n_step,
            "priority_exponent": self.priority_exponent,
        }

    def _window(self) -> range:
        """The rows whose transitions can be drawn."""
        stop = max(0, self._history.head - self.n_step + 1)
        return range(max(0, stop - self._row_capacity), stop)

    def _admit(self, weights: np.ndarray) -> None:
        """Takes the weights <float64>[k, B] of the last k complete rows; those of the last n - 1 rows must wait."""
        window = self._window()
        ready = max(0, len(weights) - (self.n_step - 1))
        before = window.stop - ready
        self._waiting = weights[ready:].copy()
        gone = self._slots(range(max(0, before - self._row_capacity), min(before, window.start)))
        new = range(max(before, window.start), window.stop)
        weights = weights[new.start - before : ready].ravel()
        self.size += int(np.count_nonzero(weights) - np.count_nonzero(self._tree.weights[gone]))
        # A new row may take the place of one that is gone; its weight comes later, and the last of equal items wins.
        slots = np.concatenate([gone, self._slots(new)])
        self._tree.set(slots, np.concatenate([np.zeros(len(gone)), weights]))

    def _slots(self, rows: range) -> np.ndarray:
        """The tree's items for these rows, <int64>[rows x B]."""
        ring = np.arange(rows.start, max(rows.start, rows.stop)) % self._history.length
        return (ring[:, None] * self._history.simulators + np.arange(self._history.simulators)).ravel()

    def _weight(self, priorities: np.ndarray) -> np.ndarray:
        return (np.asarray(priorities, np.float64) + PRIORITY_EPSILON) ** self.priority_exponent


def check_memory(needed: int, available: float, whose: str = "the replay needs") -> None:
    """Raises UsageError where `needed` bytes of replay are more than the `available` ones."""
    if needed > available:
        raise UsageError(
            f"{whose} {needed:,} bytes ({needed / 1e9:.1f} GB), and only {available:,} ({available / 1e9:.1f} GB) are "
            "free here: lower --replay-capacity"
        )


def _rows(capacity: int, simulators: int, stack: int, n_step: int) -> int:
    """Rows of a ring that holds every frame of `capacity` transitions: their own, stack - 1 before, n after."""
    if n_step < 1:
        raise UsageError(f"--n-step {n_step}: must be at least 1")
    if capacity < simulators:
        raise UsageError(f"--replay-capacity {capacity}: must be at least the number of simulators, {simulators}")
    return capacity // simulators + (stack - 1) + n_step


def checked_priorities(priorities: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Priorities as <float64>[shape]; raises UsageError where one is negative, infinite or not a number."""
    priorities = np.asarray(priorities, np.float64)
    if priorities.shape != shape:
        raise ValueError(f"priorities {list(priorities.shape)} for {list(shape)} transitions")
    right = (priorities >= 0.0) & (priorities <= LARGEST_PRIORITY)
    if not right.all():
        raise UsageError(
            f"priorities that are negative, infinite, or not a number: {right.size - right.sum()} of {right.size}, the "
            f"first of them {priorities[~right][0]}; lower --learning-rate"
        )
    return priorities
