"""Settings, targets and loss of DPG, against a slow transcription with networks written out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from ddrl.algorithms import dpg
from ddrl.algorithms.dpg import DPGConfig
from ddrl.config import NetworkConfig, OptimizerConfig
from ddrl.errors import UsageError
from ddrl.learner import Learner
from ddrl.networks.deterministic import DeterministicNetwork
from ddrl.targets import CriticFunction, TargetFunction
from ddrl.types import Continuous, LossContext, Replayed
from tests.references import named_tensors, numerical_gradient

INPUTS, ROWS = 3, 7
SPACE = Continuous((-2.0, 0.0), (2.0, 1.0))
MIDDLE, HALF = np.array([0.0, 0.5]), np.array([2.0, 0.5])
LAYERS = NetworkConfig(network="mlp", policy_layers=(6, 5), critic_layers=(8, 4))


def network_and_vector(seed=0):
    """Parameters far from the first ones, so that slopes are large enough to be clipped."""
    network = DeterministicNetwork(LAYERS, (INPUTS,), np.float32, SPACE)
    noise = np.random.default_rng(seed).standard_normal(network.size)
    return network, (network.initial_parameters(seed) + 0.7 * noise).astype(np.float32)


def policy_of(tensors, observation):
    """pi(s) in units of half the range."""
    x = observation
    for layer in range(3):
        x = np.tanh(x @ tensors[f"policy{layer}/kernel"] + tensors[f"policy{layer}/bias"])
    return x


def critic_of(tensors, observation, action):
    x = np.tanh(observation @ tensors["critic0/kernel"] + tensors["critic0/bias"])
    x = np.concatenate([x, action], axis=1)
    x = np.tanh(x @ tensors["critic1/kernel"] + tensors["critic1/bias"])
    return (x @ tensors["critic2/kernel"] + tensors["critic2/bias"])[:, 0]


def batch_of(seed=0):
    random = np.random.default_rng(seed)
    return Replayed(
        reward=None,
        discount=None,
        next_observation=None,
        observation=random.standard_normal((ROWS, INPUTS)).astype(np.float32),
        action=(MIDDLE + HALF * random.uniform(-1, 1, (ROWS, 2))).astype(np.float32),
        target=(3 * random.standard_normal(ROWS)).astype(np.float32),
        weight=random.random(ROWS).astype(np.float32),
        behaviour_version=np.zeros(ROWS, np.int64),
        key=np.arange(ROWS),
    )


def slopes_of(tensors, observation, action):
    """dq/da of each row."""
    pairs = zip(observation[:, None], action)
    return np.stack(
        [numerical_gradient(lambda a, seen=seen: critic_of(tensors, seen, a[None])[0], taken) for seen, taken in pairs]
    )


def gradient_of(network, parameters, config, batch):
    tensor = tf.constant(parameters)
    tensors = Replayed(*(None if array is None else tf.constant(array) for array in batch))
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        output = dpg.loss(network, tensor, tensors, config, LossContext())
    return tape.gradient(output.loss, tensor).numpy(), output


@pytest.mark.parametrize("slope_clip", [0.0, 0.05, 1.0])
def test_loss_and_gradient_equal_the_papers_equations(slope_clip):
    """Of the policy's part: -mean over rows of clip(dq/da) dpi/dphi; of the critic's: that of its own loss alone."""
    network, parameters = network_and_vector()
    batch, config = batch_of(), DPGConfig(slope_clip=slope_clip)
    gradient, output = gradient_of(network, parameters, config, batch)
    fixed, seen = named_tensors(network, parameters), batch.observation.astype(np.float64)
    units = (batch.action - MIDDLE) / HALF

    def critic_loss(moved):
        return np.mean(batch.weight * 0.5 * (batch.target - critic_of(named_tensors(network, moved), seen, units)) ** 2)

    action = policy_of(fixed, seen)
    slopes = slopes_of(fixed, seen, action)
    clipped = np.clip(slopes, -slope_clip, slope_clip) if slope_clip else slopes

    def policy_loss(moved):
        return -np.mean(np.sum(clipped * policy_of(named_tensors(network, moved), seen), axis=1))

    expected = numerical_gradient(critic_loss, parameters) + numerical_gradient(policy_loss, parameters)
    np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=2e-6)
    np.testing.assert_allclose(output.metrics["loss"], critic_loss(parameters), rtol=1e-5)
    np.testing.assert_allclose(output.priorities, np.abs(batch.target - critic_of(fixed, seen, units)), rtol=1e-4)
    np.testing.assert_allclose(output.metrics["policy_value"], critic_of(fixed, seen, action).mean(), rtol=1e-4)
    part = np.mean(np.abs(slopes) > slope_clip) if slope_clip else 0.0
    np.testing.assert_allclose(output.metrics["slope_clipped"], part, atol=1e-6)
    assert slope_clip != 0.05 or part > 0.0


def test_without_a_clip_the_policy_ascends_the_critic():
    """Through the action alone: the gradient of -mean q(s, pi(s; phi); psi) by phi."""
    network, parameters = network_and_vector(3)
    batch = batch_of(1)
    gradient, _ = gradient_of(network, parameters, DPGConfig(slope_clip=0.0), batch)
    fixed, seen = named_tensors(network, parameters), batch.observation.astype(np.float64)
    of_policy = sum(math.prod(shape) for name, shape in network.parameter_shapes if name.startswith("policy"))

    def value(moved):
        return -critic_of(fixed, seen, policy_of(named_tensors(network, moved), seen)).mean()

    np.testing.assert_allclose(
        gradient[:of_policy], numerical_gradient(value, parameters)[:of_policy], rtol=1e-3, atol=2e-6
    )


def test_targets_equal_the_papers_equation_in_chunks():
    network, parameters = network_and_vector(5)
    random = np.random.default_rng(2)
    unused = dict.fromkeys(Replayed._fields)
    batch = Replayed(
        **unused
        | {
            "reward": random.standard_normal(10).astype(np.float32),
            "discount": random.choice([0.0, 0.99**5, 0.99], 10).astype(np.float32),
            "next_observation": random.standard_normal((10, INPUTS)).astype(np.float32),
        }
    )
    fixed, after = named_tensors(network, parameters), batch.next_observation.astype(np.float64)
    expected = batch.reward + batch.discount * critic_of(fixed, after, policy_of(fixed, after))
    function = TargetFunction(network, dpg.targets, DPGConfig(), (INPUTS,), np.float32, 4)
    np.testing.assert_allclose(function(parameters, batch), expected, rtol=1e-4, atol=1e-5)


def test_values_of_any_actions():
    network, parameters = network_and_vector(6)
    random = np.random.default_rng(2)
    seen = random.standard_normal((5, INPUTS)).astype(np.float32)
    action = (MIDDLE + HALF * random.uniform(-1, 1, (5, 2))).astype(np.float32)
    function = CriticFunction(network, dpg.critic, (INPUTS,), np.float32, 2)
    expected = critic_of(named_tensors(network, parameters), seen.astype(np.float64), (action - MIDDLE) / HALF)
    np.testing.assert_allclose(function(parameters, seen, action), expected, rtol=1e-4, atol=1e-5)
    chosen, value = network(tf.constant(parameters), tf.constant(seen))
    np.testing.assert_allclose(function(parameters, seen, chosen.numpy()), value, rtol=1e-4, atol=1e-5)


def test_the_learner_gives_priorities():
    network, parameters = network_and_vector()
    batch = batch_of()
    learner = Learner(network, dpg.loss, DPGConfig(), OptimizerConfig(batch_size=ROWS), batch)
    gradient, metrics, priorities = learner.gradient(parameters, batch)
    expected, output = gradient_of(network, parameters, DPGConfig(), batch)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(priorities, output.priorities, rtol=1e-5)
    assert learner.batch_size == ROWS and metrics["priority"] == pytest.approx(priorities.mean(), rel=1e-5)


def test_a_batch_of_another_form_is_refused():
    network, parameters = network_and_vector()
    column = batch_of()._replace(weight=np.ones((ROWS, 1), np.float32))
    with pytest.raises(ValueError):
        gradient_of(network, parameters, DPGConfig(), column)


def test_the_target_period_is_that_of_the_updates():
    assert DPGConfig(target_updates=100, steps_per_update=4).learns_from.target_period == 400


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"n_step": 0}, "--n-step 0: must be a finite number of at least 1"),
        ({"noise": -0.1}, "--noise -0.1: must be a finite number of at least 0.0"),
        ({"slope_clip": float("nan")}, "--slope-clip nan: must be a finite number"),
        ({"target_updates": 0}, "--target-updates 0: must be a finite number of at least 1"),
        ({"discount": 1.01}, "--discount 1.01: must be between 0.0 and 1.0"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(UsageError, match=message):
        DPGConfig(**settings)
