from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from ddrl.config import NetworkConfig
from ddrl.errors import UsageError
from ddrl.networks import build_network, convolutional
from ddrl.types import Continuous, Discrete, QHead
from tests import q_references, references

# Stride, padding and pooling of each convolution.
LAYERS = {
    "a3c": [(4, 0, 1), (2, 0, 1)],
    "nature": [(4, 0, 1), (2, 0, 1), (1, 0, 1)],
    "ba3c": [(1, 0, 2), (1, 0, 2), (1, 0, 2), (1, 0, 1)],
}


def network_of(name, shape, actions=6, dtype=np.uint8, compute="float32", **settings):
    config = NetworkConfig(network=name, compute_dtype=compute, **settings)
    return build_network(config, shape, dtype, Discrete(actions))


def images(count, shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, *shape)).astype(np.uint8)


def noisy_parameters(network):
    """Initial parameters with biases that are not zero."""
    noise = np.random.default_rng(5).standard_normal(network.size)
    return (network.initial_parameters(1) + 0.01 * noise).astype(np.float32)


def named(network, parameters):
    sizes = [math.prod(shape) for _, shape in network.parameter_shapes]
    parts = np.split(parameters.astype(np.float64), np.cumsum(sizes)[:-1])
    return {name: part.reshape(shape) for (name, shape), part in zip(network.parameter_shapes, parts)}


@pytest.mark.parametrize(
    "neurons, parameters", [(256, 538_119), (128, 332_295), (64, 229_383), (32, 177_927), (16, 152_199)]
)
def test_ba3c_has_the_papers_sizes(neurons, parameters):
    network = network_of("ba3c", (12, 84, 84), fc_neurons=neurons)
    assert network.size == parameters == len(network.initial_parameters(0))


@pytest.mark.parametrize(
    "name, shape, features",
    [
        ("a3c", (4, 84, 84), 9 * 9 * 32),
        ("nature", (4, 84, 84), 7 * 7 * 64),
        ("a3c", (4, 104, 80), 12 * 9 * 32),
        ("nature", (4, 104, 80), 12 * 9 * 64),
    ],
)
def test_image_sizes(name, shape, features):
    assert dict(network_of(name, shape).parameter_shapes)["dense/kernel"][0] == features


