from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from ddrl.ops.returns import generalized_advantages
from ddrl.ops.vtrace import vtrace
from tests import references
from tests.unrolls import random_unroll


def ratios_of(unroll, spread=1.0, seed=5):
    return (spread * np.random.default_rng(seed).standard_normal(unroll.reward.shape)).astype(np.float32)


def vtrace_of(log_rhos, unroll, *args, **kwargs):
    fields = (log_rhos, unroll.discount, unroll.continues, unroll.valid, unroll.reward, unroll.value)
    vs, advantages = vtrace(*map(tf.constant, fields), *args, **kwargs)
    return vs.numpy(), advantages.numpy()


@pytest.mark.parametrize("clips", [(1.0, 1.0), (2.0, 0.7), (100.0, 100.0)])
@pytest.mark.parametrize("steps", [1, 2, 20])
def test_equals_the_written_out_sum(clips, steps):
    unroll = random_unroll(steps, environments=8, seed=steps)
    log_rhos = ratios_of(unroll)
    assert (np.exp(log_rhos) > clips[0]).any() or clips[0] > 2.0
    vs, advantages = vtrace_of(log_rhos, unroll, *clips)
    expected = references.vtrace(log_rhos, unroll, unroll.value, *clips)
    np.testing.assert_allclose(vs, expected[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(advantages, expected[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("clips", [(1.0, 1.0), (3.0, 2.0)])
def test_on_policy_it_is_the_n_step_return(clips):
    """That of generalized advantages with lambda 1 (Espeholt et al. 2018, remark 1)."""
    unroll = random_unroll()
    vs, advantages = vtrace_of(np.zeros_like(unroll.reward), unroll, *clips)
    fields = (unroll.reward, unroll.discount, unroll.continues, unroll.valid, unroll.value)
    expected, returns = generalized_advantages(*fields, 1.0)
    np.testing.assert_allclose(vs, returns, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(advantages, expected, rtol=1e-4, atol=1e-5)


def test_ratio_zero_leaves_the_value_alone():
    unroll = random_unroll()
    vs, advantages = vtrace_of(np.full_like(unroll.reward, -200.0), unroll, 1.0, 1.0)
    np.testing.assert_array_equal(vs, unroll.value[:-1])
    np.testing.assert_array_equal(advantages, np.zeros_like(vs))


def test_infinite_ratios_are_clipped_and_rows_that_do_not_count_change_nothing():
    unroll = random_unroll()
    log_rhos, ignored = ratios_of(unroll), unroll.valid == 0
    assert ignored.any()
    other = np.where(ignored, np.float32(1e3), log_rhos)  # exp is infinite
    rewards = np.where(ignored, np.float32(1e3), unroll.reward)
    plain = vtrace_of(log_rhos, unroll, 1.0, 1.0)
    changed = vtrace_of(other, unroll._replace(reward=rewards), 1.0, 1.0)
    for a, b in zip(plain, changed):
        np.testing.assert_array_equal(a, b)
    assert (plain[1][ignored] == 0).all() and (plain[0][ignored] == unroll.value[:-1][ignored]).all()
    largest = vtrace_of(np.full_like(log_rhos, 1e3), unroll, 1.0, 1.0)
    np.testing.assert_array_equal(largest[0], vtrace_of(np.zeros_like(log_rhos), unroll, 1.0, 1.0)[0])


def test_a_truncation_bootstraps_with_the_final_observation():
    """One step, truncated, then a row to ignore: the advantage is that of the one step."""
    column = lambda *numbers: tf.constant(numbers, shape=[len(numbers), 1])
    vs, advantages = vtrace(
        tf.zeros([3, 1]),
        column(0.5, 0.0, 0.5),
        column(0.0, 0.0, 1.0),
        column(1.0, 0.0, 1.0),
        column(1.0, 50.0, 7.0),
        column(10.0, 20.0, 30.0, 40.0),
        1.0,
        1.0,
    )
    np.testing.assert_array_equal(vs[:, 0], [1 + 0.5 * 20, 20, 7 + 0.5 * 40])
    np.testing.assert_array_equal(advantages[:, 0], [1 + 0.5 * 20 - 10, 0, 7 + 0.5 * 40 - 30])


def test_no_gradient_flows_through_it():
    unroll = random_unroll()
    log_rhos, value = tf.constant(ratios_of(unroll)), tf.constant(unroll.value)
    with tf.GradientTape() as tape:
        tape.watch([log_rhos, value])
        others = map(tf.constant, (unroll.discount, unroll.continues, unroll.valid, unroll.reward))
        vs, advantages = vtrace(log_rhos, *others, value, 1.0, 1.0)
        total = tf.reduce_sum(vs) + tf.reduce_sum(advantages)
    assert tape.gradient(total, [log_rhos, value]) == [None, None]


def test_in_a_graph_it_is_the_same():
    unroll = random_unroll()
    compiled = tf.function(vtrace, autograph=False)
    fields = (ratios_of(unroll), unroll.discount, unroll.continues, unroll.valid, unroll.reward, unroll.value)
    vs, advantages = compiled(*map(tf.constant, fields), 1.0, 1.0)
    expected = vtrace_of(fields[0], unroll, 1.0, 1.0)
    np.testing.assert_allclose(vs, expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(advantages, expected[1], rtol=1e-5, atol=1e-6)


def test_shapes_must_agree():
    unroll = random_unroll()
    with pytest.raises(ValueError, match="value"):
        vtrace_of(ratios_of(unroll), unroll._replace(value=unroll.value[:-1]), 1.0, 1.0)
    with pytest.raises(ValueError):
        vtrace_of(ratios_of(unroll)[:, :1], unroll, 1.0, 1.0)
