from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ddrl.exchange.optimizers import Trail, make_optimizer
from ddrl.exchange.settings import OptimizerConfig
from ddrl.kernels.updates import BLOCK
from tests import references

ADAM = OptimizerConfig(beta1=0.8, beta2=0.75, adam_epsilon=1e-3)
RULES = [
    ADAM,
    OptimizerConfig(optimizer="rmsprop", rmsprop_decay=0.9),
    OptimizerConfig(optimizer="rmsprop-centered", rmsprop_epsilon=1e-2, rmsprop_epsilon_inside=True),
    OptimizerConfig(optimizer="sgd"),
]


def problem(size, updates=5, seed=0):
    random = np.random.default_rng(seed)
    scales = 10.0 ** random.uniform(-6, 2, size)
    gradients = (random.standard_normal((updates, size)) * scales).astype(np.float32)
    return random.standard_normal(size).astype(np.float32), gradients


def run(config, theta, gradients, rate=1e-2, **arguments):
    theta, optimizer = theta.copy(), make_optimizer(config, len(theta))
    for gradient in gradients:
        optimizer.apply(theta, gradient, rate, **arguments)
    return theta, optimizer


def rule_id(config):
    return config.optimizer


@pytest.mark.parametrize("epsilon", [1e-8, 1e-3])
def test_adam_equals_the_reference(epsilon):
    config = dataclasses.replace(ADAM, adam_epsilon=epsilon)
    theta, gradients = problem(50)
    result, optimizer = run(config, theta, gradients)
    expected = references.adam(theta, gradients, 1e-2, 0.8, 0.75, epsilon)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    assert optimizer.count == 5 and set(optimizer.slots) == {"m", "v"}


def test_sgd_subtracts_the_gradient_times_the_rate():
    theta, gradients = problem(50)
    result, optimizer = run(OptimizerConfig(optimizer="sgd"), theta, gradients)
    np.testing.assert_allclose(result, theta - 1e-2 * gradients.sum(axis=0), rtol=1e-4, atol=1e-5)
    assert optimizer.count == 5 and optimizer.slots == {}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("centered", [False, True])
def test_rmsprop_equals_the_reference(inside, centered):
    config = OptimizerConfig(
        optimizer="rmsprop-centered" if centered else "rmsprop",
        rmsprop_decay=0.9,
        rmsprop_epsilon=1e-3,
        rmsprop_epsilon_inside=inside,
    )
    theta, gradients = problem(50)
    expected = references.rmsprop(theta, gradients, 1e-2, 0.9, 1e-3, inside=inside, centered=centered)
    np.testing.assert_allclose(run(config, theta, gradients)[0], expected, rtol=1e-4, atol=1e-5)


