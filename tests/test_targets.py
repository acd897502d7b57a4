"""The compiled targets: chunks, padding, which parameters choose."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from ddrl.algorithms.dqn import DQNConfig, targets
from ddrl.config import NetworkConfig
from ddrl.errors import UsageError
from ddrl.learner import as_device_vector
from ddrl.networks import build_network
from ddrl.targets import TargetFunction
from ddrl.types import Discrete, Replayed
from tests import q_references

ACTIONS = 4
SHAPES = {"mlp": (1, 10, 5), "a3c": (4, 28, 28)}
VARIANTS = {
    "dqn": DQNConfig(),
    "double": DQNConfig(double=True),
    "categorical": DQNConfig(atoms=7, value_min=-2.0, value_max=2.0),
    "rainbow": DQNConfig(atoms=7, value_min=-2.0, value_max=2.0, double=True, dueling=True),
}


def parts(network_name, config, chunk, compute="float32"):
    """A target function, its network, and parameters theta and theta^-, whose greedy actions differ."""
    settings = NetworkConfig(network=network_name, compute_dtype=compute)
    network = build_network(settings, SHAPES[network_name], np.uint8, Discrete(ACTIONS), config.head)
    noise = np.random.default_rng(0).standard_normal((2, network.size))
    vectors = [(network.initial_parameters(1) + 0.05 * row).astype(np.float32) for row in noise]
    return (
        TargetFunction(network, targets, config, SHAPES[network_name], np.uint8, chunk),
        network,
        *map(as_device_vector, vectors),
    )


def replayed(network_name, count, seed=0):
    random = np.random.default_rng(seed)
    unused = dict.fromkeys(Replayed._fields)
    return Replayed(
        **unused
        | {
            "reward": random.standard_normal(count).astype(np.float32),
            "discount": random.choice([0.0, 0.97, 0.99], count).astype(np.float32),
            "next_observation": random.integers(0, 256, (count, *SHAPES[network_name])).astype(np.uint8),
        }
    )


def rows(batch, selection):
    return Replayed(*(None if x is None else x[selection] for x in batch))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("network_name", SHAPES)
def test_targets_equal_the_reference(network_name, variant):
    config, batch = VARIANTS[variant], replayed(network_name, 10)
    function, network, online, target = parts(network_name, config, chunk=8)
    computed = function(target, batch)
    outputs = [
        network.action_values(network.prepare(v), tf.constant(batch.next_observation)).numpy() for v in (target, online)
    ]
    chosen = [np.argmax([q_references.expected(row, config) for row in output], axis=1) for output in outputs]
    assert (chosen[0] != chosen[1]).any(), "both networks choose alike: this test could not tell double from not"
    expected = q_references.targets(*outputs, batch.reward, batch.discount, config)
    if config.double:
        assert computed.shape[:2] == (10, ACTIONS)  # of each next action; the loss chooses
        computed = computed[np.arange(10), chosen[1]]
    np.testing.assert_allclose(computed, expected, rtol=1e-3, atol=1e-5)
    assert computed.dtype == np.float32


@pytest.mark.parametrize("variant", ["dqn", "rainbow"])
@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_a_rows_bits_do_not_depend_on_the_rows_beside_it(variant, compute):
    """In its place in a chunk: there are processors on which its last bits depend on that."""
    batch = replayed("a3c", 70)
    function, _, _, target = parts("a3c", VARIANTS[variant], 32, compute)
    whole = function(target, batch)
    kept = np.random.default_rng(1).random(70) < 0.5
    beside = replayed("a3c", 70, seed=1)
    for mine, other in zip(batch, beside, strict=True):
        if other is not None:
            other[kept] = mine[kept]
    np.testing.assert_array_equal(function(target, beside)[kept], whole[kept])
    for count in (1, 31, 33, 64):
        np.testing.assert_array_equal(function(target, rows(batch, slice(count))), whole[:count])
    np.testing.assert_array_equal(function(target, rows(batch, slice(32, 70))), whole[32:])


def test_it_follows_new_parameters():
    function, _, other, target = parts("mlp", VARIANTS["double"], chunk=4)
    batch = replayed("mlp", 6)
    before = function(target, batch)
    assert not np.array_equal(function(other, batch), before)
    np.testing.assert_array_equal(function(np.array(target), batch), before)  # not yet on the device


def test_empty_chunks_are_refused():
    with pytest.raises(UsageError, match="chunks of 0 transitions"):
        parts("mlp", VARIANTS["dqn"], chunk=0)
