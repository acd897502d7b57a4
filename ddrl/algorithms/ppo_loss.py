"""The loss of PPO, a pure function of tensors."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ddrl.algorithms.actor_critic_loss import actor_critic_loss
from ddrl.algorithms.ppo import PPOConfig
from ddrl.ops import distributions, policy_gradient
from ddrl.types import LossOutput, Transitions

NORMALIZATION_EPSILON = 1e-8  # the spread of equal advantages is 0


def loss(network: Any, vector: Any, auxiliary: Any, batch: Transitions, config: PPOConfig) -> LossOutput:
    """Clipped objective of PPO (Schulman et al. 2017, equations 7 and 9, as a loss to minimise).

    clipped surrogate + value_cost mean(w (R - V)^2) - entropy_cost mean(w H), means over all M rows.

    The denominator of the ratio is the log-probability recorded when acting. With `value_clip_range` c > 0 the
    square is the larger one of V and of V held within c of the value when acting, R - A (baselines' ppo2).

    Args:
        network: (vector, observations) -> PolicyValue, with its `action_space`.
        vector: <float32>[N], or whatever else the network takes as its parameters.
        auxiliary: unused; the algorithm has no target parameters.
        batch: tensors with the fields of Transitions, M rows.
        config: weights of the parts, ranges of the clips, whether advantages are normalized.

    Returns:
        LossOutput with the metrics of `actor_critic_loss`, the advantages before they are normalized, and those of
        `clipped_surrogate_loss`.
    """
    del auxiliary
    policy, value = network(vector, batch.observation)
    value.shape.assert_is_compatible_with(batch.return_.shape)
    log_probs = distributions.log_prob(network.action_space, policy, batch.action)
    advantages = batch.advantage
    if config.normalize_advantages:
        advantages = normalize(advantages, batch.weight)
    policy_loss, metrics = policy_gradient.clipped_surrogate_loss(
        log_probs, batch.behaviour_log_prob, advantages, batch.weight, config.clip_range
    )
    return actor_critic_loss(
        policy_loss,
        _square_errors(value, batch, config.value_clip_range),
        distributions.entropy(network.action_space, policy),
        batch.advantage,
        value,
        batch.weight,
        config,
        metrics,
    )


def normalize(advantages: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """(A - mean) / (standard deviation + 1e-8) <float32>[M], both over the rows of weight 1.

    Each batch by itself: the mean of the gradients of two halves is then not that of the whole.
    """
    centered = advantages - policy_gradient.mean_of_counted(advantages, weights)
    deviation = tf.sqrt(policy_gradient.mean_of_counted(tf.square(centered), weights))
    return centered / (deviation + NORMALIZATION_EPSILON)


def _square_errors(value: tf.Tensor, batch: Transitions, clip_range: float) -> tf.Tensor:
    squares = tf.square(batch.return_ - value)
    if not clip_range:
        return squares
    value_when_acting = batch.return_ - batch.advantage
    clipped = value_when_acting + tf.clip_by_value(value - value_when_acting, -clip_range, clip_range)
    return tf.maximum(squares, tf.square(batch.return_ - clipped))
