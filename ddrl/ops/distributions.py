"""The distributions of actions: categorical over logits, one or several independent ones, or a Gaussian with
independent components.

A policy is <float32>[B, P] (see `ddrl.types.PolicyValue`). The Gaussian's is A means, then A logarithms of standard
deviations, which are taken as they are: not clipped, and the density is that of the action before an environment
clips it to its bounds.
"""

from __future__ import annotations

import math

from ddrl.lazy import tf
from ddrl.types import ActionSpace, Discrete, MultiDiscrete


def log_prob(action_space: ActionSpace, policy: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
    """log pi(a|s) <float32>[B] in nats: of a probability (Discrete) or of a density (Continuous).

    Args:
        action_space: says which distribution it is.
        policy: <float32>[B, P].
        action: <int32>[B] in 0 .. count - 1, <int32>[B, K] of several components, or <float32>[B, A].
    """
    _check(action_space, policy)
    action.shape.assert_is_compatible_with([policy.shape[0], *action_space.action_shape])
    if isinstance(action_space, Discrete):
        return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels=action, logits=policy)
    if isinstance(action_space, MultiDiscrete):
        parts = zip(tf.split(policy, list(action_space.counts), axis=1), tf.unstack(action, axis=1))
        return tf.add_n([log_prob(Discrete(part.shape[1]), part, component) for part, component in parts])
    mean, log_deviation = tf.split(policy, 2, axis=1)
    standardized = (action - mean) * tf.exp(-log_deviation)
    per_component = -0.5 * (tf.square(standardized) + math.log(2.0 * math.pi)) - log_deviation
    return tf.reduce_sum(per_component, axis=1)


def entropy(action_space: ActionSpace, policy: tf.Tensor) -> tf.Tensor:
    """H(pi(.|s)) = -E log pi <float32>[B] in nats of `policy` <float32>[B, P]; below 0 for a narrow Gaussian.

    0 log 0 counts as 0, and has no gradient: a logit may be -inf, or so far below the others that its probability is
    0 in float32.
    """
    _check(action_space, policy)
    if isinstance(action_space, Discrete):
        log_probs = tf.nn.log_softmax(policy)
        probs = tf.exp(log_probs)
        # The product alone would be 0 times -inf, and so would the gradient of a product that is masked afterward.
        log_probs = tf.where(probs > 0.0, log_probs, 0.0)
        return -tf.reduce_sum(probs * log_probs, axis=1)
    if isinstance(action_space, MultiDiscrete):
        parts = tf.split(policy, list(action_space.counts), axis=1)
        return tf.add_n([entropy(Discrete(part.shape[1]), part) for part in parts])
    _, log_deviation = tf.split(policy, 2, axis=1)
    return tf.reduce_sum(log_deviation + 0.5 * math.log(2.0 * math.pi * math.e), axis=1)


def kl_divergence(action_space: ActionSpace, policy: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """KL(pi(.|s), other(.|s)) = E log pi - log other <float32>[B] in nats, the expectation by pi.

    As in `entropy`, an action of probability 0 by pi counts as 0 and has no gradient.

    Args:
        action_space: says which distribution it is.
        policy, other: <float32>[B, P].
    """
    _check(action_space, policy)
    policy.shape.assert_is_compatible_with(other.shape)
    if isinstance(action_space, Discrete):
        log_probs = tf.nn.log_softmax(policy)
        probs = tf.exp(log_probs)
        return tf.reduce_sum(probs * tf.where(probs > 0.0, log_probs - tf.nn.log_softmax(other), 0.0), axis=1)
    if isinstance(action_space, MultiDiscrete):
        parts = zip(*(tf.split(x, list(action_space.counts), axis=1) for x in (policy, other)))
        return tf.add_n([kl_divergence(Discrete(one.shape[1]), one, another) for one, another in parts])
    mean, log_deviation = tf.split(policy, 2, axis=1)
    other_mean, other_log_deviation = tf.split(other, 2, axis=1)
    log_ratio = log_deviation - other_log_deviation
    shift = tf.square((mean - other_mean) * tf.exp(-other_log_deviation))
    return tf.reduce_sum(0.5 * (tf.exp(2.0 * log_ratio) + shift - 1.0) - log_ratio, axis=1)


def _check(action_space: ActionSpace, policy: tf.Tensor) -> None:
    policy.shape.assert_is_compatible_with([None, action_space.policy_size])
