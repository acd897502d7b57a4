"""What earlier parts of a run had of its budgets, by the checkpoint that this part goes on from."""

from __future__ import annotations

from ddrl.checkpoint import Checkpoint
from ddrl.job.layout import JobContext
from ddrl.roles.budget import Budget


class EarlierParts:
    """Of a run that is not resumed they had nothing.

    Args:
        context: of the job.
        start: what this part of the run started from.

    Attributes:
        trained_seconds: that the part before trained, where the checkpoint is its last one; else 0.
        agent_steps: that all of them acted.
    """

    def __init__(self, context: JobContext, start: Checkpoint):
        self.trained_seconds = float(start.counters.get("trained_seconds", 0.0))
        self.agent_steps = int(start.counters.get("acted_agent_steps", start.agent_steps))
        self._context, self._wall_seconds = context, start.wall_seconds

    @property
    def planned_seconds(self) -> float:
        """Wall time that the run will have had when its budget of minutes is used up; 0 without one."""
        minutes = self._context.config.run.minutes
        return self._wall_seconds + 60.0 * minutes if minutes else 0.0

    def used_up(self, budget: Budget) -> str | None:
        """Which budget they had used up, or None. Minutes count anew, unless all else is done; only the last checkpoint
        knows for how long the run was trained: from an older one training goes on."""
        done = self._context.evaluates_only and self.trained_seconds > 0.0
        seconds = 60.0 * self._context.config.run.minutes if done else 0.0
        return budget.used_up_before(self.agent_steps, seconds)
