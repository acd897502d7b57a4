"""SAC: losses and gradients against a slow transcription of the paper, how it draws, its averaged targets."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from ddrl import algorithms
from ddrl.algorithms import Exploration, sac
from ddrl.algorithms.sac import SACConfig
from ddrl.builders.replay import replay_template
from ddrl.config import NetworkConfig, OptimizerConfig
from ddrl.errors import UsageError
from ddrl.learner import Learner
from ddrl.networks.soft_actor_critic import SoftActorCriticNetwork
from ddrl.sampling.replay_schedules import averaged
from ddrl.types import Continuous, Discrete, LossContext, Machine, Replayed, Snapshot
from tests.references import named_tensors, numerical_gradient

ROWS, INPUTS, ACTIONS = 6, 3, 2
SPACE = Continuous((-2.0, -1.0), (2.0, 3.0))
MIDDLE, HALF = np.array([0.0, 1.0]), np.array([2.0, 2.0])
LAYERS = NetworkConfig(network="mlp", compute_dtype="float32", policy_layers=(5,), critic_layers=(4, 3))
KEY = np.array([3, 5], np.int32)
MACHINE = Machine(2, 24e9)


def network_and_vectors(seed=0):
    """A network, its parameters and those of the target networks, which differ."""
    network = SoftActorCriticNetwork(LAYERS, (INPUTS,), np.float32, SPACE)
    random = np.random.default_rng(seed)
    vectors = [network.initial_parameters(i) + 0.3 * random.standard_normal(network.size) for i in (1, 2)]
    return network, *(parameters.astype(np.float32) for parameters in vectors)


def tower(tensors, name, x):
    layers = sum(key.startswith(name) and key.endswith("kernel") for key in tensors)
    for layer in range(layers):
        x = x @ tensors[f"{name}{layer}/kernel"] + tensors[f"{name}{layer}/bias"]
        x = np.maximum(x, 0.0) if layer < layers - 1 else x
    return x


def smaller_q(tensors, seen, action):
    return np.minimum(*(tower(tensors, critic, np.hstack([seen, action]))[:, 0] for critic in ("first", "second")))


def sampled(tensors, seen, normal):
    """Actions, and the logarithms of their probabilities by the change of variables as the paper writes it."""
    mean, log_deviation = np.split(tower(tensors, "policy", seen), 2, axis=1)
    u = mean + np.exp(log_deviation) * normal
    gaussian = -0.5 * normal**2 - log_deviation - 0.5 * np.log(2 * np.pi)
    return np.tanh(u), np.sum(gaussian - np.log(1.0 - np.tanh(u) ** 2), axis=1)


def batch_of(seed=0):
    random = np.random.default_rng(seed)

    def rows(*shape):
        return random.standard_normal((ROWS, *shape)).astype(np.float32)

    return Replayed(
        observation=rows(INPUTS),
        action=(MIDDLE + HALF * random.uniform(-1, 1, (ROWS, ACTIONS))).astype(np.float32),
        reward=rows(),
        discount=random.choice([0.0, 0.99], ROWS).astype(np.float32),
        next_observation=rows(INPUTS),
        weight=random.random(ROWS).astype(np.float32),
        behaviour_version=np.zeros(ROWS, np.int64),
        key=np.arange(ROWS),
    )


def normals():
    return tf.random.stateless_normal([2, ROWS, ACTIONS], KEY).numpy().astype(np.float64)


def found_and_output(network, parameters, target, config, batch):
    theta = tf.constant(parameters)
    tensors = Replayed(*(None if array is None else tf.constant(array) for array in batch))
    with tf.GradientTape() as tape:
        tape.watch(theta)
        output = sac.loss(network, theta, tensors, config, LossContext(1.0, tf.constant(target), tf.constant(KEY)))
    return tape.gradient(output.loss, theta).numpy(), output


@pytest.mark.parametrize("target_entropy", [None, 0.7])
def test_loss_and_gradient_equal_the_papers_equations(target_entropy):
    """The critics', policy's and temperature's gradients are each of its own loss, by its own parameters alone."""
    network, parameters, target = network_and_vectors()
    batch, config = batch_of(), SACConfig(target_entropy=target_entropy)
    gradient, output = found_and_output(network, parameters, target, config, batch)
    fixed, old, (of_next, of_now) = named_tensors(network, parameters), named_tensors(network, target), normals()
    seen, after = batch.observation.astype(np.float64), batch.next_observation.astype(np.float64)
    alpha = np.exp(fixed["temperature/log"])

    next_action, next_log_prob = sampled(fixed, after, of_next)
    y = batch.reward + batch.discount * (smaller_q(old, after, next_action) - alpha * next_log_prob)
    taken = np.hstack([seen, (batch.action - MIDDLE) / HALF])

    def critic_loss(moved):
        tensors = named_tensors(network, moved)
        errors = [y - tower(tensors, critic, taken)[:, 0] for critic in ("first", "second")]
        return sum(np.mean(batch.weight * 0.5 * error**2) for error in errors)

    def policy_loss(moved):
        action, log_prob = sampled(named_tensors(network, moved), seen, of_now)
        return np.mean(alpha * log_prob - smaller_q(fixed, seen, action))

    action, log_prob = sampled(fixed, seen, of_now)

    def temperature_loss(moved):
        entropy = -ACTIONS if target_entropy is None else target_entropy
        return np.mean(-np.exp(named_tensors(network, moved)["temperature/log"]) * (log_prob + entropy))

    parts = {name: numerical_gradient(part, parameters) for name, part in
             (("critic", critic_loss), ("policy", policy_loss), ("temperature", temperature_loss))}  # fmt: skip
    assert all(np.abs(part).max() > 1e-3 for part in parts.values())
    np.testing.assert_allclose(gradient, sum(parts.values()), rtol=2e-3, atol=2e-5)
    total = critic_loss(parameters) + policy_loss(parameters) + temperature_loss(parameters)
    assert float(output.loss) == pytest.approx(total, rel=1e-4)
    expected = {
        "loss": critic_loss(parameters), "q_target": y.mean(), "entropy": -log_prob.mean(), "temperature": alpha,
        "policy_value": smaller_q(fixed, seen, action).mean(),
    }  # fmt: skip
    assert {name: float(output.metrics[name]) for name in expected} == pytest.approx(expected, rel=1e-4)
    errors = [np.abs(y - tower(fixed, critic, taken)[:, 0]) for critic in ("first", "second")]
    np.testing.assert_allclose(output.priorities, np.mean(errors, axis=0), rtol=1e-4)


