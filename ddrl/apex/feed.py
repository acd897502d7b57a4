"""Brings the learner of Ape-X, which does not act, its batches from the replay shards."""

from __future__ import annotations

from collections.abc import Callable

from ddrl.apex.remote_replay import RemoteReplay
from ddrl.apex.sampler import Sampler
from ddrl.errors import read_as
from ddrl.exchange.transport import Event
from ddrl.job.feed import Feed, State
from ddrl.job.role import Wait
from ddrl.learner import as_device_vector
from ddrl.replay.storage import OTHER
from ddrl.reporting.rank_metrics import RankMetrics


class ReplayFeed(Feed):
    """The feed of Ape-X's learner.

    Args:
        sampler: gets batches from the replay shards.
        schedule: hands them to the trainer.
    """

    def __init__(self, sampler: Sampler, schedule: RemoteReplay):
        self.sampler, self.schedule = sampler, schedule

    def begin(self, state: State, agent_steps: int) -> None:
        target = self.schedule.target
        if target is not None:
            self.schedule.target = target._replace(parameters=as_device_vector(target.parameters))
        with read_as("the state of the learner in the checkpoint", OTHER):
            self.sampler.begin(state, agent_steps)

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
        if self.sampler.all_spoken:
            metrics.gauge("replay_size", self.sampler.size)

    def halt(self) -> None:
        self.sampler.halt()
