"""BA3C: batch asynchronous advantage actor-critic (Adamski et al. 2018; A3C of Mnih et al. 2016).

Settings and reward transform only: `ddrl.algorithms.ba3c_loss` holds the loss, so that reading the
settings does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class BA3CConfig:
    """Loss of BA3C."""

    discount: float = 0.99
    """Discount per agent step (gamma)."""
    unroll_length: int = 5
    """Agent steps n of the n-step return; each state of a segment bootstraps to the segment's end."""
    entropy_cost: float = 0.01
    """Weight of the policy entropy bonus."""
    value_cost: float = 0.5
    """Weight of the value loss."""
    reward_clip: float = 1.0
    """Rewards are clipped to [-x, x] for the returns only (0: not clipped); scores stay raw."""
    importance_clip: float = 0.0
    """Upper clip of the importance ratio pi/mu that corrects for the lag (0: no correction)."""
    log_epsilon: float = 1e-6
    """Added to the probability inside the logarithm of the policy loss."""


def transform_reward(rewards: np.ndarray, config: BA3CConfig) -> np.ndarray:
    """Rewards <float32>[...] as the returns see them: clipped to +-reward_clip (0: unchanged)."""
    rewards = np.asarray(rewards, np.float32)
    if config.reward_clip == 0.0:
        return rewards
    return np.clip(rewards, -config.reward_clip, config.reward_clip)
