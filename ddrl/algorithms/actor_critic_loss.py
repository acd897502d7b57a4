"""What the losses of all actor-critic algorithms have in common."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ddrl.ops.policy_gradient import mean_of_counted
from ddrl.types import LossOutput


def actor_critic_loss(
    policy_loss: Any,
    square_errors: Any,
    entropies: Any,
    advantages: Any,
    values: Any,
    weights: Any,
    config: Any,
    metrics: dict[str, Any],
) -> LossOutput:
    """policy_loss + value_cost value_loss - entropy_cost entropy.

    value_loss and entropy are means over all B rows, with 0 for a row of weight 0: like the policy loss, so that
    the mean over the parts of a batch is that of the whole.

    Args:
        policy_loss: scalar.
        square_errors: <float32>[B] of the value: whole squares, not halves.
        entropies: <float32>[B] in nats.
        advantages, values: <float32>[B], for the metrics.
        weights: <float32>[B] 1, or 0 for rows that do not count.
        config: with `value_cost` and `entropy_cost`.
        metrics: those of the algorithm alone.

    Returns:
        LossOutput. Metrics are scalars: the parts as they enter the loss before their weights, moments of advantages
        and values over the rows that count, and `metrics`.
    """
    for rows in (square_errors, entropies, advantages, values):
        rows.shape.assert_is_compatible_with(weights.shape)
    value_loss, entropy = tf.reduce_mean(weights * square_errors), tf.reduce_mean(weights * entropies)
    total = policy_loss + config.value_cost * value_loss - config.entropy_cost * entropy
    common = {
        "loss": total,
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "advantage_mean": mean_of_counted(advantages, weights),
        "advantage_rms": tf.sqrt(mean_of_counted(tf.square(advantages), weights)),
        "value_mean": mean_of_counted(values, weights),
    }
    return LossOutput(total, {**common, **metrics})
