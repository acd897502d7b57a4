"""The loss of each algorithm. Importing this imports TensorFlow."""

from __future__ import annotations

from ddrl.algorithms import ActorCriticConfig, DQNConfig, a2c_loss, ba3c_loss, dqn_loss, impala_loss, ppo_loss

LOSSES = {
    "a2c": a2c_loss.loss,
    "ba3c": ba3c_loss.loss,
    "dqn": dqn_loss.loss,
    "impala": impala_loss.loss,
    "ppo": ppo_loss.loss,
}


def loss_of(algorithm: ActorCriticConfig | DQNConfig):
    """The pure function (network, vector, auxiliary, batch, config) -> LossOutput of these settings."""
    return LOSSES[algorithm.name]
