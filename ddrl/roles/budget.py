"""Tells the chief when a run ends by itself, and when a checkpoint is due."""

from __future__ import annotations

import time

from ddrl.checkpoint import Checkpoint
from ddrl.config import RunConfig
from ddrl.wording import counted, plural


class Budget:
    """Compares a run with its budgets: agent steps and updates of all its parts, and minutes.

    Args:
        config: settings of the run, with its budgets.
        start: the checkpoint from which this part of the run started.
    """

    def __init__(self, config: RunConfig, start: Checkpoint):
        self.config, self._start = config, start
        self._checkpointed_version = start.version
        self._last_checkpoint = time.monotonic()

    def used_up(self, agent_steps: int, seconds: float) -> str | None:
        """A text that says which budget is used up, or None.

        Args:
            agent_steps: agent steps in all parts of the run.
            seconds: wall time that counts to the budget of minutes.
        """
        config = self.config
        if config.minutes and seconds >= 60 * config.minutes:
            return f"the budget of {config.minutes:g} {plural('minute', config.minutes)} is used up"
        if config.agent_steps and agent_steps >= config.agent_steps:
            return f"the budget of {counted(config.agent_steps, 'agent step')} is used up"
        return None

    def used_up_before(self, agent_steps: int, seconds: float = 0.0) -> str | None:
        """A text that says which budget the earlier parts of the run had used up, or None.

        Args:
            agent_steps: agent steps in the earlier parts.
            seconds: wall time that they have used of the budget of minutes.
        """
        if self.last_update(self._start.version):
            return self.updates_used_up()
        return self.used_up(agent_steps, seconds)

    def updates_used_up(self) -> str:
        """The text that says that the budget of updates is used up."""
        return f"the budget of {counted(self.config.max_updates, 'update')} is used up"

    def last_update(self, version: int) -> bool:
        """Whether the update that leads to `version` is the last one."""
        return bool(self.config.max_updates) and version >= self.config.max_updates

    def checkpoint_due(self, version: int, now: float) -> bool:
        """Whether a checkpoint is to be taken with the update that leads to `version`."""
        config = self.config
        every = config.checkpoint_every_updates
        by_count = every and version // every > self._checkpointed_version // every
        if config.reset_at_checkpoint:  # resets must come with the same updates in every run, whatever the time
            return bool(by_count)
        return bool(by_count) or now - self._last_checkpoint >= 60 * config.checkpoint_every_minutes

    def checkpointed(self, version: int, now: float) -> None:
        """Notes that a checkpoint of `version` is being taken."""
        self._checkpointed_version, self._last_checkpoint = version, now
