from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from ddrl.ops.returns import generalized_advantages, lambda_returns, n_step_returns
from tests import references
from tests.unrolls import random_unroll


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
    result = n_step_returns(np.array([1.0, 2.0, 3.0]), np.array([0.5, 0.0, 0.5]), np.array(8.0))
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


@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("lambda_", [0.0, 0.5, 0.95, 1.0])
def test_lambda_returns_equal_the_written_out_mean_of_n_step_returns(steps, lambda_):
    rewards, discounts, bootstrap = segment(steps, 5)
    next_values = np.random.default_rng(1).standard_normal((steps, 5)).astype(np.float32)
    next_values[-1] = bootstrap
    result = lambda_returns(rewards, discounts, next_values, lambda_)
    for b in range(5):
        expected = references.lambda_returns(rewards[:, b], discounts[:, b], next_values[:, b], lambda_)
        np.testing.assert_allclose(result[:, b], expected, rtol=1e-4, atol=1e-5)
    assert result.dtype == np.float32


def test_lambda_returns_of_1_are_n_step_returns_and_of_0_one_step_targets():
    rewards, discounts, bootstrap = segment(6, 3)
    next_values = np.vstack([np.ones((5, 3), np.float32), bootstrap[None]])
    longest = lambda_returns(rewards, discounts, next_values, 1.0)
    np.testing.assert_array_equal(longest, n_step_returns(rewards, discounts, bootstrap))
    shortest = lambda_returns(rewards, discounts, next_values, 0.0)
    np.testing.assert_allclose(shortest, rewards + discounts * next_values, rtol=1e-6)


def test_lambda_returns_less_the_values_are_generalized_advantages():
    rewards, discounts, bootstrap = segment(6, 3)
    values = np.random.default_rng(2).standard_normal((7, 3)).astype(np.float32)
    values[-1] = bootstrap
    ones = np.ones_like(rewards)
    advantages, returns = generalized_advantages(rewards, discounts, ones, ones, values, 0.9)
    found = lambda_returns(rewards, discounts, values[1:], 0.9)
    np.testing.assert_allclose(found, returns, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found - values[:-1], advantages, rtol=1e-4, atol=1e-5)


def fields(unroll):
    return unroll.reward, unroll.discount, unroll.continues, unroll.valid, unroll.value


@pytest.mark.parametrize("lambda_", [0.0, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("steps", [1, 2, 20])
def test_advantages_equal_the_written_out_sum(lambda_, steps):
    unroll = random_unroll(steps, environments=8, seed=steps)
    advantages, returns = generalized_advantages(*fields(unroll), lambda_)
    expected = references.generalized_advantages(unroll, lambda_)
    np.testing.assert_allclose(advantages, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(returns, expected + unroll.value[:-1], rtol=1e-4, atol=1e-5)
    assert advantages.dtype == returns.dtype == np.float32


def test_lambda_1_is_the_n_step_return_less_the_value():
    unroll = random_unroll()
    _, returns = generalized_advantages(*fields(unroll), 1.0)
    for b in range(unroll.reward.shape[1]):
        for t in np.flatnonzero(unroll.valid[:, b]):
            steps = references.steps_of_episode(unroll.continues[:, b], t)
            rewards, discounts = unroll.reward[steps, b], unroll.discount[steps, b]
            expected = references.n_step_returns(rewards, discounts, unroll.value[steps[-1] + 1, b])[0]
            assert returns[t, b] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_lambda_0_is_the_one_step_error():
    unroll = random_unroll()
    advantages, _ = generalized_advantages(*fields(unroll), 0.0)
    errors = unroll.reward + unroll.discount * unroll.value[1:] - unroll.value[:-1]
    np.testing.assert_array_equal(advantages, unroll.valid * errors)


@pytest.mark.parametrize("lambda_", [0.0, 0.9, 1.0])
def test_a_truncation_bootstraps_with_the_final_observation_and_a_termination_does_not(lambda_):
    reward, valid = np.array([[1.0, 1.0], [5.0, 5.0], [7.0, 7.0]]), np.array([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]])
    discount = np.array([[0.5, 0.0], [0.0, 0.0], [0.5, 0.5]])  # column 0 is truncated at step 0, column 1 terminated
    continues = np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    value = np.array([[10.0, 10.0], [20.0, 20.0], [30.0, 30.0], [40.0, 40.0]])
    advantages, returns = generalized_advantages(reward, discount, continues, valid, value, lambda_)
    np.testing.assert_array_equal(advantages, [[1 + 10 - 10, 1 - 10], [0, 0], [7 + 20 - 30, 7 + 20 - 30]])
    np.testing.assert_array_equal(returns, [[11, 1], [20, 20], [27, 27]])


@pytest.mark.parametrize("continues_after_end", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["goes on", "termination", "truncation", "cut"])
def test_nothing_leaks_from_another_episode(kind, continues_after_end):
    unroll = random_unroll(steps=8, environments=3)
    rows = {name: np.ones((8, 3), np.float32) for name in ("discount", "continues", "valid")}
    if kind != "goes on":
        rows["continues"][3] = 0.0
        rows["valid"][4] = float(kind == "cut")
        rows["continues"][4] = continues_after_end  # of a row that is ignored it does not matter
    if kind == "termination":
        rows["discount"][3] = 0.0
    unroll = unroll._replace(**rows)
    later = unroll.value.copy()
    later[5:] += 100.0
    rewards = unroll.reward.copy()
    rewards[4:] += 100.0
    other = unroll._replace(reward=rewards, value=later)
    a, b = (generalized_advantages(*fields(u), 0.9)[0] for u in (unroll, other))
    differs = (a != b).all(axis=1)
    assert differs[5:].all()
    assert differs[:4].all() if kind == "goes on" else not differs[:4].any()
    assert differs[4].all() == (kind in ("goes on", "cut"))


def test_advantages_of_tensors_are_the_same():
    unroll = random_unroll()
    advantages, returns = generalized_advantages(*map(tf.constant, fields(unroll)), 0.9, stack=tf.stack)
    expected = generalized_advantages(*fields(unroll), 0.9)
    np.testing.assert_allclose(advantages, expected[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(returns, expected[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("wrong", range(5))
def test_shapes_of_an_unroll_must_agree(wrong):
    arrays = list(fields(random_unroll()))
    arrays[wrong] = arrays[wrong][:-1]
    with pytest.raises(ValueError, match="must be equal"):
        generalized_advantages(*arrays, 0.9)
