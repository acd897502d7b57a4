from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf

from ddrl.algorithms import ba3c
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import NetworkConfig
from ddrl.networks import build_network
from ddrl.types import DataPoints, Discrete, LossContext
from tests import references
from tests.algorithms.fixed_network import FixedNetwork

CONFIG = BA3CConfig(importance_clip=2.0)


def random_batch(size=16, features=5, actions=3, seed=0):
    random = np.random.default_rng(seed)
    return DataPoints(
        random.standard_normal((size, features)).astype(np.float32),
        random.integers(actions, size=size).astype(np.int32),
        random.standard_normal(size).astype(np.float32),
        np.log(random.uniform(0.1, 0.9, size)).astype(np.float32),
        np.zeros(size, np.int64),
    )


def outputs(seed=1, size=16, actions=3):
    random = np.random.default_rng(seed)
    logits = random.standard_normal((size, actions)).astype(np.float32)
    return logits, random.standard_normal(size).astype(np.float32)


def loss_of(logits, value, batch, config):
    network = FixedNetwork(Discrete(logits.shape[1]), logits, value)
    return ba3c.loss(network, None, DataPoints(*map(tf.constant, batch)), config, LossContext())


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        BA3CConfig(normalize_advantages=True),
        BA3CConfig(clip_range=0.2),
        BA3CConfig(clip_range=0.1, normalize_advantages=True),
    ],
)
def test_equals_the_reference(config):
    batch, (logits, value) = random_batch(), outputs()
    output = loss_of(logits, value, batch, config)
    expected = references.ba3c_loss(logits, value, batch.action, batch.return_, batch.behaviour_log_prob, config)
    names = ("loss", "policy_loss", "value_loss", "entropy", "importance_ratio_mean")
    for name, number in zip(names, expected):
        np.testing.assert_allclose(output.metrics[name], number, rtol=1e-5, atol=1e-6, err_msg=name)
    np.testing.assert_array_equal(output.loss, output.metrics["loss"])
    advantage = batch.return_ - value
    np.testing.assert_allclose(output.metrics["advantage_mean"], advantage.mean(), rtol=1e-4)
    np.testing.assert_allclose(output.metrics["advantage_rms"], math.sqrt((advantage**2).mean()), rtol=1e-5)
    np.testing.assert_allclose(output.metrics["value_mean"], value.mean(), rtol=1e-5)
    assert output.priorities is None


def test_the_entropys_cost_falls_with_alpha():
    batch, (logits, value) = random_batch(), outputs()
    network, rows = FixedNetwork(Discrete(3), logits, value), DataPoints(*map(tf.constant, batch))
    falling = BA3CConfig(entropy_cost=0.2, entropy_cost_schedule="linear")
    half = ba3c.loss(network, None, rows, falling, LossContext(tf.constant(0.5)))
    np.testing.assert_allclose(half.loss, loss_of(logits, value, batch, BA3CConfig(entropy_cost=0.1)).loss, rtol=1e-6)


def test_importance_correction_is_off_at_zero_and_idle_on_policy():
    batch, (logits, value) = random_batch(), outputs()
    off = dataclasses.replace(CONFIG, importance_clip=0.0)
    on_policy = np.log(references.softmax(logits)[np.arange(16), batch.action]).astype(np.float32)
    plain = loss_of(logits, value, batch, off)
    np.testing.assert_array_equal(plain.metrics["importance_ratio_mean"], 1.0)
    corrected = loss_of(logits, value, batch._replace(behaviour_log_prob=on_policy), CONFIG)
    np.testing.assert_allclose(corrected.loss, plain.loss, rtol=1e-5)
    assert abs(float(loss_of(logits, value, batch, CONFIG).loss - plain.loss)) > 1e-3


def test_the_clip_stops_what_has_moved_already():
    """No gradient of the policy where every action is more likely by more than the clip, and was good."""
    (logits, value), config = outputs(), BA3CConfig(clip_range=0.2, entropy_cost=0.0, value_cost=0.0)
    batch = random_batch()
    log_probs = np.log(references.softmax(logits)[np.arange(16), batch.action]).astype(np.float32)
    good = batch._replace(return_=value + 1.0)
    for moved, stopped in ((0.3, True), (0.1, False)):
        with tf.GradientTape() as tape:
            variable = tf.constant(logits)
            tape.watch(variable)
            then = (log_probs - np.log1p(moved)).astype(np.float32)
            output = loss_of(variable, value, good._replace(behaviour_log_prob=then), config)
        assert bool((tape.gradient(output.loss, variable).numpy() == 0.0).all()) == stopped


