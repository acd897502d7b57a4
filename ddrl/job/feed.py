"""The interface by which a worker gets batches that others acted for; its base class `Feed` brings none.

A worker that acts needs no more than `Feed`, since its schedule makes its batches. The learner of Ape-X does not act:
its feed is `ddrl.apex.feed.ReplayFeed`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ddrl.exchange.transport import Event
from ddrl.job.role import Wait
from ddrl.reporting.rank_metrics import RankMetrics

State = dict[str, np.ndarray]


class Feed:
    """A feed without batches, for a worker whose schedule makes them. The worker's role calls its methods."""

    def begin(self, state: State, agent_steps: int) -> None:
        """Begins, or resumes after `agent_steps`, with the worker's saved state, arrays by name."""

    def handle(self, event: Event) -> None:
        """Takes one message or blob, or the death of a process."""

    def advance(self) -> None:
        """Does the work that no message asks for; called after every poll, once the run has begun."""

    def due(self) -> bool:
        """Whether a message for which the trainer waits may come at any moment."""
        return False

    def waits(self) -> Wait | None:
        """The trainer's wait for a batch; None if it does not wait for one."""
        return None

    def updated(self, version: int) -> None:
        """Notes that parameters of this version have arrived."""

    def save(self, step: int, state: State, done: Callable[[State], None]) -> None:
        """Calls `done` with the worker's state for a checkpoint: the schedule's `state` joined with the feed's own."""
        done(state)

    def report(self, metrics: RankMetrics) -> None:
        """Adds the feed's own numbers to a report."""

    def halt(self) -> None:
        """Notes that learning is over, so that no more batches are needed."""
