"""The loss of BA3C, a pure function of tensors."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ddrl.algorithms.actor_critic_loss import actor_critic_loss
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.ops import distributions, policy_gradient
from ddrl.types import DataPoints, LossOutput


def loss(network: Any, vector: Any, anneal: Any, batch: DataPoints, config: BA3CConfig) -> LossOutput:
    """Advantage actor-critic loss, averaged over the batch, in float32.

    policy_loss + value_cost mean((R - V)^2) - entropy_cost mean(H)

    with policy_loss = -mean(w log(pi(a|s) + log_epsilon) (R - V)), no gradient through w and R - V
    (Mnih et al. 2016, section 4.3; Adamski et al. 2018). The value loss is the mean of whole squares, not of
    halves: value_cost 0.5 equals tensorpack's and the BA3C lineage's `l2_loss` over the batch size.
    w = min(pi/mu, importance_clip), or 1 when that setting is 0.

    Args:
        network: (vector, observations) -> PolicyValue, with its `action_space`.
        vector: <float32>[N], or whatever else the network takes as its parameters.
        anneal: unused; nothing here follows a schedule.
        batch: tensors with the fields of DataPoints.
        config: weights of the parts.

    Returns:
        LossOutput with the metrics of `actor_critic_loss` and the mean importance ratio (clipped).
    """
    del anneal
    policy, value = network(vector, batch.observation)
    value.shape.assert_is_compatible_with(batch.return_.shape)
    log_probs = distributions.log_prob(network.action_space, policy, batch.action)
    advantages = tf.stop_gradient(batch.return_ - value)
    ratios = policy_gradient.importance_ratios(log_probs, batch.behaviour_log_prob, config.importance_clip)
    return actor_critic_loss(
        policy_gradient.policy_gradient_loss(log_probs, advantages, ratios, config.log_epsilon),
        tf.square(batch.return_ - value),
        distributions.entropy(network.action_space, policy),
        advantages,
        value,
        tf.ones_like(value),
        config,
        {"importance_ratio_mean": tf.reduce_mean(ratios)},
    )
