"""The algorithms: one file of settings and one pure loss each. Importing this imports no TensorFlow."""

from __future__ import annotations

from ddrl.algorithms.a2c import A2CConfig
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.algorithms.dpg import DPGConfig
from ddrl.algorithms.dqn import DQNConfig
from ddrl.algorithms.impala import ImpalaConfig
from ddrl.algorithms.ppo import PPOConfig
from ddrl.algorithms.settings import ActorCriticConfig, transform_reward

__all__ = [
    "ALGORITHMS", "A2CConfig", "ActorCriticConfig", "BA3CConfig", "DPGConfig", "DQNConfig", "ImpalaConfig", "PPOConfig",
    "ReplayAlgorithm", "transform_reward",
]  # fmt: skip

ReplayAlgorithm = DQNConfig | DPGConfig
"""Settings of an algorithm that learns from a replay."""
ALGORITHMS: dict[str, type[ActorCriticConfig | ReplayAlgorithm]] = {
    config.name: config for config in (BA3CConfig, A2CConfig, PPOConfig, ImpalaConfig, DQNConfig, DPGConfig)
}
