"""The schedules: who steps which simulators when, with which version of the parameters.

All turn actors into a stream of batches behind one interface, so that a trainer need not know which it has. Those
that fill whole rollouts are in `ddrl.sampling.rollout_schedules`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.sampling.actor import furthest_draw, part
from ddrl.sampling.batcher import Batcher
from ddrl.sampling.data_points import DataPointActor
from ddrl.sampling.normalization import Seen
from ddrl.sampling.rollouts import POLL_SECONDS, UnrollActor
from ddrl.types import DataPoints, Snapshot


class Schedule(Protocol):
    """The interface of all schedules to the trainer. `update` may be called from another thread than `next_batch`.

    Attributes:
        target: theta^-: the parameters of the target networks for a replay, those that a rollout was begun with for
            rollouts; None before there are any.
        seen: counts for the running statistics; None if there are none.
        working: called again and again while `get_state` writes files (None: nothing is called).
    """

    target: Snapshot | None = None
    seen: Seen | None = None
    working: Callable[[], object] | None = None

    @property
    def target_vector(self) -> Any:
        """theta^- <float32>[N].

        Raises:
            RuntimeError: there are none, or none yet.
        """
        if self.target is None:
            raise RuntimeError(f"{type(self).__name__} has no parameters of target networks")
        return self.target.parameters

    def update(self, snapshot: Snapshot) -> None:
        """Act with these parameters from now on; does nothing where acting takes those of `next_batch`."""
        return

    def next_batch(self, wait_for_snapshot: Callable[[], Snapshot | None]) -> tuple[Snapshot, Any] | None:
        """The next batch, and a snapshot with the step that its gradient is for; None when the schedule has ended.

        The gradient is taken at the snapshot's parameters: those of the step, unless the schedule delays it.

        Args:
            wait_for_snapshot: blocks until the parameters of the next step are there; None at the end.
        """

    def counters(self) -> dict[str, np.ndarray]:
        """The counts on which random numbers depend, to be saved where `get_state` gives nothing.

        With them, no draw recurs after a resume.
        """
        return {}

    def learned(self, batch: Any, priorities: np.ndarray) -> None:
        """Takes the priorities from the loss of a batch whose gradient was finite; does nothing without a replay.

        Args:
            batch: from `next_batch`.
            priorities: <float32>[M] of its rows.
        """
        return

    def contribution(self, batch: Any) -> np.ndarray | None:
        """The moments <float32>[S] that the gradient of a batch carries for the running statistics; None for nothing.

        To be called once for each batch, before the next one.
        """
        return None if self.seen is None else self.seen.of_batch(batch)

    def get_state(self) -> dict[str, np.ndarray]:
        """State for a checkpoint, taken while the trainer waits for parameters."""

    def set_state(self, state: dict[str, np.ndarray], reset_seed: int) -> None:
        """Goes on where a checkpoint was taken.

        Args:
            state: from `get_state`; empty at the beginning of a run.
            reset_seed: of simulators that could not be saved, which are reset.
        """

    def stop(self) -> None:
        """Ends acting; bounded."""


class Asynchronous(Schedule):
    """BA3C's local asynchronous schedule: one predictor thread per actor beside the trainer.

    Each predictor acts with the newest parameters at every query. Full batches wait in a bounded queue: the
    trainer waits on it only when acting is slower, predictors only when training is slower (which bounds the
    lag); nobody waits for the exchange but the trainer.

    Args:
        actors: one per predictor thread.
        queue_batches: full batches that may wait.
        metrics: of this rank.
        ended: shared with the actors, which stop when it is set.

    Raises:
        Exception: whatever ended a predictor thread, from `next_batch`.
    """

    def __init__(
        self,
        actors: Sequence[DataPointActor | UnrollActor],
        queue_batches: int,
        metrics: RankMetrics,
        ended: threading.Event | None = None,
    ):
        self.actors, self.metrics = actors, metrics
        self._queue: queue.Queue[Any] = queue.Queue(queue_batches)
        self._snapshot: Snapshot | None = None
        self._ended = ended or threading.Event()
        self._error: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._predict, args=(actor,), name=f"predictor-{i}", daemon=True)
            for i, actor in enumerate(actors)
        ]

    def update(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def next_batch(self, wait_for_snapshot: Callable[[], Snapshot | None]) -> tuple[Snapshot, Any] | None:
        with self.metrics.timer("wait_data"):
            batch = self._take()
        snapshot = wait_for_snapshot()
        return None if batch is None or snapshot is None else (snapshot, batch)

    def get_state(self) -> dict[str, np.ndarray]:
        # Predictors run on meanwhile: simulators are not saved, only the counters of the action streams.
        return {f"actor{i}.draws": actor.draws() for i, actor in enumerate(self.actors)}

    def set_state(self, state: dict[str, np.ndarray], reset_seed: int) -> None:
        for i, actor in enumerate(self.actors):
            if len(state.get(f"actor{i}.draws", ())) == len(actor.draws()):
                actor.set_state({"draws": state[f"actor{i}.draws"]})
            else:  # other groups than before: nobody knows whose stream was whose
                actor.begin_at(furthest_draw(state))
            actor.reset(reset_seed + i)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout=5.0)

    def _take(self) -> Any:
        while not self._ended.is_set():
            try:
                return self._queue.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
        if self._error is not None:
            raise self._error
        return None

    def _predict(self, actor: DataPointActor | UnrollActor) -> None:
        try:
            while self._snapshot is None and not self._ended.is_set():
                self._ended.wait(POLL_SECONDS)
            while not self._ended.is_set():
                for batch in actor.advance(self._newest):
                    self._put(batch)
        except BaseException as error:  # noqa: BLE001 - `next_batch` raises it
            self._error = error
            self._ended.set()

    def _newest(self) -> Snapshot:
        assert self._snapshot is not None  # `_predict` waited for the first
        return self._snapshot

    def _put(self, batch: Any) -> None:
        while not self._ended.is_set():
            try:
                self._queue.put(batch, timeout=POLL_SECONDS)
                return
            except queue.Full:
                continue


class Synchronized(Schedule):
    """Acts until a batch of data-points is full, then learns from it, in turn, in one thread: BA3C's serial twin.

    Every action is drawn from the newest parameters, and a run is a function of its seed alone.
    """

    def __init__(self, actor: DataPointActor):
        assert isinstance(actor.batcher, Batcher)  # there are no epochs here: the configuration refuses them
        self.actor, self.batcher = actor, actor.batcher
        self._ended = False
        self._acting = threading.Lock()

    def next_batch(self, wait_for_snapshot: Callable[[], Snapshot | None]) -> tuple[Snapshot, DataPoints] | None:
        snapshot = wait_for_snapshot()
        if snapshot is None or self._ended:
            return None
        with self._acting:
            batch = self._act(snapshot)
        return None if batch is None else (snapshot, batch)

    def _act(self, snapshot: Snapshot) -> DataPoints | None:
        if self.actor.received:
            self.actor.infer(snapshot)
        else:
            self.actor.receive(snapshot)
        full: list[DataPoints] = []
        while not full and not self._ended:
            self.actor.act()
            self.actor.store()
            self.actor.receive(snapshot)
            full = self.actor.close()
        return full[0] if full else None  # a single one: a batch has room for all that one step can complete

    def get_state(self) -> dict[str, np.ndarray]:
        """Empty in the middle of acting, which is where a straggler is for which the quorum did not wait."""
        if not self._acting.acquire(blocking=False):
            return {}
        try:
            return self._state()
        finally:
            self._acting.release()

    def counters(self) -> dict[str, np.ndarray]:
        return {"actor.draws": self.actor.draws()}

    def _state(self) -> dict[str, np.ndarray]:
        state = {f"actor.{k}": v for k, v in self.actor.get_state().items()}
        if "actor.step.env_id" in state:
            state |= {f"batcher.{k}": v for k, v in self.batcher.get_state().items()}
        return state

    def set_state(self, state: dict[str, np.ndarray], reset_seed: int) -> None:
        actor, batcher = part(state, "actor."), part(state, "batcher.")
        if actor and self.actor.set_state(actor):
            self.batcher.set_state(batcher)
        else:
            if not actor:  # the run begins, or its schedule was asynchronous
                self.actor.begin_at(furthest_draw(state))
            self.actor.reset(reset_seed)
            self.batcher.clear()

    def stop(self) -> None:
        self._ended = True


def snapshot_state(name: str, snapshot: Snapshot) -> dict[str, np.ndarray]:
    """A snapshot as a schedule's state has it: NAME.version and NAME.vector, without the step."""
    return {f"{name}.version": np.int64(snapshot.version), f"{name}.vector": np.asarray(snapshot.parameters)}


def snapshot_from(name: str, state: dict[str, np.ndarray]) -> Snapshot:
    """The inverse of `snapshot_state`; its step is -1."""
    return Snapshot(int(state[f"{name}.version"]), -1, state[f"{name}.vector"])
