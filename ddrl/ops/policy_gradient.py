"""Policy-gradient terms: importance ratios, losses. Distributions of actions are in `ddrl.ops.distributions`."""

from __future__ import annotations

from ddrl.lazy import tf

LOG_RATIO_LIMIT = 20.0


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
    log_probs: tf.Tensor, advantages: tf.Tensor, weights: tf.Tensor, log_epsilon: float = 0.0
) -> tf.Tensor:
    """Mean over the batch of -weight log(pi(a|s) + log_epsilon) advantage; a scalar.

    The gradient of Mnih et al. 2016 (section 4.3), with the added constant of the BA3C lineage, which
    bounds the gradient where pi(a|s) vanishes. No gradient flows through advantages and weights.

    Args:
        log_probs: <float32>[B] log pi(a|s).
        advantages: <float32>[B].
        weights: <float32>[B] importance ratios, or 1 and 0 for rows that count and rows that do not.
        log_epsilon: added to the probability inside the logarithm (0: the plain policy gradient).
    """
    log_probs.shape.assert_is_compatible_with(advantages.shape)
    log_probs.shape.assert_is_compatible_with(weights.shape)
    if log_epsilon:
        log_probs = tf.math.log(tf.exp(log_probs) + log_epsilon)
    return -tf.reduce_mean(tf.stop_gradient(weights * advantages) * log_probs)


def clipped_surrogate_loss(
    log_probs: tf.Tensor,
    behaviour_log_probs: tf.Tensor,
    advantages: tf.Tensor,
    weights: tf.Tensor,
    clip: float | tf.Tensor,
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Mean over the batch of -weight min(r A, clip(r, 1 - clip, 1 + clip) A), and what the ratios r = pi/mu were.

    Schulman et al. 2017, Proximal Policy Optimization Algorithms, equation 7. The mean is over all B rows, also
    those of weight 0, so that the mean over the parts of a batch is that of the whole. log r is held within +-20:
    beyond, an infinite ratio would make the gradient of a clipped row NaN, not 0.

    Args:
        log_probs: <float32>[B] log pi(a|s) of the policy that learns.
        behaviour_log_probs: <float32>[B] log mu(a|s) of the policy that acted.
        advantages: <float32>[B]; no gradient flows through them.
        weights: <float32>[B] 1, or 0 for rows that do not count.
        clip: how far the ratio may move from 1 before a row stops pushing it further; a number or <float32>[].

    Returns:
        The scalar, and means over the rows that count: `importance_ratio_mean`, `clip_fraction` of the rows with
        |r - 1| > clip, and `approximate_kl`, the estimate r - 1 - log r of KL(mu, pi) in nats, never below 0.
    """
    for rows in (behaviour_log_probs, advantages, weights):
        log_probs.shape.assert_is_compatible_with(rows.shape)
    log_ratios = tf.clip_by_value(log_probs - behaviour_log_probs, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratios, advantages = tf.exp(log_ratios), tf.stop_gradient(weights * advantages)
    clipped = tf.clip_by_value(ratios, 1.0 - clip, 1.0 + clip)
    loss = -tf.reduce_mean(tf.minimum(ratios * advantages, clipped * advantages))
    metrics = {
        "importance_ratio_mean": mean_of_counted(ratios, weights),
        "clip_fraction": mean_of_counted(tf.cast(tf.abs(ratios - 1.0) > clip, tf.float32), weights),
        "approximate_kl": mean_of_counted(ratios - 1.0 - log_ratios, weights),
    }
    return loss, metrics


def mean_of_counted(x: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Mean of `x` <float32>[B] over the rows whose `weights` <float32>[B] are 1, not 0 (no such row: 0); a scalar."""
    x.shape.assert_is_compatible_with(weights.shape)
    return tf.reduce_sum(weights * x) / tf.maximum(tf.reduce_sum(weights), 1.0)