def test_with_one_epoch_and_no_lag_the_clipped_gradient_is_that_of_a3c():
    (logits, value), batch = outputs(), random_batch()
    log_probs = np.log(references.softmax(logits)[np.arange(16), batch.action]).astype(np.float32)
    gradients = []
    for config in (BA3CConfig(clip_range=0.2), BA3CConfig(log_epsilon=0.0)):
        with tf.GradientTape() as tape:
            variable = tf.constant(logits)
            tape.watch(variable)
            output = loss_of(variable, value, batch._replace(behaviour_log_prob=log_probs), config)
        gradients.append(tape.gradient(output.loss, variable).numpy())
    np.testing.assert_allclose(gradients[0], gradients[1], rtol=1e-4, atol=1e-7)


def test_the_order_of_rows_does_not_matter():
    batch, (logits, value) = random_batch(), outputs()
    order = np.random.default_rng(2).permutation(16)
    shuffled = DataPoints(*(field[order] for field in batch))
    a, b = loss_of(logits, value, batch, CONFIG), loss_of(logits[order], value[order], shuffled, CONFIG)
    for name in a.metrics:
        np.testing.assert_allclose(a.metrics[name], b.metrics[name], rtol=1e-5, atol=1e-6)


def surrogate(network, parameters, batch, config, advantages, ratios):
    """The loss with its stopped terms held fixed, whose ordinary derivative is the gradient, in float64."""
    output = network(tf.constant(parameters, tf.float32), tf.constant(batch.observation))
    logits, value = output.policy.numpy().astype(np.float64), output.value.numpy().astype(np.float64)
    probabilities = references.softmax(logits)[np.arange(len(value)), batch.action]
    policy = -np.mean(ratios * advantages * np.log(probabilities + config.log_epsilon))
    square = np.mean((batch.return_ - value) ** 2)
    return policy + config.value_cost * square - config.entropy_cost * references.entropy(logits).mean()


@pytest.mark.parametrize("importance_clip", [0.0, 2.0])
def test_gradient_equals_finite_differences(importance_clip):
    config = BA3CConfig(importance_clip=importance_clip, entropy_cost=0.1)
    network = build_network(NetworkConfig(network="mlp"), (5,), np.float32, Discrete(3))
    random, batch = np.random.default_rng(3), random_batch()
    start = network.initial_parameters(1) + 0.05 * random.standard_normal(network.size).astype(np.float32)
    with tf.GradientTape() as tape:
        parameters = tf.constant(start)
        tape.watch(parameters)
        output = ba3c.loss(network, parameters, DataPoints(*map(tf.constant, batch)), config, LossContext())
    gradient = tape.gradient(output.loss, parameters).numpy().astype(np.float64)
    logits, value = network(parameters, tf.constant(batch.observation))
    probabilities = references.softmax(logits.numpy())[np.arange(16), batch.action]
    ratios = np.minimum(probabilities / np.exp(batch.behaviour_log_prob), importance_clip)
    fixed = (batch.return_ - value.numpy(), ratios if importance_clip else 1.0)
    directions = [gradient / np.linalg.norm(gradient), *random.standard_normal((3, network.size)) / 50]
    for direction in directions:
        ahead, behind = (surrogate(network, start + step * direction, batch, config, *fixed) for step in (1e-2, -1e-2))
        assert (ahead - behind) / 2e-2 == pytest.approx(float(gradient @ direction), rel=2e-2, abs=2e-4)


def test_rewards_are_clipped_only_when_asked():
    rewards = np.array([-7.0, 0.25, 4.0], np.float32)
    np.testing.assert_array_equal(BA3CConfig().transform_reward(rewards), [-1.0, 0.25, 1.0])
    np.testing.assert_array_equal(BA3CConfig(reward_clip=0.0).transform_reward(rewards), rewards)
    np.testing.assert_array_equal(rewards, [-7.0, 0.25, 4.0])


def test_rewards_are_scaled_before_they_are_clipped():
    rewards = np.array([-7.0, 0.25, 4.0], np.float32)
    np.testing.assert_array_equal(BA3CConfig(reward_scale=0.5).transform_reward(rewards), [-1.0, 0.125, 1.0])