def test_adam_equals_keras():
    import tensorflow as tf

    theta, gradients = problem(1000, updates=20)
    variable = tf.Variable(theta)
    keras = tf.keras.optimizers.Adam(1e-2, beta_1=0.8, beta_2=0.75, epsilon=1e-3)  # epsilon-hat form, too
    for gradient in gradients:
        keras.apply_gradients([(tf.constant(gradient), variable)])
    np.testing.assert_allclose(run(ADAM, theta, gradients)[0], variable.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("config", RULES, ids=rule_id)
def test_slices_equal_the_whole_to_the_bit(config):
    size = 150_001  # several blocks, and cuts that are not aligned
    theta, gradients = problem(size)
    whole, state = run(config, theta, gradients, scale=1 / 3)
    for cut in [slice(0, 33_333), slice(33_333, 33_334), slice(33_334, size)]:
        part, own = run(config, theta[cut], gradients[:, cut], scale=1 / 3)
        np.testing.assert_array_equal(part, whole[cut])
        for name in own.slots:
            np.testing.assert_array_equal(own.slots[name], state.slots[name][cut])


@pytest.mark.parametrize("config", RULES, ids=rule_id)
def test_scale_multiplies_the_gradient(config):
    theta, gradients = problem(1000)
    given = gradients.copy()
    np.testing.assert_array_equal(
        run(config, theta, gradients, scale=0.3)[0], run(config, theta, gradients * np.float32(0.3))[0]
    )
    np.testing.assert_array_equal(gradients, given)


@pytest.mark.parametrize("config", RULES, ids=rule_id)
def test_slots_and_count_are_the_whole_state(config):
    theta, gradients = problem(1000, updates=6)
    straight, _ = run(config, theta, gradients)
    middle, first = run(config, theta, gradients[:3])
    second = make_optimizer(config, 1000)
    second.count = first.count
    for name, slot in first.slots.items():
        second.slots[name][:] = slot
    for gradient in gradients[3:]:
        second.apply(middle, gradient, 1e-2)
    np.testing.assert_array_equal(middle, straight)
    assert second.count == 6


def test_limits():
    theta, gradients = problem(100, updates=1)
    nothing, _ = run(ADAM, theta, np.zeros_like(gradients))
    np.testing.assert_array_equal(nothing, theta)
    without_memory = dataclasses.replace(ADAM, beta1=0.0, beta2=0.0, adam_epsilon=1e-12)
    signs, _ = run(without_memory, theta, gradients)
    np.testing.assert_allclose(signs - theta, -1e-2 * np.sign(gradients[0]), rtol=1e-3)
    first, _ = run(dataclasses.replace(ADAM, adam_epsilon=1e-12), theta, gradients)
    np.testing.assert_allclose(first, signs, rtol=1e-4, atol=1e-6)  # the first step is that for any betas
    large_epsilon, _ = run(dataclasses.replace(without_memory, adam_epsilon=1e6), theta, gradients, rate=1e6)
    np.testing.assert_allclose(large_epsilon, theta - gradients[0], rtol=1e-3, atol=1e-4)  # plain descent


def test_centered_rmsprop_stays_finite_where_the_variance_vanishes():
    config = dataclasses.replace(RULES[2], rmsprop_epsilon=1e-12)
    gradients = np.full((400, 1000), 0.1, np.float32) * np.linspace(0.1, 10, 1000, dtype=np.float32)
    theta, _ = run(config, np.zeros(1000, np.float32), gradients)
    assert np.isfinite(theta).all()


def test_a_variance_that_rounding_leaves_below_zero_counts_as_zero():
    config = OptimizerConfig(optimizer="rmsprop-centered", rmsprop_epsilon=1e-4, rmsprop_epsilon_inside=True)
    optimizer, theta = make_optimizer(config, 1), np.zeros(1, np.float32)
    optimizer.slots["mean_square"][:], optimizer.slots["mean_gradient"][:] = 0.999, 1.0  # and the gradient is 1, too
    optimizer.apply(theta, np.ones(1, np.float32), 1e-3)
    np.testing.assert_allclose(theta, -1e-3 / np.sqrt(1e-4), rtol=1e-5)


def test_shapes_must_agree():
    optimizer = make_optimizer(ADAM, 10)
    with pytest.raises(ValueError, match="shape"):
        optimizer.apply(np.zeros(10, np.float32), np.zeros((10, 1), np.float32), 1.0)
    assert optimizer.count == 0


@pytest.mark.parametrize("config", RULES, ids=rule_id)
def test_several_gradients_and_another_target_equal_their_sum_in_place(config):
    theta, gradients = problem(70_000, updates=3)
    expected, _ = run(config, theta, [(gradients[0] + gradients[1]) + gradients[2]], scale=1 / 3)
    given, out = theta.copy(), np.empty_like(theta)
    make_optimizer(config, len(theta)).apply(given, list(gradients), 1e-2, scale=1 / 3, out=out)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(given, theta)


@pytest.mark.parametrize("config", RULES, ids=rule_id)
def test_updates_made_ahead_equal_those_made_at_once(config):
    """An update that nobody accepts leaves nothing behind."""
    theta, gradients = problem(100)
    expected, at_once = run(config, theta, gradients, scale=0.5)
    ahead = make_optimizer(config, len(theta))
    for gradient in gradients:
        ahead.prepare(theta, -gradient, 1e-2, 0.5)
        theta = ahead.prepare(theta, gradient, 1e-2, 0.5)
        ahead.accept()
    np.testing.assert_array_equal(theta, expected)
    assert ahead.count == at_once.count == len(gradients)
    for name, slot in at_once.slots.items():
        np.testing.assert_array_equal(ahead.slots[name], slot)


@pytest.mark.parametrize("config", RULES, ids=rule_id)
def test_a_trail_takes_several_steps_at_once(config):
    """Together they are one step of the size of the first; a single one is that step to the bit."""
    theta, gradients = problem(BLOCK + 3, updates=3)
    theta[0] = gradients[0][0] = -0.0
    optimizer, trail, now = make_optimizer(config, theta.size), Trail(theta.size), theta.copy()
    first = optimizer.step_size(1e-2)
    for number, (gradient, rate) in enumerate(zip(gradients, (1e-2, 3e-2, 2e-2), strict=True)):
        size = optimizer.step_size(rate)
        (trail.next if number else trail.begin)(size)
        optimizer.apply(now, gradient, rate, trail=trail)
        at_once = np.empty_like(theta)
        optimizer.move(theta, trail.vector, first, out=at_once)
        if number == 0:
            assert at_once.tobytes() == now.tobytes()
        np.testing.assert_allclose(at_once, now, rtol=1e-5, atol=1e-5 * np.abs(now).max())
    trail.begin(0.0)
    trail.next(0.0)
    optimizer.apply(now, gradients[0], 0.0, trail=trail)
    assert np.isfinite(trail.vector).all()
