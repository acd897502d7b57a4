"""The residual network of IMPALA against the same layers written with Keras, and the sizes of dense networks."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from ddrl.config import NetworkConfig
from ddrl.errors import UsageError
from ddrl.networks import build_network
from ddrl.types import Continuous, Discrete, QHead


def reference(rows, weights):
    """Espeholt et al. 2018, figure 3, right: for [B, C, H, W]; takes the tensors in the flat order."""
    import keras

    def conv(x, channels):
        layer = keras.layers.Conv2D(channels, 3, padding="same")
        layer.build(x.shape)
        layer.set_weights([next(weights), next(weights)])
        return layer(x)

    x = tf.constant(rows.transpose(0, 2, 3, 1), tf.float32) / 255.0
    for channels in (16, 32, 32):
        x = keras.layers.MaxPooling2D(3, 2, padding="same")(conv(x, channels))
        for _ in range(2):
            x += conv(tf.nn.relu(conv(tf.nn.relu(x), channels)), channels)
    x = tf.reshape(tf.nn.relu(x), [len(rows), -1])
    x = tf.nn.relu(x @ next(weights) + next(weights))
    return x @ next(weights) + next(weights), x @ next(weights) + next(weights)


@pytest.mark.parametrize("shape", [(4, 84, 84), (3, 33, 20)])
def test_the_residual_network_is_that_of_the_paper(shape):
    network = build_network(NetworkConfig(network="impala", compute_dtype="float32"), shape, np.uint8, Discrete(6))
    random = np.random.default_rng(1)
    flat = tf.constant(network.initial_parameters(1) + 0.01 * random.standard_normal(network.size, np.float32))
    rows = random.integers(0, 256, (3, *shape)).astype(np.uint8)
    policy, value = reference(rows, iter([x.numpy() for x in network.unflatten(flat).values()]))
    output = network(flat, rows)
    np.testing.assert_allclose(output.policy, policy, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(output.value, value[:, 0], rtol=1e-3, atol=1e-3)
    half = build_network(NetworkConfig(network="impala", compute_dtype="bfloat16"), shape, np.uint8, Discrete(6))
    assert half.compute_dtype == "bfloat16" and half.parameter_shapes == network.parameter_shapes
    np.testing.assert_allclose(half(flat, rows).policy, policy, rtol=0.1, atol=0.05)


def test_the_residual_network_has_fifteen_convolutions_and_takes_images_and_dueling_heads():
    network = build_network(NetworkConfig(network="impala"), (4, 84, 84), np.uint8, Discrete(6), QHead(dueling=True))
    assert sum(len(shape) == 4 for _, shape in network.parameter_shapes) == 15
    assert dict(network.parameter_shapes)["dense/kernel"] == (11 * 11 * 32, 512)
    with pytest.raises(UsageError, match="network impala takes images"):
        build_network(NetworkConfig(network="impala"), (4,), np.float32, Discrete(6))


def test_hidden_layers_activation_and_layer_norm_of_a_dense_network():
    config = NetworkConfig(network="mlp", hidden_layers=(5, 3), activation="relu", layer_norm=True)
    network = build_network(config, (4,), np.float32, Continuous((-1.0,), (1.0,)))
    shapes = dict(network.parameter_shapes)
    assert shapes["policy0/scale"] == (5,) and shapes["policy1/offset"] == (3,) and "policy2/scale" not in shapes
    random = np.random.default_rng(2)
    flat = tf.constant(random.standard_normal(network.size, np.float32))
    x = rows = random.standard_normal((6, 4)).astype(np.float32)
    tensors = {name: value.numpy() for name, value in network.unflatten(flat).items()}
    for layer in range(2):
        x = x @ tensors[f"policy{layer}/kernel"] + tensors[f"policy{layer}/bias"]
        x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
        x = np.maximum(x * tensors[f"policy{layer}/scale"] + tensors[f"policy{layer}/offset"], 0.0)
    expected = x @ tensors["policy2/kernel"] + tensors["policy2/bias"]
    np.testing.assert_allclose(network(flat, rows).policy[:, :1], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["nature", "impala"])
def test_networks_of_a_paper_have_no_sizes(name):
    with pytest.raises(UsageError, match=f"--hidden-layers .* --network {name} has the layers of its paper"):
        NetworkConfig(network=name, hidden_layers=(3,))
    with pytest.raises(UsageError, match="--hidden-layers .* at least 1 neuron"):
        NetworkConfig(network="mlp", hidden_layers=(0,))
