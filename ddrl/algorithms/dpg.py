"""DPG: a deterministic policy and a critic that learn from a replay (Lillicrap et al. 2016; Horgan et al. 2018).

Settings only: targets and loss are in `ddrl.algorithms.dpg_loss`, priorities are the replay's.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from ddrl import checks
from ddrl.types import DeterministicHead


@dataclasses.dataclass(frozen=True)
class DPGConfig:
    """Deterministic policy gradients."""

    name: ClassVar[str] = "dpg"
    on_data_points: ClassVar[bool] = False
    from_replay: ClassVar[bool] = True
    head: ClassVar[DeterministicHead] = DeterministicHead()  # of the network

    discount: float = 0.99
    """Discount per agent step (gamma)."""
    n_step: int = 5
    """Agent steps whose rewards a target sums before it bootstraps."""
    slope_clip: float = 1.0
    """The critic's gradient by the action, in units of half its range, is clipped to [-x, x] in each component before it
    goes into the policy (0: not clipped)."""
    noise: float = 0.3
    """Standard deviation of the normal noise on every action in training, in units of half the action's range."""
    reward_clip: float = 0.0
    """Rewards are clipped to [-x, x] for learning only (0: not clipped); scores stay raw."""
    reward_scale: float = 1.0
    """Factor on rewards for learning, before they are clipped."""
    target_updates: int = 100
    """Updates from one copy of the parameters to the target networks to the next."""
    steps_per_update: int = 8
    """Agent steps of this worker per gradient."""

    def __post_init__(self) -> None:
        checks.between(self, 0.0, 1.0, "discount", why="returns grow without bound above 1")
        checks.at_least(self, 1, "n_step", "target_updates", "steps_per_update")
        checks.at_least(self, 0.0, "slope_clip", "noise", "reward_clip")
        checks.above(self, 0.0, "reward_scale", why="0 would hide every reward")

    @property
    def target_period(self) -> int:
        """Agent steps of this worker from one copy to the target networks to the next."""
        return self.target_updates * self.steps_per_update
