"""Policy-gradient terms for categorical policies: probabilities, entropy, importance ratios, losses."""

from __future__ import annotations

import tensorflow as tf


def action_log_probs(logits: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """log pi(a|s) <float32>[B] of `actions` <int32>[B] under `logits` <float32>[B, A]."""
    _check_ranks(logits, actions)
    return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels=actions, logits=logits)


def entropy(logits: tf.Tensor) -> tf.Tensor:
    """H(pi(.|s)) = -sum_a pi log pi, in nats: <float32>[B] of `logits` <float32>[B, A]."""
    log_probs = tf.nn.log_softmax(logits)
    return -tf.reduce_sum(tf.exp(log_probs) * log_probs, axis=-1)


def importance_ratios(log_probs: tf.Tensor, behaviour_log_probs: tf.Tensor, clip: float) -> tf.Tensor:
    """min(pi/mu, clip) <float32>[B] without gradient (clip 0: all ones, no correction).

    Args:
        log_probs: <float32>[B] log pi(a|s) of the policy that learns.
        behaviour_log_probs: <float32>[B] log mu(a|s) of the policy that acted.
        clip: upper bound of the ratio; tensorpack's A3C uses 10.
    """
    log_probs.shape.assert_is_compatible_with(behaviour_log_probs.shape)
    if clip == 0.0:
        return tf.ones_like(log_probs)
    return tf.stop_gradient(tf.minimum(tf.exp(log_probs - behaviour_log_probs), clip))


def policy_gradient_loss(
    log_probs: tf.Tensor, advantages: tf.Tensor, weights: tf.Tensor, log_epsilon: float
) -> tf.Tensor:
    """Mean over the batch of -weight log(pi(a|s) + log_epsilon) advantage; a scalar.

    The gradient of Mnih et al. 2016 (section 4.3), with the added constant of the BA3C lineage, which
    bounds the gradient where pi(a|s) vanishes. No gradient flows through advantages and weights.

    Args:
        log_probs: <float32>[B] log pi(a|s).
        advantages: <float32>[B].
        weights: <float32>[B] importance ratios.
        log_epsilon: added to the probability inside the logarithm (0: the plain policy gradient).
    """
    log_probs.shape.assert_is_compatible_with(advantages.shape)
    log_probs.shape.assert_is_compatible_with(weights.shape)
    if log_epsilon:
        log_probs = tf.math.log(tf.exp(log_probs) + log_epsilon)
    return -tf.reduce_mean(tf.stop_gradient(weights * advantages) * log_probs)


def _check_ranks(logits: tf.Tensor, actions: tf.Tensor) -> None:
    logits.shape.assert_has_rank(2)
    actions.shape.assert_has_rank(1)
