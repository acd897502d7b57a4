from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from ddrl.ops.returns import n_step_returns
from tests import references


def segment(steps, columns, seed=0):
    random = np.random.default_rng(seed)
    rewards = random.standard_normal((steps, columns)).astype(np.float32)
    discounts = (0.9 * (random.random((steps, columns)) > 0.3)).astype(np.float32)
    return rewards, discounts, random.standard_normal(columns).astype(np.float32)


def test_equals_the_written_out_sum():
    rewards, discounts, bootstrap = segment(7, 5)
    result = n_step_returns(rewards, discounts, bootstrap)
    for b in range(5):
        expected = references.n_step_returns(rewards[:, b], discounts[:, b], bootstrap[b])
        np.testing.assert_allclose(result[:, b], expected, rtol=1e-5, atol=1e-6)
    assert result.dtype == np.float32


def test_golden_values_with_a_terminal():
    result = n_step_returns(
        np.array([1.0, 2.0, 3.0]), np.array([0.5, 0.0, 0.5]), np.array(8.0)
    )
    np.testing.assert_array_equal(result, [2.0, 2.0, 7.0])  # nothing flows across the terminal step 1


def test_one_step():
    rewards, discounts, bootstrap = segment(1, 4)
    expected = rewards[0] + discounts[0] * bootstrap
    np.testing.assert_array_equal(n_step_returns(rewards, discounts, bootstrap)[0], expected)


def test_discount_zero_gives_rewards_and_one_gives_sums():
    rewards, discounts, bootstrap = segment(6, 3)
    zero, one = np.zeros_like(discounts), np.ones_like(discounts)
    np.testing.assert_array_equal(n_step_returns(rewards, zero, bootstrap), rewards)
    sums = np.cumsum(rewards[::-1], axis=0)[::-1] + bootstrap
    np.testing.assert_allclose(n_step_returns(rewards, one, bootstrap), sums, rtol=1e-5, atol=1e-6)


def test_tensors_give_the_same():
    arrays = segment(5, 3)
    tensors = n_step_returns(*map(tf.constant, arrays), stack=tf.stack)
    np.testing.assert_array_equal(tensors.numpy(), n_step_returns(*arrays))


def test_shapes_must_agree():
    rewards, discounts, bootstrap = segment(5, 3)
    with pytest.raises(ValueError, match="bootstrap"):
        n_step_returns(rewards, discounts, bootstrap[:, None])
    with pytest.raises(ValueError, match="discounts"):
        n_step_returns(rewards, discounts[:, :1], bootstrap)
