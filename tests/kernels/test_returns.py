"""Compiled returns equal those of NumPy, step by step, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from ddrl.ops.returns import generalized_advantages, n_step_returns


def numpy_returns(rewards, discounts, bootstrap):
    returns, after = np.empty_like(rewards), bootstrap
    for t in reversed(range(len(rewards))):
        returns[t] = after = rewards[t] + discounts[t] * after
    return returns


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("shape", [(1, 1), (5, 16), (128, 3), (7, 0), (4, 2, 3), (6,)])
@pytest.mark.parametrize("wild", [False, True])
def test_returns_equal_numpys_to_the_bit(shape, wild):
    random = np.random.default_rng(len(shape))
    rewards, discounts = random.standard_normal((2, *shape)).astype(np.float32)
    bootstrap = random.standard_normal(shape[1:]).astype(np.float32)
    if wild:
        for every, value in ((3, np.nan), (5, np.inf), (2, 1e-40)):
            rewards.reshape(-1)[::every] = value
    returns = n_step_returns(rewards, discounts, bootstrap)
    np.testing.assert_array_equal(returns, numpy_returns(rewards, discounts, bootstrap))
    assert returns.dtype == np.float32


def test_views_and_another_type_give_the_same():
    random = np.random.default_rng(0)
    rewards, discounts = random.standard_normal((2, 6, 8)).astype(np.float32)
    bootstrap = random.standard_normal(8).astype(np.float32)
    expected = n_step_returns(rewards, discounts, bootstrap)
    views = n_step_returns(rewards.T.copy().T, np.repeat(discounts, 2, axis=1)[:, ::2], bootstrap)
    np.testing.assert_array_equal(views, expected)
    wide = n_step_returns(*(array.astype(np.float64) for array in (rewards, discounts, bootstrap)))
    assert wide.dtype == np.float64
    np.testing.assert_allclose(expected, wide, rtol=1e-4, atol=1e-5)


def test_advantages_of_a_long_unroll():
    random = np.random.default_rng(1)
    reward, value = (random.standard_normal((n, 2)).astype(np.float32) for n in (2_048, 2_049))
    ones, discount = np.ones((2_048, 2), np.float32), np.full((2_048, 2), 0.99, np.float32)
    advantages, _ = generalized_advantages(reward, discount, ones, ones, value, 0.95)
    errors = reward + discount * value[1:] - value[:-1]
    expected = numpy_returns(errors, discount * 0.95, np.zeros(2, np.float32))
    np.testing.assert_array_equal(advantages, expected)
