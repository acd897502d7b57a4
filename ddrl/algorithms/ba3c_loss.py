"""The loss of BA3C, a pure function of tensors."""

from __future__ import annotations

from typing import Any, Callable

import tensorflow as tf

from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.ops import policy_gradient
from ddrl.types import DataPoints, LossOutput, PolicyValue


def loss(
    network: Callable[[Any, Any], PolicyValue],
    vector: Any,
    auxiliary: Any,
    batch: DataPoints,
    config: BA3CConfig,
) -> LossOutput:
    """Advantage actor-critic loss, averaged over the batch, in float32.

    policy_loss + value_cost mean((R - V)^2) - entropy_cost mean(H)

    with policy_loss = -mean(w log(pi(a|s) + log_epsilon) (R - V)), no gradient through w and R - V
    (Mnih et al. 2016, section 4.3; Adamski et al. 2018). The value loss is the mean of whole squares, not of
    halves: value_cost 0.5 equals tensorpack's and the BA3C lineage's `l2_loss` over the batch size.
    w = min(pi/mu, importance_clip), or 1 when that setting is 0.

    Args:
        network: (vector, observations) -> PolicyValue.
        vector: <float32>[N], or whatever else the network takes as its parameters.
        auxiliary: unused; the algorithm has no target parameters.
        batch: tensors with the fields of DataPoints.
        config: weights of the parts.

    Returns:
        LossOutput. Metrics are scalars: the parts as they enter the loss before their weights, the entropy in
        nats, moments of the advantage and the value, and the mean importance ratio (clipped).
    """
    del auxiliary
    logits, value = network(vector, batch.observation)
    value.shape.assert_is_compatible_with(batch.return_.shape)
    log_probs = policy_gradient.action_log_probs(logits, batch.action)
    advantages = tf.stop_gradient(batch.return_ - value)
    ratios = policy_gradient.importance_ratios(log_probs, batch.behaviour_log_prob, config.importance_clip)
    policy_loss = policy_gradient.policy_gradient_loss(log_probs, advantages, ratios, config.log_epsilon)
    value_loss = tf.reduce_mean(tf.square(batch.return_ - value))
    entropy = tf.reduce_mean(policy_gradient.entropy(logits))
    total = policy_loss + config.value_cost * value_loss - config.entropy_cost * entropy
    metrics = {
        "loss": total,
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "advantage_mean": tf.reduce_mean(advantages),
        "advantage_rms": tf.sqrt(tf.reduce_mean(tf.square(advantages))),
        "value_mean": tf.reduce_mean(value),
        "importance_ratio_mean": tf.reduce_mean(ratios),
    }
    return LossOutput(total, metrics)
