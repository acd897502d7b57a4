"""Where a worker's batches come from, beside its schedule: nowhere else, unless others act for it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ddrl.exchange.transport import Event
from ddrl.job.role import Wait
from ddrl.reporting.rank_metrics import RankMetrics

State = dict[str, np.ndarray]


class Feed:
    """A worker that acts needs none: the schedule has its batches. The methods are called by the worker's role."""

    def begin(self, state: State, agent_steps: int) -> None:
        """The run begins or goes on after so many agent steps, and the schedule has this state, <..>[..] by name."""

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
