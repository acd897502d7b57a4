"""The role of Ape-X's learner: a worker that does not act, and whose batches come from replay shards."""

from __future__ import annotations

import numpy as np

from ddrl.checkpoint import decode_arrays
from ddrl.errors import read_as
from ddrl.exchange.transport import Event
from ddrl.learner import as_device_vector
from ddrl.replay.storage import OTHER
from ddrl.roles.job import Wait
from ddrl.roles.sampler import Sampler
from ddrl.roles.worker import WorkerRole
from ddrl.types import Snapshot


class LearnerRole(WorkerRole):
    """See the module.

    Args:
        sampler: brings the batches.
    """

    def __init__(self, *args, sampler: Sampler):
        super().__init__(*args)
        self.sampler = sampler

    def handle(self, event: Event) -> None:
        super().handle(event)
        self.sampler.handle(event)

    def advance(self) -> None:
        super().advance()
        if self._begun:
            self.sampler.advance()

    def due(self) -> bool:
        return super().due() or self.sampler.due()

    def waits(self) -> Wait | None:
        learning = self._begun and not self._stopped
        return self.sampler.waits() if learning and self.schedule.waiting else super().waits()

    def _begin(self, data: bytes) -> None:
        state = decode_arrays(data)
        super()._begin(data)
        if self.schedule.target is not None:
            target = self.schedule.target
            self.schedule.target = target._replace(vector=as_device_vector(target.vector))
        with read_as("the state of the learner in the checkpoint", OTHER):
            self.sampler.begin(state)

    def _on_snapshot(self, snapshot: Snapshot) -> None:
        self.sampler.version = snapshot.version
        super()._on_snapshot(snapshot)

    def _send_state(self, step: int, state: dict[str, np.ndarray]) -> None:
        """The replay is a part of it."""
        self.sampler.save(step, state, lambda whole: super(LearnerRole, self)._send_state(step, whole))

    def _report(self) -> None:
        self.metrics.gauge("replay_size", self.sampler.size)
        super()._report()

    def _stop(self) -> None:
        super()._stop()
        self.sampler.halt()