def test_the_probability_of_an_action_far_out_is_finite():
    network, parameters, _ = network_and_vectors()
    prepared = network.prepare(tf.constant(parameters))
    action, log_prob = network.sampled(
        prepared, np.ones((1, INPUTS), np.float32), np.full((1, ACTIONS), 60.0, np.float32)
    )
    assert np.all(np.abs(action) == 1.0) and np.isfinite(log_prob).all()


def test_the_learner_reads_target_and_key():
    network, parameters, target = network_and_vectors()
    config, batch = SACConfig(), batch_of()
    template = replay_template(config, SPACE, ROWS, (INPUTS,), np.float32)
    known = algorithms.algorithm_of(config)
    learner = Learner(network, known.loss, config, OptimizerConfig(batch_size=ROWS), template, context=known.context)
    gradient, metrics, priorities = learner.gradient(parameters, batch, LossContext(1.0, target, KEY))
    expected, output = found_and_output(network, parameters, target, config, batch)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(priorities, output.priorities, rtol=1e-5)
    other, _, _ = learner.gradient(parameters, batch, LossContext(1.0, target, KEY + 1))
    moved, _, _ = learner.gradient(parameters, batch, LossContext(1.0, parameters, KEY))
    assert np.abs(other - gradient).max() > 1e-3 and np.abs(moved - gradient).max() > 1e-3
    assert metrics["temperature"] > 0.0


