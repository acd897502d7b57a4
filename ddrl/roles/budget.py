"""When a run ends by itself, and when a checkpoint is due. Pure bookkeeping for the chief."""

from __future__ import annotations

import time

from ddrl.checkpoint import Checkpoint
from ddrl.config import RunConfig
from ddrl.reporting.texts import counted


class Budget:
    """Counts against the budgets of a run.

    Args:
        start: what this part of the run started from; agent steps and updates count over all parts, minutes
            over this one.
    """

    def __init__(self, config: RunConfig, start: Checkpoint):
        self.config, self._start = config, start
        self._checkpointed_version = start.version
        self._last_checkpoint = time.monotonic()

    def used_up(self, agent_steps: int, seconds: float) -> str | None:
        """Which budget is used up after these agent steps (all parts) and seconds (this part), or None."""
        config = self.config
        if config.minutes and seconds >= 60 * config.minutes:
            minutes = "1 minute" if config.minutes == 1 else f"{config.minutes:g} minutes"
            return f"the budget of {minutes} is used up"
        if config.agent_steps and agent_steps >= config.agent_steps:
            return f"the budget of {counted(config.agent_steps, 'agent step')} is used up"
        return None

    def used_up_before(self, agent_steps: int, seconds: float = 0.0) -> str | None:
        """Which budget earlier parts of the run had used up already, with so many agent steps, or None.

        Args:
            seconds: of the part before, where this one only does what that had left.
        """
        if self.last_update(self._start.version):
            return self.updates_used_up()
        return self.used_up(agent_steps, seconds)

    def updates_used_up(self) -> str:
        """What is said where the last update is made."""
        return f"the budget of {counted(self.config.max_updates, 'update')} is used up"

    def last_update(self, version: int) -> bool:
        """Whether the update that leads to `version` is the last one."""
        return bool(self.config.max_updates) and version >= self.config.max_updates

    def checkpoint_due(self, version: int, now: float) -> bool:
        """Whether a checkpoint is to be taken with the update that leads to `version`."""
        config = self.config
        every = config.checkpoint_every_updates
        by_count = every and version // every > self._checkpointed_version // every
        if config.reset_at_checkpoint:  # which has to come with the same updates in every run
            return bool(by_count)
        return bool(by_count) or now - self._last_checkpoint >= 60 * config.checkpoint_every_minutes

    def checkpointed(self, version: int, now: float) -> None:
        """A checkpoint of `version` is being taken."""
        self._checkpointed_version, self._last_checkpoint = version, now
