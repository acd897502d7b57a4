"""How much of its budgets a resumed run had used before, according to the checkpoint from which it resumes."""

from __future__ import annotations

from ddrl.checkpoint import Checkpoint
from ddrl.job.layout import JobContext
from ddrl.roles.budget import Budget


class EarlierParts:
    """The parts of a run before this one: each resume begins a part. Without a resume they have used nothing.

    Args:
        context: the job's context.
        start: the checkpoint from which this part of the run started.

    Attributes:
        trained_seconds: training that counted to the budget of minutes when the previous part ended, if the checkpoint
            is its last one; else 0.
        agent_steps: of all earlier parts together.
    """

    def __init__(self, context: JobContext, start: Checkpoint):
        self.trained_seconds = float(start.counters.get("trained_seconds", 0.0))
        self.agent_steps = int(start.counters.get("acted_agent_steps", start.agent_steps))
        self._end = dict(start.counters.get("end", {}))
        self._context, self._wall_seconds = context, start.wall_seconds

    @property
    def planned_seconds(self) -> float:
        """Wall time of the run, in seconds, when this part's budget of minutes is used up; 0 without such a budget."""
        minutes = self._context.config.run.minutes
        return self._wall_seconds + 60.0 * minutes - self._context.spent_seconds if minutes else 0.0

    def end(self, budget: Budget) -> tuple[str, str] | None:
        """Status and message of a run whose earlier parts left nothing to train; None if they left something.

        Of the minutes, earlier parts have used what the launcher says (`spent_seconds`), or all of them if only the
        final evaluation is missing. Only the last checkpoint of a part says how long the part trained, so training
        continues from an older one.
        """
        done = self._context.evaluates_only and self.trained_seconds > 0.0
        if done and self._end:
            return self._end["status"], self._end["message"]
        seconds = 60.0 * self._context.config.run.minutes if done else self._context.spent_seconds
        reason = budget.used_up_before(self.agent_steps, seconds)
        return ("finished", reason) if reason else None