def test_actions_are_drawn_from_the_policy_and_uniformly_before():
    """Moments of 20,000 draws: of tanh of a Gaussian, and of the uniform distribution within the bounds."""
    count = 20_000
    steps = np.concatenate([np.full(count, -1), np.full(count, 5)])
    draw = sac.draw(SACConfig(), Exploration(SPACE, lambda counts: steps, lambda ids: ids, lambda *mean: None))
    policy = np.tile(np.float32([9.0, 9.0, 0.4, -0.2, -1.0, -0.5]), (2 * count, 1))
    actions, log_probs = draw(policy, 1, np.arange(2 * count), np.zeros(2 * count, np.int64))
    before, after = np.split((actions - MIDDLE) / HALF, 2)
    np.testing.assert_allclose(before.mean(0), 0.0, atol=0.02)
    np.testing.assert_allclose(before.std(0), 1 / math.sqrt(3), rtol=0.02)
    reference = np.tanh([0.4, -0.2] + np.exp([-1.0, -0.5]) * np.random.default_rng(0).standard_normal((count, 2)))
    np.testing.assert_allclose(after.mean(0), reference.mean(0), atol=0.02)
    np.testing.assert_allclose(after.std(0), reference.std(0), rtol=0.03)
    assert not log_probs.any() and actions.dtype == np.float32


def test_evaluation_acts_with_the_mean():
    network, parameters, _ = network_and_vectors()
    seen = batch_of().observation
    policy, value = network(tf.constant(parameters), tf.constant(seen))
    tensors = named_tensors(network, parameters)
    mean = np.tanh(np.split(tower(tensors, "policy", seen.astype(np.float64)), 2, axis=1)[0])
    np.testing.assert_allclose(policy[:, :ACTIONS], MIDDLE + HALF * mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(value, smaller_q(tensors, seen, mean), rtol=1e-4, atol=1e-5)


def test_targets_are_averaged_once_for_each_version():
    newest = [Snapshot(i, i, np.full(3, float(i), np.float32)) for i in range(4)]
    target = Snapshot(0, -1, np.zeros(3, np.float32))
    for snapshot in (newest[0], newest[1], newest[1], newest[2], newest[3]):
        target = averaged(target, snapshot, 0.25)
    assert target.version == 3
    expected = 0.0
    for value in (1.0, 2.0, 3.0):
        expected += 0.25 * (value - expected)
    np.testing.assert_allclose(target.parameters, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"algorithm": {"target_average": 0.0}}, "--target-average 0.0: must be a finite number above 0.0"),
        ({"algorithm": {"target_average": 1.5}}, "--target-average 1.5: must be between 0.0 and 1.0"),
        (
            {"sampling": {"schedule": "concurrent"}},
            "--schedule concurrent: it acts with target networks that are copied",
        ),
        ({"evaluation": {"eval_epsilon": 0.1}}, "--eval-epsilon 0.1: sac is evaluated without noise"),
        ({"apex": {"actors": 2}, "sampling": {"schedule": "asynchronous"}}, "--actors 2: sac acts in its workers"),
        ({"network": {"network": "nature"}}, "--network nature: sac has dense layers only"),
    ],
)
def test_settings_that_cannot_be(changes, message):
    with pytest.raises(UsageError, match=message):
        algorithms.preset("default", None, MACHINE, "sac").changed(**changes)


def test_discrete_actions_are_refused():
    config = algorithms.preset("default", "CartPole-v1", MACHINE, "sac")
    with pytest.raises(
        UsageError, match="sac takes continuous actions, and CartPole-v1 has 2 discrete ones: train one of"
    ):
        algorithms.check_action_space(config, Discrete(2))


def test_the_temperature_may_learn_at_a_rate_of_its_own():
    assert SACConfig().learning_rate_factors == {}
    assert SACConfig(temperature_rate=0.25).learning_rate_factors == {sac.LOG_TEMPERATURE: 0.25}
