"""Where a worker's batches come from, beside its schedule: nowhere else, or the replay shards of Ape-X."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ddrl.errors import read_as
from ddrl.exchange.transport import Event
from ddrl.learner import as_device_vector
from ddrl.replay.storage import OTHER
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.roles.job import Wait
from ddrl.roles.sampler import Sampler
from ddrl.sampling.remote_replay import RemoteReplay

State = dict[str, np.ndarray]


class Feed:
    """A worker that acts needs none: the schedule has its batches. The methods are called by the worker's role."""

    def begin(self, state: State) -> None:
        """The run begins, and the schedule has this state, <..>[..] by name."""

    def handle(self, event: Event) -> None:
        """Takes one message, blob or death."""

    def advance(self) -> None:
        """Does what is due by itself, once the run has begun."""

    def due(self) -> bool:
        """Whether a message may come that the trainer waits for."""
        return False

    def waits(self) -> Wait | None:
        """What the trainer waits for, if that is a batch."""
        return None

    def updated(self, version: int) -> None:
        """There are parameters of this version."""

    def save(self, step: int, state: State, done: Callable[[State], None]) -> None:
        """Has `done` take the worker's state at a checkpoint, which is the schedule's and what else belongs to it."""
        done(state)

    def report(self, metrics: RankMetrics) -> None:
        """Adds what it has to tell to a report."""

    def halt(self) -> None:
        """Learning is over."""


class ReplayFeed(Feed):
    """That of the learner of Ape-X, which does not act.

    Args:
        sampler: brings the batches.
        schedule: takes them.
    """

    def __init__(self, sampler: Sampler, schedule: RemoteReplay):
        self.sampler, self.schedule = sampler, schedule

    def begin(self, state: State) -> None:
        target = self.schedule.target
        if target is not None:
            self.schedule.target = target._replace(vector=as_device_vector(target.vector))
        with read_as("the state of the learner in the checkpoint", OTHER):
            self.sampler.begin(state)

    def handle(self, event: Event) -> None:
        self.sampler.handle(event)

    def advance(self) -> None:
        self.sampler.advance()

    def due(self) -> bool:
        return self.sampler.due()

    def waits(self) -> Wait | None:
        return self.sampler.waits() if self.schedule.waiting else None

    def updated(self, version: int) -> None:
        self.sampler.version = version

    def save(self, step: int, state: State, done: Callable[[State], None]) -> None:
        self.sampler.save(step, state, done)

    def report(self, metrics: RankMetrics) -> None:
        metrics.gauge("replay_size", self.sampler.size)

    def halt(self) -> None:
        self.sampler.halt()
