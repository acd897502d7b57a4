"""The network for observations of several fields."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from ddrl.config import NetworkConfig
from ddrl.errors import UsageError
from ddrl.learner import Policy
from ddrl.networks import build_network
from ddrl.networks.structured import is_image
from ddrl.structured import ACTION_MASK, inputs_of, tensors_of
from ddrl.types import Discrete, QHead

VECTORS = np.dtype([("b", "f4", (3,)), ("a/x", "u1", (2, 2)), (ACTION_MASK, "?", (4,)), ("on", "?")])


def tensors_by_name(network, vector):
    starts = np.cumsum([0, *(int(np.prod(shape)) for _, shape in network.parameter_shapes)])
    parts = zip(network.parameter_shapes, starts, starts[1:])
    return {name: vector[start:stop].reshape(shape) for (name, shape), start, stop in parts}


def test_fields_without_an_image_are_one_vector():
    config = NetworkConfig(network="mlp", hidden_layers=(7,))
    network = build_network(config, (), VECTORS, Discrete(4))
    random = np.random.default_rng(0)
    vector = random.standard_normal(network.size).astype(np.float32) * 0.1
    seen = np.zeros(5, VECTORS)
    seen["b"], seen["on"] = random.standard_normal((5, 3)), random.random(5) < 0.5
    seen["a/x"], seen[ACTION_MASK] = random.integers(0, 256, (5, 2, 2)), random.random((5, 4)) < 0.6
    policy, value = Policy(network, (), VECTORS, (5,))(vector, seen)
    flat = np.concatenate([seen["a/x"].reshape(5, 4) / 255.0, seen["b"], seen["on"].reshape(5, 1)], axis=1)
    plain = build_network(NetworkConfig(network="mlp", hidden_layers=(7,)), (8,), np.float32, Discrete(4))
    wanted = plain(tf.constant(vector), tf.constant(flat, tf.float32))
    np.testing.assert_allclose(policy, np.where(seen[ACTION_MASK], wanted.policy, -1e9), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(value, wanted.value, rtol=1e-4, atol=1e-5)
    assert inputs_of((), VECTORS) == 8


def test_an_image_and_other_fields_against_numpy():
    dtype = np.dtype([*VECTORS.descr, ("image", "u1", (5, 6))])
    network = build_network(NetworkConfig(network="mlp"), (), dtype, Discrete(4))
    random = np.random.default_rng(0)
    vector = random.standard_normal(network.size).astype(np.float32) * 0.1
    seen = np.zeros(3, dtype)
    seen["b"], seen["a/x"] = random.standard_normal((3, 3)), random.integers(0, 256, (3, 2, 2))
    seen["image"], seen[ACTION_MASK] = random.integers(0, 256, (3, 5, 6)), random.random((3, 4)) < 0.6
    policy, value = Policy(network, (), dtype, (3,))(vector, seen)
    named = tensors_by_name(network, vector)
    layer = lambda name, x: x @ named[f"{name}/kernel"] + named[f"{name}/bias"]
    relu = lambda x: np.maximum(x, 0.0)
    image = seen["image"] / 255.0
    patches = np.lib.stride_tricks.sliding_window_view(image, (3, 3), axis=(1, 2))  # [B, 3, 4, 3, 3]
    kernel = named["image/conv0/kernel"][:, :, 0]
    convolved = relu(np.einsum("bhwij,ijf->bhwf", patches, kernel) + named["image/conv0/bias"])
    others = np.concatenate([seen["a/x"].reshape(3, 4) / 255.0, seen["b"], np.zeros((3, 1))], axis=1)
    features = [relu(layer("image/dense", convolved.reshape(3, -1))), relu(layer("/others/dense", others))]
    hidden = relu(layer("joined", np.concatenate(features, axis=1)))
    np.testing.assert_allclose(policy, np.where(seen[ACTION_MASK], layer("policy", hidden), -1e9), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(value, layer("value", hidden)[:, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("network_name", ["mlp", "a3c"])
@pytest.mark.parametrize("head", [None, QHead(True, 5)])
def test_images_of_either_order_are_seen_alike(network_name, head):
    config, random = NetworkConfig(network=network_name, compute_dtype="float32"), np.random.default_rng(0)
    first = np.dtype([("image", "u1", (3, 24, 20)), ("speed", "f4", (2,))])
    last = np.dtype([("image", "u1", (24, 20, 3)), ("speed", "f4", (2,))])
    a, b = np.ones(4, first), np.ones(4, last)
    a["image"] = random.integers(0, 256, (4, 3, 24, 20))
    b["image"] = np.moveaxis(a["image"], 1, 3)
    answers = []
    for seen in (a, b):
        network = build_network(config, (), seen.dtype, Discrete(4), head)
        answers.append(Policy(network, (), seen.dtype, (4,))(network.initial_parameters(1), seen))
    np.testing.assert_allclose(answers[0][0], answers[1][0], rtol=1e-5)
    assert len({row.tobytes() for row in answers[0][0]}) == 4, "the images make a difference"


def test_the_image_branch_is_the_chosen_network_where_it_fits():
    names = {}
    for size in (84, 10):
        dtype = np.dtype([("image", "u1", (4, size, size))])
        network = build_network(NetworkConfig(network="nature"), (), dtype, Discrete(4))
        names[size] = dict(network.parameter_shapes)
    assert names[84]["image/conv0/kernel"] == (8, 8, 4, 32) and names[84]["image/q/kernel"] == (512, 256)
    assert names[10]["image/conv0/kernel"] == (3, 3, 4, 16)
    plain = build_network(NetworkConfig(network="nature"), (84, 84, 4), np.uint8, Discrete(4))
    assert dict(plain.parameter_shapes)["conv0/kernel"] == (8, 8, 4, 32)
    assert is_image((9, 9), np.uint8) and not is_image((9, 9), np.float32) and not is_image((3, 3, 3), np.uint8)


def test_nothing_to_see():
    with pytest.raises(UsageError, match="nothing but a mask of legal actions"):
        build_network(NetworkConfig(network="mlp"), (), np.dtype([(ACTION_MASK, "?", (4,))]), Discrete(4))


def test_gradients_reach_all_parameters():
    dtype = np.dtype([("image", "u1", (24, 20)), ("speed", "f4", (2,))])
    network = build_network(NetworkConfig(network="a3c", compute_dtype="float32"), (), dtype, Discrete(4))
    seen, parameters = np.ones(4, dtype), tf.constant(network.initial_parameters(1))
    seen["image"] = np.random.default_rng(0).integers(0, 256, (4, 24, 20))
    with tf.GradientTape() as tape:
        tape.watch(parameters)
        policy, value = network(parameters, dict(zip(sorted(dtype.names), tensors_of(seen))))
        total = tf.reduce_sum(policy[:, 0]) + tf.reduce_sum(value)
    gradient = tensors_by_name(network, tape.gradient(total, parameters).numpy())
    assert all(np.abs(part).sum() > 0 for part in gradient.values())
