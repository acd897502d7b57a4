"""Scalars that an algorithm learns beside a network: in every kind of network, before the running statistics."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from ddrl.config import NetworkConfig
from ddrl.errors import UsageError
from ddrl.networks import build_network
from ddrl.structured import tensors_of
from ddrl.types import Continuous

VECTOR = ((5,), np.dtype(np.float32))
FIELDS = ((), np.dtype([("image", "u1", (1, 10, 5)), ("speed", "f4", (3,))]))
SPACE = Continuous((-1.0, -1.0), (1.0, 1.0))


def of_user(spaces, settings):
    import keras

    inputs = spaces.inputs()
    return keras.Model(inputs, spaces.heads(keras.layers.Dense(4)(inputs)))


@pytest.mark.parametrize(
    "network_name, observations", [("mlp", VECTOR), (f"{__name__}:of_user", VECTOR), ("mlp", FIELDS)]
)
def test_scalars_are_beside_any_network(network_name, observations):
    shape, dtype = observations
    config = NetworkConfig(network=network_name, compute_dtype="float32")
    plain, network = (build_network(config, shape, dtype, SPACE) for _ in range(2))
    network.add_scalars({"scale/one": 0.25, "two": -3.0})
    network.normalize(shape, dtype, observations=True, rewards=False)
    assert [name for name, _ in network.parameter_shapes][-3:] == ["scale/one", "two", "normalization/observation"]
    parameters = network.initial_parameters(1)
    np.testing.assert_array_equal(parameters[: plain.size], plain.initial_parameters(1))
    np.testing.assert_array_equal(parameters[plain.size : plain.size + 2], np.float32([0.25, -3.0]))
    seen = np.zeros(4, dtype) if dtype.names else np.ones((4, *shape), dtype)
    tensors = tensors_of(seen)
    observed = dict(zip(sorted(dtype.names), tensors)) if dtype.names else tf.constant(tensors[0])
    theta = tf.constant(parameters)
    with tf.GradientTape() as tape:
        tape.watch(theta)
        prepared = network.prepare(theta)
        output = network.apply(prepared, observed)
        loss = prepared["scale/one"] * 2.0 + prepared["two"] * 3.0 + tf.reduce_sum(output.value)
    gradient = tape.gradient(loss, theta).numpy()
    np.testing.assert_array_equal(gradient[plain.size : plain.size + 2], [2.0, 3.0])
    expected = plain.apply(plain.prepare(tf.constant(parameters[: plain.size])), observed)
    np.testing.assert_allclose(output.policy, expected.policy, rtol=1e-6)


def test_a_name_of_the_network_is_refused():
    network = build_network(NetworkConfig(network="mlp"), *VECTOR, SPACE)
    with pytest.raises(UsageError, match="network mlp already has a tensor policy0/bias: give the algorithm's"):
        network.add_scalars({"policy0/bias": 1.0})
