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
    behaviour = tf.constant([math.log(0.5), math.log(0.01), math.log(0.4)])
    ratios = policy_gradient.importance_ratios(log_probs, behaviour, 10.0)
    np.testing.assert_allclose(ratios, [1.0, 10.0, 0.25], rtol=1e-5)
    np.testing.assert_array_equal(policy_gradient.importance_ratios(log_probs, behaviour, 0.0), np.ones(3))


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