@pytest.mark.parametrize(
    "name, shape", [("a3c", (4, 29, 26)), ("nature", (3, 39, 44)), ("ba3c", (12, 53, 52)), ("ba3c", (16, 52, 52))]
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_equals_the_reference(name, shape, dtype):
    network = network_of(name, shape, dtype=dtype, fc_neurons=16)
    parameters = noisy_parameters(network)
    observations = images(2, shape)
    observations[0, 0, :2] = np.resize(np.array([1, 0, 128, 127], np.uint8), (2, shape[2]))  # a NaN's bytes
    given = observations if dtype == np.uint8 else (observations / 255.0).astype(np.float32)
    output = network(tf.constant(parameters), tf.constant(given))
    tensors = named(network, parameters)
    for b in range(2):
        logits, value = references.convolutional_network(
            tensors, LAYERS[name], observations[b] / 255.0, dense_relu=name != "ba3c"
        )
        np.testing.assert_allclose(output.policy[b], logits, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(output.value[b], value, rtol=1e-3, atol=1e-4)


def test_stooke_images_are_padded():
    network = network_of("a3c", (4, 104, 80))
    parameters, observations = noisy_parameters(network), images(1, (4, 104, 80))
    logits, _ = references.convolutional_network(
        named(network, parameters), [(4, 0, 1), (2, 1, 1)], observations[0] / 255.0
    )
    output = network(tf.constant(parameters), tf.constant(observations))
    np.testing.assert_allclose(output.policy[0], logits, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape, dtype", [((1, 10, 5), np.uint8), ((4,), np.float32)])
def test_mlp(shape, dtype):
    network = network_of("mlp", shape, actions=3, dtype=dtype)
    parameters = noisy_parameters(network)
    observations = images(3, shape).astype(dtype)
    x = observations.reshape(3, -1) / (255.0 if dtype == np.uint8 else 1.0)
    tensors = named(network, parameters)
    expected = {}
    for tower in ("policy", "value"):
        hidden = x
        for layer in range(3):
            hidden = hidden @ tensors[f"{tower}{layer}/kernel"] + tensors[f"{tower}{layer}/bias"]
            hidden = np.tanh(hidden) if layer < 2 else hidden
        expected[tower] = hidden
    output = network(tf.constant(parameters), tf.constant(observations))
    np.testing.assert_allclose(output.policy, expected["policy"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(output.value, expected["value"][:, 0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name, shape", [("a3c", (4, 36, 36)), ("ba3c", (12, 52, 52))])
def test_bfloat16_is_close_and_its_outputs_are_float32(name, shape):
    exact, rough = network_of(name, shape), network_of(name, shape, compute="bfloat16")
    parameters, observations = tf.constant(noisy_parameters(exact)), tf.constant(images(16, shape))
    a, b = exact(parameters, observations), rough(parameters, observations)
    assert b.policy.dtype == b.value.dtype == tf.float32
    scale = np.abs(a.value.numpy()).max()
    assert 0.0 < np.abs(a.value - b.value).max() < 0.05 * scale


def test_initial_parameters():
    network = network_of("nature", (4, 36, 36))
    parameters = network.initial_parameters(3)
    assert parameters.dtype == np.float32 and parameters.shape == (network.size,)
    np.testing.assert_array_equal(parameters, network.initial_parameters(3))
    assert (parameters != network.initial_parameters(4)).mean() > 0.9
    tensors = named(network, parameters)
    assert not any(tensors[name].any() for name in tensors if name.endswith("/bias"))
    for name, gain in [("conv1/kernel", 2**0.5), ("policy/kernel", 0.01), ("value/kernel", 1.0)]:
        matrix = tensors[name].reshape(-1, tensors[name].shape[-1])
        np.testing.assert_allclose(matrix.T @ matrix, gain**2 * np.eye(matrix.shape[1]), atol=1e-5)


def test_initial_parameters_of_ba3c():
    tensors = named(*(lambda n: (n, n.initial_parameters(0)))(network_of("ba3c", (12, 84, 84))))
    kernel, limit = tensors["conv1/kernel"], 1.43 * math.sqrt(3 / 1600)
    assert 0.055 < np.abs(kernel).max() <= 0.06
    assert kernel.std() == pytest.approx(0.03 * 0.88, rel=0.02)  # a normal cut at 2 deviations
    assert 0.99 * limit < np.abs(tensors["dense/kernel"]).max() <= limit


@pytest.mark.parametrize("name, shape", [("nature", (4, 35, 84)), ("a3c", (1, 10, 5)), ("ba3c", (12, 50, 84))])
def test_images_that_are_too_small(name, shape):
    with pytest.raises(UsageError, match=f"{shape[1]}x{shape[2]} are too small for network {name}.*mlp"):
        network_of(name, shape)


def test_observations_that_do_not_suit():
    with pytest.raises(UsageError, match="nature takes images"):
        network_of("nature", (4,), dtype=np.float32)
    with pytest.raises(UsageError, match="not int64"):
        network_of("mlp", (4,), dtype=np.int64)


def test_building_networks_needs_no_tensorflow():
    code = (
        "import sys\nfrom ddrl.config import NetworkConfig\nfrom ddrl.networks import build_network\n"
        "from ddrl.types import Discrete\n"
        "for name in ('a3c', 'nature', 'ba3c', 'mlp'):\n"
        "    assert build_network(NetworkConfig(network=name), (3, 104, 80), 'uint8', Discrete(5)).size > 10_000\n"
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize("name, shape, dtype", [("mlp", (3,), np.float32), ("a3c", (4, 84, 84), np.uint8)])
def test_a_gaussian_policy_is_means_and_deviations_that_no_state_changes(name, shape, dtype):
    space = Continuous((-1.0, -2.0), (1.0, 2.0))
    network = build_network(NetworkConfig(network=name, compute_dtype="float32"), shape, dtype, space)
    assert network.parameter_shapes[-1] == ("policy/log_deviation", (2,))
    parameters = network.initial_parameters(1)
    parameters[-2:] = [0.5, -0.25]
    observations = np.random.default_rng(0).integers(0, 5, (4, *shape)).astype(dtype)
    policy = network(tf.constant(parameters), tf.constant(observations)).policy.numpy()
    assert policy.shape == (4, space.policy_size)
    np.testing.assert_array_equal(policy[:, 2:], np.tile(np.float32([0.5, -0.25]), (4, 1)))
    assert len(np.unique(policy[:, 0])) == 4


Q_HEADS = {
    "plain": QHead(),
    "dueling": QHead(dueling=True),
    "categorical": QHead(atoms=5, value_min=-2.0, value_max=3.0),
    "dueling categorical": QHead(dueling=True, atoms=5, value_min=-2.0, value_max=3.0),
}
Q_SHAPES = [("mlp", (3,), np.float32), ("a3c", (4, 36, 36), np.uint8), ("nature", (3, 39, 44), np.uint8)]


def q_network_of(name, head, shape, dtype, compute="float32"):
    config = NetworkConfig(network=name, compute_dtype=compute)
    return build_network(config, shape, dtype, Discrete(6), head)


def reference_values(network, head, tensors, observation):
    """Values or logits of one scaled observation, from the hidden layers up."""
    each = (head.atoms,) if head.atoms else ()
    hidden = {}
    if network.name == "mlp":
        for tower in ("value", "advantage") if head.dueling else ("q",):
            x = observation.reshape(-1)
            for layer in range(2):
                x = np.tanh(x @ tensors[f"{tower}{layer}/kernel"] + tensors[f"{tower}{layer}/bias"])
            hidden[tower] = x @ tensors[f"{tower}2/kernel"] + tensors[f"{tower}2/bias"]
    else:
        streams = ("value", "advantage") if head.dueling else ("q",)
        dense, bias = tensors["dense/kernel"], tensors["dense/bias"]
        for i, stream in enumerate(streams):
            columns = slice(i * dense.shape[1] // len(streams), (i + 1) * dense.shape[1] // len(streams))
            own = {"dense/kernel": dense[:, columns], "dense/bias": bias[columns]}
            own |= {
                f"{to}/{part}": tensors[f"{stream}/{part}"] for to in ("policy", "value") for part in ("kernel", "bias")
            }
            convolutions = {name: x for name, x in tensors.items() if name.startswith("conv")}
            hidden[stream], _ = references.convolutional_network(convolutions | own, LAYERS[network.name], observation)
    values = {stream: x.reshape(-1, *each) for stream, x in hidden.items()}
    return q_references.dueling(values["value"], values["advantage"]) if head.dueling else values["q"]


@pytest.mark.parametrize("head", Q_HEADS.values(), ids=Q_HEADS)
@pytest.mark.parametrize("name, shape, dtype", Q_SHAPES)
def test_action_values_equal_the_reference(name, shape, dtype, head):
    network = q_network_of(name, head, shape, dtype)
    parameters, observations = noisy_parameters(network), images(2, shape).astype(dtype)
    prepared = network.prepare(tf.constant(parameters))
    values = network.action_values(prepared, tf.constant(observations)).numpy()
    q, value = network.apply(prepared, tf.constant(observations))
    assert values.shape == ((2, 6, head.atoms) if head.atoms else (2, 6))
    for b in range(2):
        scaled = observations[b] / (255.0 if dtype == np.uint8 else 1.0)
        expected = reference_values(network, head, named(network, parameters), scaled)
        np.testing.assert_allclose(values[b], expected, rtol=1e-3, atol=2e-4)
        np.testing.assert_allclose(q[b], q_references.expected(values[b], head), rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(value, q.numpy().max(axis=1))


def test_the_gradient_of_what_dueling_streams_share_is_divided_by_the_root_of_2(monkeypatch):
    network = q_network_of("a3c", QHead(dueling=True), (4, 36, 36), np.uint8)
    parameters, observations = tf.constant(noisy_parameters(network)), tf.constant(images(3, (4, 36, 36)))

    def gradient():
        with tf.GradientTape() as tape:
            tape.watch(parameters)
            total = tf.reduce_sum(network.action_values(network.prepare(parameters), observations)[:, 2])
        return named(network, tape.gradient(total, parameters).numpy())

    divided = gradient()
    monkeypatch.setattr(convolutional, "half_variance", lambda x: x)
    for name, whole in gradient().items():
        factor = 2**-0.5 if name.startswith("conv") else 1.0
        assert np.abs(whole).max() > 0 or name == "advantage/bias"
        np.testing.assert_allclose(
            divided[name], factor * whole, rtol=1e-4, atol=1e-5 * np.abs(whole).max(), err_msg=name
        )


@pytest.mark.parametrize("head", Q_HEADS.values(), ids=Q_HEADS)
def test_q_networks_in_bfloat16_and_their_first_values(head):
    exact = q_network_of("a3c", head, (4, 36, 36), np.uint8)
    rough = q_network_of("a3c", head, (4, 36, 36), np.uint8, "bfloat16")
    parameters, observations = tf.constant(exact.initial_parameters(1)), tf.constant(images(8, (4, 36, 36)))
    q, rough_q = exact(parameters, observations).policy, rough(parameters, observations).policy
    middle = (head.value_min + head.value_max) / 2 if head.atoms else 0.0
    assert q.dtype == rough_q.dtype == tf.float32 and np.abs(q - middle).max() < 0.1
    assert 0.0 < np.abs(q - rough_q).max() < 0.01


def test_values_of_continuous_actions_are_refused():
    with pytest.raises(UsageError, match="takes discrete actions"):
        build_network(NetworkConfig(network="mlp"), (3,), np.float32, Continuous((-1.0,), (1.0,)), QHead())


def test_a_network_of_policy_and_value_says_that_it_has_no_action_values():
    network = network_of("mlp", (3,), dtype=np.float32)
    prepared = network.prepare(tf.constant(network.initial_parameters(0)))
    for ask in (lambda: network.action_values(prepared, np.zeros((1, 3), np.float32)), lambda: network.expected(None)):
        with pytest.raises(ValueError, match="network mlp was built without a head of the Q-learning family"):
            ask()
