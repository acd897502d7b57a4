"""The learner's schedule in Ape-X: batches come from replay shards, which actors of their own fill."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.sampling.replay_batches import Targets
from ddrl.sampling.rollouts import POLL_SECONDS
from ddrl.sampling.schedules import Schedule, snapshot_from, snapshot_state
from ddrl.types import Replayed, Snapshot


class Drawn(NamedTuple):
    """A batch that a replay shard drew.

    Attributes:
        shard: its index.
        batch: the transitions, which are views of `buffer`.
        buffer: to be given back.
    """

    shard: int
    batch: Replayed
    buffer: Any


class Learned(NamedTuple):
    """A batch that is not needed any more, and the new priorities <float32>[M] of its rows (None: the old ones)."""

    drawn: Drawn
    priorities: Any


class RemoteReplay(Schedule):
    """A schedule of two threads: one brings batches with `put` and takes them back with `used`, and the other one, the
    trainer's, learns from them.

    The targets of a batch are computed before the newest parameters are there, while the last update is under way. Only
    where theta^- are due to change with a batch, it waits for these parameters first.

    Args:
        targets: computes the targets of transitions.
        target_every: updates from one copy to the target network to the next.
        metrics: of this rank.
        wake: called when a batch was taken or learned.

    Attributes:
        target: theta^-.
        waiting: whether the trainer waits for a batch.
        ready: batches that wait for the trainer.
    """

    def __init__(self, targets: Targets, target_every: int, metrics: RankMetrics, wake: Callable[[], None]):
        self._targets, self._target_every = targets, target_every
        self.metrics, self._wake = metrics, wake
        self.waiting = False
        self._version: int | None = None  # at which the last gradient was taken
        self._batches: queue.SimpleQueue[Drawn] = queue.SimpleQueue()
        self._used: queue.SimpleQueue[Learned] = queue.SimpleQueue()
        self._current: Learned | None = None
        self._ended = threading.Event()

    @property
    def ready(self) -> int:
        return self._batches.qsize()

    def put(self, drawn: Drawn) -> None:
        """Brings a batch for the trainer."""
        self._batches.put(drawn)

    def used(self) -> list[Learned]:
        """The batches that the trainer has used since the last call."""
        return [self._used.get() for _ in range(self._used.qsize())]

    def next_batch(self, wait_for_snapshot: Callable[[], Snapshot | None]) -> tuple[Snapshot, Replayed] | None:
        self._give_back()
        with self.metrics.timer("wait_data"):
            drawn = self._take()
        if drawn is None:
            return None
        self._current = Learned(drawn, None)
        snapshot = None
        if self._version is None or self._copy_due(self._version + 1):
            snapshot = wait_for_snapshot()
            if snapshot is None:
                return None
            if self._copy_due(snapshot.version):  # or the step was refused, and the version is the same
                self.target = snapshot
        with self.metrics.timer("targets"):
            batch = drawn.batch._replace(target=self._targets(self.target_vector, drawn.batch))
        snapshot = snapshot or wait_for_snapshot()
        if snapshot is None:
            return None
        self._version = snapshot.version
        return snapshot, batch

    def learned(self, batch: Replayed, priorities: np.ndarray) -> None:
        assert self._current is not None  # `batch` is its
        self._current = self._current._replace(priorities=priorities)

    def get_state(self) -> dict[str, np.ndarray]:
        """The target network."""
        return {} if self.target is None else snapshot_state("target", self.target)

    def set_state(self, state: dict[str, np.ndarray], reset_seed: int) -> None:
        if "target.vector" in state:
            self.target = snapshot_from("target", state)

    def stop(self) -> None:
        self._ended.set()

    def _copy_due(self, version: int) -> bool:
        """Whether theta^- must be copied anew for the targets of the gradient at `version`."""
        return self.target is None or version - self.target.version >= self._target_every

    def _give_back(self) -> None:
        if self._current is not None:
            self._used.put(self._current)
            self._current = None

    def _take(self) -> Drawn | None:
        self._wake()
        while not self._ended.is_set():
            try:
                drawn = self._batches.get(timeout=0.0 if self.ready else POLL_SECONDS)
            except queue.Empty:
                self.waiting = True
                continue
            self.waiting = False
            return drawn
        return None
