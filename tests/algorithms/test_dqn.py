"""Settings and loss of the Q-learning family."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from ddrl.algorithms import dqn
from ddrl.algorithms.dqn import DQNConfig
from ddrl.config import NetworkConfig, OptimizerConfig
from ddrl.errors import UsageError
from ddrl.learner import Learner
from ddrl.networks import build_network
from ddrl.types import Discrete, LossContext, QHead, Replayed
from tests import q_references, references

ACTIONS, ROWS = 3, 20
CONFIGS = {
    "huber": DQNConfig(),
    "squared": DQNConfig(loss="squared"),
    "categorical": DQNConfig(atoms=5, value_min=-2.0, value_max=2.0),
}


class FixedValues:
    """A stand-in for a network: its parameters are the values, or logits, that it gives."""

    prepare = staticmethod(lambda parameters: parameters)
    action_values = staticmethod(lambda prepared, observation: prepared)


def outputs(config, seed=1):
    shape = (ROWS, ACTIONS, config.atoms) if config.atoms else (ROWS, ACTIONS)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def batch_of(config, seed=0):
    random = np.random.default_rng(seed)
    target = 2 * random.standard_normal((ROWS, config.atoms) if config.atoms else ROWS)
    return Replayed(
        reward=None,
        discount=None,
        next_observation=None,
        observation=random.standard_normal((ROWS, 5)).astype(np.float32),
        action=random.integers(ACTIONS, size=ROWS).astype(np.int32),
        target=(references.softmax(target) if config.atoms else target).astype(np.float32),
        weight=random.random(ROWS).astype(np.float32),
        behaviour_version=np.zeros(ROWS, np.int64),
        key=np.arange(ROWS),
    )


def tensors(batch):
    return Replayed(*(None if array is None else tf.constant(array) for array in batch))


@pytest.fixture(params=CONFIGS)
def config(request):
    return CONFIGS[request.param]


def test_loss_and_priorities_equal_the_reference(config):
    values, batch = outputs(config), batch_of(config)
    output = dqn.loss(FixedValues, tf.constant(values), tensors(batch), config, LossContext())
    loss, priorities = q_references.loss(values, batch, config)
    np.testing.assert_allclose(output.loss, loss, rtol=1e-5)
    np.testing.assert_allclose(output.priorities, priorities, rtol=1e-4, atol=1e-5)
    assert output.priorities.dtype == tf.float32
    np.testing.assert_allclose(output.metrics["priority"], priorities.mean(), rtol=1e-4)
    of_action = [q_references.expected(row, config)[action] for row, action in zip(values, batch.action)]
    np.testing.assert_allclose(output.metrics["q_value"], np.mean(of_action), rtol=1e-4, atol=1e-6)
    if config.atoms:
        np.testing.assert_allclose(
            output.metrics["support_end"], (batch.target[:, 0] + batch.target[:, -1]).mean(), rtol=1e-5
        )


def test_gradient_equals_the_numerical_one(config):
    values, batch = outputs(config), batch_of(config)
    parameters = tf.constant(values)
    with tf.GradientTape() as tape:
        tape.watch(parameters)
        loss = dqn.loss(FixedValues, parameters, tensors(batch), config, LossContext()).loss
    gradient, expected, step = tape.gradient(loss, parameters), np.zeros(values.shape), 1e-6
    for at in np.ndindex(values.shape):
        ends = []
        for sign in (1.0, -1.0):
            moved = values.astype(np.float64)
            moved[at] += sign * step
            ends.append(q_references.loss(moved, batch, config)[0])
        expected[at] = (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose(tf.convert_to_tensor(gradient), expected, rtol=1e-3, atol=1e-6)


def test_with_double_the_newest_parameters_choose_and_get_no_gradient_by_it(config):
    double = dataclasses.replace(config, double=True)
    network = build_network(NetworkConfig(network="mlp"), (5,), np.float32, Discrete(ACTIONS), config.head)
    parameters, random = network.initial_parameters(1), np.random.default_rng(7)
    each = random.standard_normal((ROWS, ACTIONS, config.atoms) if config.atoms else (ROWS, ACTIONS)).astype(np.float32)
    each = references.softmax(each).astype(np.float32) if config.atoms else each
    batch = batch_of(config)._replace(next_observation=random.standard_normal((ROWS, 5)).astype(np.float32))
    values = network.expected(
        network.action_values(network.prepare(tf.constant(parameters)), batch.next_observation)
    ).numpy()
    chosen = values.argmax(axis=1)
    assert len(set(chosen)) > 1
    results = []
    for settings, target in ((config, each[np.arange(ROWS), chosen]), (double, each)):
        given = batch._replace(target=target)
        learner = Learner(network, dqn.loss, settings, OptimizerConfig(batch_size=ROWS), given)
        results.append(learner.gradient(parameters, given))
    (gradient, metrics, priorities), (with_double, *others) = results
    np.testing.assert_allclose(with_double, gradient, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(others[1], priorities, rtol=1e-5, atol=1e-6)
    assert others[0] == pytest.approx(metrics, rel=1e-4, abs=1e-6)


def test_a_batch_of_another_form_is_refused():
    plain, categorical = CONFIGS["huber"], CONFIGS["categorical"]
    with pytest.raises(ValueError):
        dqn.loss(FixedValues, tf.constant(outputs(categorical)), tensors(batch_of(plain)), categorical, LossContext())
    column = batch_of(plain)._replace(weight=np.ones((ROWS, 1), np.float32))
    with pytest.raises(ValueError):
        dqn.loss(FixedValues, tf.constant(outputs(plain)), tensors(column), plain, LossContext())


def test_the_learner_gives_priorities(config):
    network = build_network(NetworkConfig(network="mlp"), (5,), np.float32, Discrete(ACTIONS), config.head)
    batch, parameters = batch_of(config), network.initial_parameters(1)
    learner = Learner(network, dqn.loss, config, OptimizerConfig(batch_size=ROWS), batch)
    gradient, metrics, priorities = learner.gradient(parameters, batch)
    values = network.action_values(network.prepare(tf.constant(parameters)), tf.constant(batch.observation)).numpy()
    loss, expected = q_references.loss(values, batch, config)
    np.testing.assert_allclose(priorities, expected, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-4)
    again = learner.gradient(parameters, batch._replace(key=batch.key + 7))
    np.testing.assert_array_equal(again[0], gradient)


def test_the_family_by_its_settings():
    assert DQNConfig().head == QHead()
    rainbow = DQNConfig(dueling=True, atoms=51)
    assert rainbow.head == QHead(True, 51, -10.0, 10.0)


def test_epsilon_falls_linearly_and_stays():
    config = DQNConfig(epsilon_start=1.0, epsilon_end=0.1, epsilon_steps=1000)
    assert [config.epsilon(steps) for steps in (0, 500, 1000, 10**9)] == pytest.approx([1.0, 0.55, 0.1, 0.1])
    assert dataclasses.replace(config, epsilon_steps=0).epsilon(0) == 0.1


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"n_step": 0}, "--n-step 0: must be a finite number of at least 1"),
        ({"atoms": 1}, "--atoms 1: one atom cannot tell returns apart"),
        ({"atoms": 51, "value_min": 3.0, "value_max": 2.0}, "--value-max 2.0: must be a finite number above 3.0"),
        ({"atoms": 51, "value_min": float("-inf")}, "--value-min -inf: must be a finite number"),
        ({"loss": "hinge"}, "--loss hinge: must be one of huber, squared"),
        ({"epsilon_end": 1.5}, "--epsilon-end 1.5: must be between 0.0 and 1.0"),
        ({"discount": 1.01}, "--discount 1.01: must be between 0.0 and 1.0"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(UsageError, match=message):
        DQNConfig(**settings)
