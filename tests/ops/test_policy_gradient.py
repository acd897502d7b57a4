from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from ddrl.ops import distributions, policy_gradient
from ddrl.types import Discrete
from tests import references

RANDOM = np.random.default_rng(0)
LOGITS = (3.0 * RANDOM.standard_normal((6, 4))).astype(np.float32)
SPACE = Discrete(4)
ACTIONS = RANDOM.integers(4, size=6).astype(np.int32)


def test_importance_ratios():
    log_probs = tf.constant([math.log(0.5), math.log(0.5), math.log(0.1)])
    behavior = tf.constant([math.log(0.5), math.log(0.01), math.log(0.4)])
    ratios = policy_gradient.importance_ratios(log_probs, behavior, 10.0)
    np.testing.assert_allclose(ratios, [1.0, 10.0, 0.25], rtol=1e-5)
    np.testing.assert_array_equal(policy_gradient.importance_ratios(log_probs, behavior, 0.0), np.ones(3))


def test_importance_ratios_carry_no_gradient():
    log_probs = tf.constant([-1.0, -2.0])
    with tf.GradientTape() as tape:
        tape.watch(log_probs)
        ratios = policy_gradient.importance_ratios(log_probs, tf.constant([-1.5, -1.5]), 10.0)
    assert tape.gradient(ratios, log_probs) is None


def test_loss_gradient_without_epsilon_is_the_score_function():
    logits, advantages = tf.constant(LOGITS), RANDOM.standard_normal(6).astype(np.float32)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        log_probs = distributions.log_prob(SPACE, logits, tf.constant(ACTIONS))
        loss = policy_gradient.policy_gradient_loss(log_probs, tf.constant(advantages), tf.ones(6), 0.0)
    score = np.eye(4)[ACTIONS] - references.softmax(LOGITS)
    expected = -score * advantages[:, None] / 6
    np.testing.assert_allclose(tape.gradient(loss, logits), expected, rtol=1e-4, atol=1e-6)


def test_epsilon_bounds_the_gradient_of_an_impossible_action():
    logits = tf.constant([[0.0, -200.0]])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        log_probs = distributions.log_prob(Discrete(2), logits, tf.constant([1]))
        loss = policy_gradient.policy_gradient_loss(log_probs, tf.ones(1), tf.ones(1), 1e-6)
    np.testing.assert_allclose(loss, -math.log(1e-6), rtol=1e-5)
    np.testing.assert_array_equal(tape.gradient(loss, logits), [[0.0, 0.0]])


def test_ranks_and_shapes_are_checked():
    with pytest.raises(ValueError):
        policy_gradient.policy_gradient_loss(tf.zeros(6), tf.zeros([6, 1]), tf.ones(6), 0.0)


def surrogate(log_probs, behavior, advantages, weights, clip=0.2):
    """(loss, metrics, gradient with respect to log_probs)."""
    arrays = [tf.constant(x, tf.float32) for x in (log_probs, behavior, advantages, weights)]
    with tf.GradientTape() as tape:
        tape.watch(arrays)
        loss, metrics = policy_gradient.clipped_surrogate_loss(*arrays, clip)
    gradients = tape.gradient(loss, arrays)
    assert gradients[2:] == [None, None]  # advantages and weights are constants
    return float(loss), {name: float(x) for name, x in metrics.items()}, gradients[0].numpy()


def surrogate_rows(count=40, seed=3):
    random = np.random.default_rng(seed)
    behavior = np.log(random.uniform(0.1, 0.9, count))
    log_probs = behavior + 0.3 * random.standard_normal(count)
    return log_probs, behavior, random.standard_normal(count), (random.random(count) > 0.3).astype(float)


@pytest.mark.parametrize("clip", [0.1, 0.2, 5.0])
def test_clipped_surrogate_equals_the_reference(clip):
    log_probs, behavior, advantages, weights = surrogate_rows()
    loss, metrics, gradient = surrogate(log_probs, behavior, advantages, weights, clip)
    ratios, counted = np.exp(log_probs - behavior), weights == 1
    rows = [references.clipped_surrogate(r, a, clip) for r, a in zip(ratios, advantages)]
    assert loss == pytest.approx(-np.sum(weights * rows) / 40, rel=1e-5, abs=1e-6)
    free = np.where(advantages > 0, ratios < 1 + clip, ratios > 1 - clip)
    assert free.all() == (clip == 5.0)
    np.testing.assert_allclose(gradient, -weights * free * ratios * advantages / 40, rtol=1e-4, atol=1e-6)
    assert metrics["clip_fraction"] == pytest.approx(np.mean(np.abs(ratios - 1)[counted] > clip))
    assert metrics["importance_ratio_mean"] == pytest.approx(ratios[counted].mean(), rel=1e-5)
    kl = np.mean((ratios - 1 - np.log(ratios))[counted])
    assert metrics["approximate_kl"] == pytest.approx(kl, rel=1e-3) and kl > 0


def test_at_ratio_1_the_clip_is_inactive_and_the_gradient_is_the_policy_gradient():
    log_probs, _, advantages, weights = surrogate_rows()
    _, metrics, gradient = surrogate(log_probs, log_probs, advantages, weights, 0.01)
    assert metrics == {"importance_ratio_mean": 1.0, "clip_fraction": 0.0, "approximate_kl": 0.0}
    tensors = [tf.constant(x, tf.float32) for x in (log_probs, advantages, weights)]
    with tf.GradientTape() as tape:
        tape.watch(tensors[0])
        loss = policy_gradient.policy_gradient_loss(*tensors)
    np.testing.assert_allclose(gradient, tape.gradient(loss, tensors[0]), rtol=1e-6)


def test_the_mean_over_parts_is_that_of_the_whole():
    rows = surrogate_rows()
    whole, _, gradient = surrogate(*rows)
    parts = [surrogate(*(x[part] for x in rows)) for part in (slice(0, 20), slice(20, 40))]
    assert rows[3][:20].sum() != rows[3][20:].sum()  # the parts ignore different numbers of rows
    assert whole == pytest.approx(np.mean([part[0] for part in parts]), rel=1e-5)
    np.testing.assert_allclose(gradient, np.concatenate([part[2] for part in parts]) / 2, rtol=1e-5)


def test_ratios_beyond_float32_stay_finite():
    loss, _, gradient = surrogate([0.0, 0.0], [-500.0, -500.0], [1.0, 0.0], [1.0, 1.0])
    assert loss == pytest.approx(-1.2 / 2)
    np.testing.assert_array_equal(gradient, [0.0, 0.0])  # not infinity times zero
    loss, _, gradient = surrogate([-500.0, 0.0], [0.0, 500.0], [-1.0, 1.0], [1.0, 0.0])
    assert loss == pytest.approx(0.8 / 2)
    np.testing.assert_array_equal(gradient, [0.0, 0.0])


def test_no_row_counts():
    loss, metrics, gradient = surrogate([-1.0, -2.0], [-2.0, -1.0], [1.0, 1.0], [0.0, 0.0])
    assert loss == 0.0 and set(metrics.values()) == {0.0}
    np.testing.assert_array_equal(gradient, [0.0, 0.0])


@pytest.mark.parametrize("wrong", range(4))
def test_shapes_of_the_surrogate_are_checked(wrong):
    arrays = [tf.zeros([6])] * 4
    arrays[wrong] = tf.zeros([6, 1])
    with pytest.raises(ValueError):
        policy_gradient.clipped_surrogate_loss(*arrays, 0.2)
