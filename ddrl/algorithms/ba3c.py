"""BA3C: batch asynchronous advantage actor-critic (Adamski et al. 2018; A3C of Mnih et al. 2016).

Settings only: `ddrl.algorithms.ba3c_loss` holds the loss, so that reading the settings does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from ddrl import checks
from ddrl.algorithms.settings import ActorCriticConfig


@dataclasses.dataclass(frozen=True)
class BA3CConfig(ActorCriticConfig):
    """Loss of BA3C."""

    name: ClassVar[str] = "ba3c"
    on_data_points: ClassVar[bool] = True

    importance_clip: float = 0.0
    """Upper clip of the importance ratio pi/mu that corrects for the lag (0: no correction)."""
    log_epsilon: float = 1e-6
    """Added to the probability inside the logarithm of the policy loss."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least(self, 0.0, "importance_clip", "log_epsilon")
