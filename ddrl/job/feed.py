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
    """Brings nothing, for a worker whose schedule makes its batches. The worker's role calls the methods."""

    def begin(self, state: State, agent_steps: int) -> None:
        """The run begins, or resumes after `agent_steps`; `state` is the worker's saved state, arrays by name."""

    def handle(self, event: Event) -> None:
        """Takes one message or blob, or the death of a process."""

    def advance(self) -> None:
        """Does what is due by itself, once the run has begun."""

    def due(self) -> bool:
        """Whether a message may come at any moment that the trainer waits for."""
        return False

    def waits(self) -> Wait | None:
        """What the trainer waits for, if that is a batch."""
        return None

    def updated(self, version: int) -> None:
        """Parameters of this version have arrived."""

    def save(self, step: int, state: State, done: Callable[[State], None]) -> None:
        """Calls `done` with the worker's state for a checkpoint: that of the schedule, `state`, and the feed's own."""
        done(state)

    def report(self, metrics: RankMetrics) -> None:
        """Adds the feed's own numbers to a report."""

    def halt(self) -> None:
        """Learning is over, so no more batches are needed."""
