"""The policy and the critic of DPG."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from ddrl.config import NetworkConfig
from ddrl.errors import UsageError
from ddrl.networks.deterministic import DeterministicNetwork
from ddrl.types import Continuous, Discrete

SPACE = Continuous((-2.0, -1.0), (2.0, 3.0))


def network_of(shape=(5,), dtype=np.float32, **layers):
    return DeterministicNetwork(NetworkConfig(network="mlp", **layers), shape, dtype, SPACE)


def test_it_has_the_papers_layers_in_the_documented_order():
    network = network_of((67,))
    assert network.parameter_shapes == (
        ("policy0/kernel", (67, 300)),
        ("policy0/bias", (300,)),
        ("policy1/kernel", (300, 200)),
        ("policy1/bias", (200,)),
        ("policy2/kernel", (200, 2)),
        ("policy2/bias", (2,)),
        ("critic0/kernel", (67, 400)),
        ("critic0/bias", (400,)),
        ("critic1/kernel", (402, 300)),
        ("critic1/bias", (300,)),
        ("critic2/kernel", (300, 1)),
        ("critic2/bias", (1,)),
    )


def test_actions_stay_within_their_bounds_and_reach_them():
    network = network_of(policy_layers=(7,), critic_layers=(6,))
    observations = np.random.default_rng(0).standard_normal((50, 5)).astype(np.float32)
    first = network(tf.constant(network.initial_parameters(1)), tf.constant(observations))
    np.testing.assert_allclose(first.policy, np.tile([0.0, 1.0], (50, 1)), atol=0.1)  # begins in the middle
    large = network(tf.constant(500 * network.initial_parameters(1)), tf.constant(observations)).policy.numpy()
    assert (large >= np.float32([-2, -1]) - 1e-6).all() and (large <= np.float32([2, 3]) + 1e-6).all()
    np.testing.assert_allclose(np.abs(large - [0.0, 1.0]).max(axis=0), [2.0, 2.0], rtol=1e-3)
    assert first.value.shape == (50,) and first.policy.dtype == tf.float32


def test_units_go_from_bound_to_bound():
    network = network_of()
    actions = np.float32([[-2.0, -1.0], [0.0, 1.0], [2.0, 3.0]])
    np.testing.assert_allclose(network.normalized(actions), [[-1, -1], [0, 0], [1, 1]], atol=1e-6)


def test_a_component_of_one_value_only_is_zero_in_any_unit():
    space = Continuous((-2.0, 0.5), (2.0, 0.5))
    network = DeterministicNetwork(NetworkConfig(network="mlp"), (5,), np.float32, space)
    np.testing.assert_array_equal(network.normalized(np.float32([[1.0, 0.5]])), [[0.5, 0.0]])
    np.testing.assert_array_equal(network.scaled(np.float32([[0.5, -1.0]])), [[1.0, 0.5]])


def test_with_one_hidden_layer_the_action_enters_the_last():
    shapes = dict(network_of(policy_layers=(7,), critic_layers=(6,)).parameter_shapes)
    assert shapes["critic1/kernel"] == (8, 1)


def test_images_are_flattened_and_scaled():
    network = network_of((2, 3), np.uint8, policy_layers=(4,), critic_layers=(4,))
    image = np.random.default_rng(0).integers(0, 256, (3, 2, 3)).astype(np.uint8)
    plain = network_of((6,), np.float32, policy_layers=(4,), critic_layers=(4,))
    parameters = tf.constant(network.initial_parameters(1))
    expected = plain(parameters, tf.constant((image.reshape(3, 6) / 255.0).astype(np.float32)))
    for output, other in zip(network(parameters, tf.constant(image)), expected):
        np.testing.assert_allclose(output, other, rtol=1e-4, atol=1e-6)


def test_discrete_actions_are_refused():
    with pytest.raises(UsageError, match="dpg takes continuous actions, not discrete ones: train dqn"):
        DeterministicNetwork(NetworkConfig(network="mlp"), (5,), np.float32, Discrete(3))


def test_layers_without_neurons_are_refused():
    with pytest.raises(UsageError, match=r"--critic-layers \(nothing\): give one or more hidden layers"):
        NetworkConfig(critic_layers=())
    with pytest.raises(UsageError, match=r"--policy-layers 3 0: give one or more hidden layers"):
        NetworkConfig(policy_layers=(3, 0))
