"""Settings of the replay. Imports neither TensorFlow nor the replay itself."""

from __future__ import annotations

import dataclasses

from ddrl import checks


@dataclasses.dataclass(frozen=True)
class ReplayConfig:
    """Replay."""

    replay_capacity: int = 1_000_000
    """Transitions kept by each worker, or by all replay shards. A worker's simulators share them; a million of Atari
    take 7.3 GB."""
    replay_minimum: int = 50_000
    """Agent steps of random actions before learning. They are counted per worker. In Ape-X, this counts transitions in
    the replay, whatever the actions."""
    priority_exponent: float = 0.0
    """Exponent of the priorities by which the replay is sampled (0: uniformly)."""
    importance_exponent: float = 0.4
    """Exponent beta of the importance weights of prioritized sampling, at the start."""
    importance_exponent_end: float = 1.0
    """Beta at the end. It changes linearly."""
    importance_agent_steps: int = 0
    """Agent steps of all workers over which beta changes (0: by --importance-updates)."""
    importance_updates: int = 1_000_000
    """Updates over which beta changes, unless --importance-agent-steps says otherwise."""

    def __post_init__(self) -> None:
        checks.at_least(self, 1, "replay_capacity", "replay_minimum", "importance_updates")
        checks.at_least(self, 0, "importance_agent_steps")
        checks.between(self, 0.0, 1.0, "priority_exponent", "importance_exponent", "importance_exponent_end")

    def importance(self, updates: int, agent_steps_per_update: float) -> float:
        """Beta after so many updates; 0 where all transitions are drawn alike.

        Args:
            updates: so far.
            agent_steps_per_update: of all workers together.
        """
        if not self.priority_exponent:
            return 0.0
        if self.importance_agent_steps:
            part = min(1.0, updates * agent_steps_per_update / self.importance_agent_steps)
        else:
            part = min(1.0, updates / self.importance_updates)
        return self.importance_exponent + part * (self.importance_exponent_end - self.importance_exponent)
