"""Q-learning: targets of expected returns and of their distributions, and the losses of both."""

from __future__ import annotations

import numpy as np

from ddrl.lazy import tf


def dueling_values(value: tf.Tensor, advantage: tf.Tensor) -> tf.Tensor:
    """Q(s, a) = V(s) + A(s, a) - mean over a' of A(s, a') (Wang et al. 2016, equation 9).

    With distributions the same holds for the logits of each atom (Hessel et al. 2018, Rainbow, The Integrated Agent).

    Args:
        value: <float32>[B, 1], or [B, 1, atoms].
        advantage: <float32>[B, A], or [B, A, atoms].

    Returns:
        <float32> of the shape of `advantage`.
    """
    value.shape.assert_is_compatible_with([advantage.shape[0], 1, *advantage.shape[2:]])
    return value + advantage - tf.reduce_mean(advantage, axis=1, keepdims=True)


def support(value_min: float, value_max: float, atoms: int) -> np.ndarray:
    """The returns z_i <float32>[atoms] that a distribution is over: evenly from `value_min` to `value_max`."""
    return np.linspace(value_min, value_max, atoms).astype(np.float32)


def expected_values(logits: tf.Tensor, atoms: np.ndarray) -> tf.Tensor:
    """Expected returns sum_i z_i softmax(logits)_i <float32>[B, A].

    Args:
        logits: <float32>[B, A, atoms].
        atoms: <float32>[atoms] `support`.
    """
    logits.shape.assert_is_compatible_with([None, None, len(atoms)])
    return tf.linalg.matvec(tf.nn.softmax(logits), atoms)


def of_action(values: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
    """values[b, action[b]]: <float32>[B] of [B, A], <float32>[B, atoms] of [B, A, atoms]; `action` is <int>[B]."""
    action.shape.assert_is_compatible_with(values.shape[:1])
    return tf.gather(values, action, batch_dims=1)


def greedy(values: tf.Tensor) -> tf.Tensor:
    """The action of the largest value, the lowest of several: <int64>[B] of [B, A]."""
    return tf.argmax(values, axis=1)


def n_step_targets(reward: tf.Tensor, discount: tf.Tensor, next_values: tf.Tensor) -> tf.Tensor:
    """y = R + discount Q(s', a') <float32>[B], or [B, A] with each a', without gradient.

    With the largest Q of the target network it is DQN's (Mnih et al. 2015, algorithm 1); with the target network's Q of
    the action that is largest to the online network it is Double DQN's (van Hasselt et al. 2016, equation 4, with
    theta^- for theta').

    Args:
        reward: <float32>[B] discounted sum over the steps to s'.
        discount: <float32>[B] gamma^k for s' after k steps, 0 where the episode terminated before it.
        next_values: <float32>[B] or [B, A] of the target network at s'.
    """
    reward.shape.assert_is_compatible_with(discount.shape)
    reward, discount = (tf.reshape(x, [-1] + [1] * (len(next_values.shape) - 1)) for x in (reward, discount))
    return tf.stop_gradient(reward + discount * next_values)


def projected_targets(reward: tf.Tensor, discount: tf.Tensor, next_logits: tf.Tensor, atoms: np.ndarray) -> tf.Tensor:
    """Distribution of R + discount Z(s', a') on the support; <float32> of the shape of `next_logits`.

    Bellemare et al. 2017, A Distributional Perspective on Reinforcement Learning, algorithm 1: each atom z_j moves to
    R + discount z_j, is held within the support, and gives its probability to its two neighbors there, more to the
    nearer. Atom i so gets the share max(0, 1 - |Tz_j - z_i| / dz) of p_j (equation 7), which, unlike the algorithm's
    floor and ceiling, loses nothing where Tz_j falls on an atom. No gradient.

    Args:
        reward, discount: <float32>[B], as in `n_step_targets`.
        next_logits: <float32>[B, atoms] of the target network at s' and a', or [B, A, atoms] with each a'.
        atoms: <float32>[atoms] `support`.
    """
    reward.shape.assert_is_compatible_with(discount.shape)
    returns = reward[:, None] + discount[:, None] * atoms
    if len(next_logits.shape) == 3:
        returns = tf.repeat(returns, next_logits.shape[1], axis=0)
    probabilities = tf.nn.softmax(tf.reshape(next_logits, [-1, len(atoms)]))
    return tf.stop_gradient(tf.reshape(project(probabilities, returns, atoms), tf.shape(next_logits)))


def project(probabilities: tf.Tensor, returns: tf.Tensor, atoms: np.ndarray) -> tf.Tensor:
    """The distribution on the support nearest to `probabilities` at `returns`; <float32>[B, atoms].

    Args:
        probabilities: <float32>[B, K].
        returns: <float32>[B, K] where they lie; beyond the support they count as its ends.
        atoms: <float32>[atoms] `support`.
    """
    probabilities.shape.assert_is_compatible_with(returns.shape)
    position = (returns - atoms[0]) * ((len(atoms) - 1) / (atoms[-1] - atoms[0]))  # in distances of atoms
    position = tf.clip_by_value(position, 0.0, len(atoms) - 1.0)
    distance = tf.abs(position[:, None, :] - np.arange(len(atoms), dtype=np.float32)[:, None])
    return tf.linalg.matvec(tf.nn.relu(1.0 - distance), probabilities)


def squared(errors: tf.Tensor) -> tf.Tensor:
    """d^2 / 2 of each error."""
    return 0.5 * tf.square(errors)


def huber(errors: tf.Tensor) -> tf.Tensor:
    """d^2 / 2 where |d| <= 1, else |d| - 1/2: its gradient is the error held within +-1 (Mnih et al. 2015)."""
    inside = tf.minimum(tf.abs(errors), 1.0)
    return inside * (tf.abs(errors) - 0.5 * inside)


def cross_entropies(target: tf.Tensor, logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """-sum_i m_i log p_i, and the divergence KL(m, p) = that less the entropy of m; both <float32>[B] in nats.

    Their gradients are equal; the divergence is 0 for a perfect prediction (Bellemare et al. 2017, algorithm 1; the
    priority in Rainbow, Hessel et al. 2018, The Integrated Agent), never below.

    Args:
        target: <float32>[B, atoms] m, a distribution.
        logits: <float32>[B, atoms] p = softmax(logits).
    """
    target.shape.assert_is_compatible_with(logits.shape)
    losses = tf.nn.softmax_cross_entropy_with_logits(labels=target, logits=logits)
    negative_entropies = tf.reduce_sum(tf.math.xlogy(target, target), axis=1)
    return losses, tf.nn.relu(losses + negative_entropies)
