from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ddrl.exchange.central_store.multistep_adam import MultiStepAdam
from ddrl.exchange.optimizers import make_optimizer
from ddrl.exchange.settings import OptimizerConfig
from ddrl.kernels.updates import BLOCK
from tests import references

ADAM = OptimizerConfig(beta1=0.8, beta2=0.9, adam_epsilon=1e-4)
RATE = 1e-2


class Central:
    """theta, m, v, t without a store."""

    def __init__(self, theta):
        self.theta, self.count = theta.copy(), 0
        self.slots = {"m": np.zeros_like(theta), "v": np.zeros_like(theta)}

    def synchronize(self, adam, out):
        steps = adam.local_steps
        adam.synchronize(self.theta, self.slots, self.count, out)
        self.count += steps


def problem(size, updates, seed=0):
    random = np.random.default_rng(seed)
    scales = 10.0 ** random.uniform(-3, 1, size)
    gradients = (random.standard_normal((updates, size)) * scales).astype(np.float32)
    return random.standard_normal(size).astype(np.float32), gradients


def alone(config, theta, gradients, every):
    """One learner that synchronizes after so many steps."""
    central, adam, own = Central(theta), MultiStepAdam(config, theta.size), theta.copy()
    for step, gradient in enumerate(gradients, start=1):
        adam.apply(own, gradient, RATE)
        if step % every == 0:
            central.synchronize(adam, own)
    return central, adam, own


def adam_of(config, theta, gradients):
    theta, optimizer = theta.copy(), make_optimizer(config, theta.size)
    for gradient in gradients:
        optimizer.apply(theta, gradient, RATE)
    return theta, optimizer


def test_one_learner_that_synchronizes_after_each_step_is_adam_to_the_bit():
    theta, gradients = problem(BLOCK + 777, 30)
    central, adam, own = alone(ADAM, theta, gradients, every=1)
    expected, optimizer = adam_of(ADAM, theta, gradients)
    np.testing.assert_array_equal(own, expected)
    np.testing.assert_array_equal(central.theta, expected)
    for name in ("m", "v"):
        np.testing.assert_array_equal(central.slots[name], optimizer.slots[name])
    assert central.count == adam.count == optimizer.count == 30


@pytest.mark.parametrize("config", [ADAM, OptimizerConfig(), dataclasses.replace(ADAM, beta1=0.0)])
@pytest.mark.parametrize("every", [2, 3, 5])
def test_one_learner_that_synchronizes_seldom_is_adam_but_for_rounding(every, config):
    steps = 600
    theta, gradients = problem(200, steps)
    central, _, own = alone(config, theta, gradients, every)
    expected, optimizer = adam_of(config, theta, gradients)
    # Each step rounds theta once on either side, by half a unit in the last place of its largest value; what differs in
    # m and v, a few units per synchronization, decays and enters through steps of the size of the learning rate.
    tolerance = steps * np.finfo(np.float32).eps * (np.abs(expected).max() + 10 * RATE)
    np.testing.assert_allclose(own, expected, rtol=0, atol=tolerance)
    for name in ("m", "v"):
        scale = np.abs(optimizer.slots[name]).max()
        np.testing.assert_allclose(central.slots[name], optimizer.slots[name], rtol=1e-4, atol=1e-5 * scale)
    assert np.abs(expected - theta).max() > 100 * tolerance and central.count == steps


def test_two_learners_equal_the_reference():
    order = "aabbAbBaAbaaBbA"  # small: that learner's local step; capital: it synchronizes
    theta, gradients = problem(60, len(order))
    events = [(c.lower(), g if c.islower() else None) for c, g in zip(order, gradients)]
    central = Central(theta)
    adams, own = {}, {}
    for name, gradient in events:
        if name not in adams:
            adams[name], own[name] = MultiStepAdam(ADAM, theta.size), np.empty_like(theta)
            central.synchronize(adams[name], own[name])  # nothing to add: it adopts what is there
        if gradient is None:
            central.synchronize(adams[name], own[name])
        else:
            adams[name].apply(own[name], gradient, RATE)
    expected, learners = references.multistep_adam(theta, events, RATE, 0.8, 0.9, 1e-4)
    np.testing.assert_allclose(central.theta, expected["theta"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(central.slots["m"], expected["m"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(central.slots["v"], expected["v"], rtol=1e-5, atol=1e-7)
    assert central.count == expected["t"]
    for name, parameters in learners.items():
        np.testing.assert_allclose(own[name], parameters, rtol=1e-5, atol=1e-6)


def test_the_weights_of_all_gradients_sum_to_what_the_step_size_divides_by():
    ones = np.ones(3, np.float32)
    central = Central(np.zeros(3, np.float32))
    learners = [MultiStepAdam(ADAM, 3), MultiStepAdam(ADAM, 3)]
    for adam, steps in zip(learners, (2, 3)):
        own = central.theta.copy()
        for _ in range(steps):
            adam.apply(own, ones, RATE)
    for adam in learners:
        central.synchronize(adam, own)
    assert central.count == 5 and learners[0].count == 2 and learners[1].count == 5
    np.testing.assert_allclose(central.slots["m"], 1 - 0.8**5, rtol=1e-6)
    np.testing.assert_allclose(central.slots["v"], 1 - 0.9**5, rtol=1e-6)


def test_newer_central_parameters_keep_the_local_steps():
    theta, gradients = problem(40, 2)
    adam, own, out = MultiStepAdam(ADAM, 40), theta.copy(), np.empty_like(theta)
    for gradient in gradients:
        adam.apply(own, gradient, RATE)
    before = {name: slot.copy() for name, slot in adam.slots.items()}
    adam.ahead_of(theta + 1, out)
    np.testing.assert_allclose(out, own + 1, rtol=1e-5, atol=1e-6)
    assert adam.local_steps == 2
    for name, slot in before.items():
        np.testing.assert_array_equal(adam.slots[name], slot)


def test_shapes_must_agree():
    adam = MultiStepAdam(ADAM, 10)
    central = Central(np.zeros((10, 1), np.float32))
    with pytest.raises(ValueError, match="shape"):
        central.synchronize(adam, np.zeros(10, np.float32))
