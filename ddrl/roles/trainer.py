"""The thread of a worker that turns batches into gradients."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ddrl.job.role import failure_of
from ddrl.learner import Learner
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.roles.not_finite import where_not_finite
from ddrl.sampling.schedules import Schedule
from ddrl.types import DataPoints, LossContext, Snapshot


@dataclasses.dataclass(frozen=True)
class Gradient:
    """A gradient that the trainer hands over.

    Attributes:
        vector: the gradient <float32>[N].
        snapshot: the parameters at which it was taken.
        samples: number of data-points in it.
        finite: whether all its values are finite, and its norm in float32, too; sums of such gradients are then finite.
    """

    vector: np.ndarray
    snapshot: Snapshot
    samples: int
    finite: bool


class Trainer:
    """The thread that turns batches into gradients. Of the exchange, it waits for new parameters only.

    Args:
        wake: ends the sleep of the role loop; called when there is a gradient or an error.
        anneal: version -> factor of linear schedules, from 1 to 0.
        tensors: name and shape of each of the network's tensors, in the order of the flat vector.
        seed: seed of the random keys that a loss may ask for.

    Attributes:
        gradients: the gradients that the worker's role has to send.
        error: what FAILED says of an exception that ended the thread; None if there was none.
    """

    def __init__(
        self,
        schedule: Schedule,
        learner: Learner,
        metrics: RankMetrics,
        wake: Callable[[], None],
        anneal: Callable[[int], float],
        tensors: Sequence[tuple[str, tuple[int, ...]]],
        seed: tuple[int, ...] = (),
    ):
        self.schedule, self.learner, self.metrics, self._wake = schedule, learner, metrics, wake
        self._anneal, self._tensors, self._seed = anneal, tensors, seed
        self._told = False  # of a gradient that is not finite
        self.gradients: queue.SimpleQueue[Gradient] = queue.SimpleQueue()
        self.error: dict[str, str] | None = None
        self._snapshots: queue.SimpleQueue[Snapshot | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trainer", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def parameters(self, snapshot: Snapshot) -> None:
        """Hands the thread the parameters of the next step, in place of older ones that it has not taken yet."""
        with contextlib.suppress(queue.Empty):
            self._snapshots.get_nowait()
        self._snapshots.put(snapshot)

    def stop(self) -> None:
        """Ends the thread and the schedule; waits for the thread at most 10 seconds."""
        self._ended.set()
        self._snapshots.put(None)
        self.schedule.stop()
        if self._thread.ident is not None:
            self._thread.join(timeout=10.0)

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                item = self.schedule.next_batch(self._wait_for_snapshot)
                if item is None:
                    return
                self.gradients.put(self._gradient(*item))
                self._wake()
        except BaseException as error:  # noqa: BLE001  # an environment may raise SystemExit, too
            if self._ended.is_set():
                return  # the schedule was closed while it made its next batch
            self.error = failure_of(error)
            self._wake()

    def _gradient(self, snapshot: Snapshot, batch: DataPoints) -> Gradient:
        metrics = self.metrics
        with metrics.timer("gradient"):
            vector, values, priorities = self.learner.gradient(snapshot.parameters, batch, self._context(snapshot))
        contribution = self.schedule.contribution(batch)
        seen_finite = contribution is None or bool(np.isfinite(contribution).all())
        if contribution is not None:
            vector = np.concatenate([vector[: -contribution.size], contribution])
        lag = snapshot.version - batch.behaviour_version  # of each data-point; [T, B] of unrolls
        metrics.mean("lag", lag.mean(), lag.size)
        metrics.maximum("lag", lag.max())
        metrics.count("datapoints", lag.size)
        metrics.count("gradients")
        finite = seen_finite and math.isfinite(values["gradient_norm"])
        if finite:
            for name, value in values.items():
                metrics.mean(name, value)
            if priorities is not None:
                self.schedule.learned(batch, priorities)
        elif not self._told:
            self._told = True
            where = where_not_finite(self._tensors, vector, snapshot.parameters, batch, values)
            whose = f"the gradient of {metrics.role} {metrics.index} at update {snapshot.version:,}"
            metrics.event("gradient_not_finite", f"{whose} is not finite: {where}; later ones are not reported")
        return Gradient(vector, snapshot, lag.size, finite)

    def _context(self, snapshot: Snapshot) -> LossContext:
        wanted: dict[str, Any] = {"anneal": self._anneal(snapshot.version)}
        if "target" in self.learner.context:
            wanted["target"] = self.schedule.target_vector
        if "key" in self.learner.context:
            key = np.random.SeedSequence([*self._seed, max(0, snapshot.step)]).generate_state(2)
            wanted["key"] = key.astype(np.int32)
        return LossContext(**wanted)

    def _wait_for_snapshot(self) -> Snapshot | None:
        """The newest parameters; blocks until there are some at which no gradient has been taken. None at the end."""
        with self.metrics.timer("wait_parameters"):
            snapshot = self._snapshots.get()
        while snapshot is not None and not self._snapshots.empty():
            snapshot = self._snapshots.get()
        return snapshot
