"""Networks that normalize: against NumPy, in every place where observations enter, and without gradient."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from ddrl.algorithms import ALGORITHMS
from ddrl.config import NetworkConfig
from ddrl.errors import UsageError
from ddrl.exchange.statistics import moments_of, packed, statistics_in
from ddrl.learner import with_scaled_rewards
from ddrl.networks import build_network
from ddrl.networks.normalization import reward_scale
from ddrl.structured import float_rows
from ddrl.types import Continuous, Discrete, QHead, Replayed

SHAPE = (2, 3)
SMALL = NetworkConfig(network="mlp", policy_layers=(8,), critic_layers=(8,))
SPACE = Continuous((-1.0, -2.0), (1.0, 2.0))
IMAGE = (1, 20, 20)


def of_algorithm(name):
    known = ALGORITHMS[name]
    return known.network(SMALL, known.settings(), SHAPE, np.float32, SPACE)


BUILT = {
    "mlp": (lambda: build_network(SMALL, SHAPE, np.float32, Discrete(3)), SHAPE),
    "gaussian": (lambda: build_network(SMALL, SHAPE, np.float32, SPACE), SHAPE),
    "q": (lambda: build_network(SMALL, SHAPE, np.float32, Discrete(3), QHead(dueling=True)), SHAPE),
    "dpg": (lambda: of_algorithm("dpg"), SHAPE),
    "sac": (lambda: of_algorithm("sac"), SHAPE),
    "a3c": (
        lambda: build_network(NetworkConfig(network="a3c", compute_dtype="float32"), IMAGE, np.float32, Discrete(2)),
        IMAGE,
    ),
}


def rows(shape, count=50, seed=0):
    random = np.random.default_rng(seed)
    return (3.0 + random.standard_normal((count, *shape)) * random.uniform(0.1, 9.0, shape)).astype(np.float32)


def with_statistics(network, shape):
    """Parameters whose last tensors are statistics of observations and returns."""
    parameters = network.initial_parameters(1)
    seen = [moments_of(rows(shape).reshape(50, -1)), moments_of(np.linspace(-5.0, 9.0, 20)[:, None])]
    statistics_in(network.parameter_shapes).of(parameters)[:] = np.concatenate([packed(moments) for moments in seen])
    return parameters


def by_numpy(observations, shape):
    seen = rows(shape).astype(np.float64)
    return np.clip((observations - seen.mean(axis=0)) / np.sqrt(seen.var(axis=0) + 1e-8), -10, 10).astype(np.float32)


@pytest.mark.parametrize("name", BUILT)
def test_a_network_that_normalizes_is_one_that_sees_normalized_observations(name):
    make, shape = BUILT[name]
    plain, network = make(), make()
    network.normalize(shape, np.float32, True, True)
    assert [tensor for tensor, _ in network.parameter_shapes[-2:]] == [
        "normalization/observation",
        "normalization/return",
    ]
    parameters, observations = with_statistics(network, shape), rows(shape, 7, seed=4) * np.float32(3.0)
    expected = by_numpy(observations, shape)
    assert (abs(expected) == 10.0).any()

    def value_and_gradient(network, vector, observations):
        vector = tf.constant(vector)
        with tf.GradientTape() as tape:
            tape.watch(vector)
            policy, value = network(vector, observations)
            total = tf.reduce_sum(policy) + tf.reduce_sum(value)
        return policy, value, tape.gradient(total, vector).numpy()

    found = value_and_gradient(network, parameters, observations)
    wanted = value_and_gradient(plain, parameters[: plain.size], expected)
    for one, other in zip(found[:2], wanted[:2]):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(found[2][: plain.size], wanted[2], rtol=2e-3, atol=2e-4)
    assert not found[2][plain.size :].any(), "statistics have no gradient"


@pytest.mark.parametrize("name", ["mlp", "a3c"])
def test_before_anything_was_seen_observations_stay_as_they_are(name):
    make, shape = BUILT[name]
    plain, network = make(), make()
    network.normalize(shape, np.float32, True, False)
    parameters, observations = network.initial_parameters(1), rows(shape, 4) / np.float32(10.0)
    np.testing.assert_array_equal(parameters[: plain.size], plain.initial_parameters(1))
    found, wanted = network(parameters, observations), plain(parameters[: plain.size], observations)
    np.testing.assert_array_equal(found.policy, wanted.policy)


def test_rewards_of_a_replay_are_over_the_deviation_of_the_version_that_learns():
    network, settings = of_algorithm("dpg"), ALGORITHMS["dpg"].settings(n_step=2)
    network.normalize(SHAPE, np.float32, True, True)
    parameters, deviation = with_statistics(network, SHAPE), np.linspace(-5.0, 9.0, 20).std()
    batch = Replayed(*[None] * 9)._replace(reward=np.float32([1.0, -3.0, 1e5]))
    found = with_scaled_rewards(network, network.prepare(parameters), batch, settings).reward
    np.testing.assert_allclose(found, [1.0 / deviation, -3.0 / deviation, 20.0], rtol=1e-5)
    np.testing.assert_allclose(reward_scale(parameters[-6:]), 1.0 / deviation, rtol=1e-6)


def test_bytes_are_refused():
    network = build_network(SMALL, SHAPE, np.uint8, Discrete(2))
    with pytest.raises(UsageError, match="--normalize-observations: no numbers of these observations are floats"):
        network.normalize(SHAPE, np.uint8, True, False)
    network.normalize(SHAPE, np.uint8, False, True)
    assert network.parameter_shapes[-1] == ("normalization/return", (6,))


def test_entries_of_floats_are_normalized_each_by_its_own_and_others_stay():
    dtype = np.dtype([("speed", "f4", (2,)), ("camera", "u1", (3,)), ("place", "f4", (1, 2)), ("switch", "?", (2,))])
    plain, network = (build_network(SMALL, (), dtype, Discrete(2)) for _ in range(2))
    network.normalize((), dtype, True, True)
    random = np.random.default_rng(2)
    seen, observations = np.zeros(50, dtype), np.zeros(7, dtype)
    for array in (seen, observations):
        for name in ("speed", "place"):
            array[name] = random.standard_normal(array[name].shape) * 3 + 1
        array["camera"] = random.integers(256, size=array["camera"].shape)
        array["switch"] = random.integers(2, size=array["switch"].shape)
    numbers = float_rows(seen)
    assert numbers.shape == (50, 4)
    parameters = network.initial_parameters(1)
    blocks = [packed(moments_of(numbers)), packed(moments_of(np.linspace(-5.0, 9.0, 20)[:, None]))]
    statistics_in(network.parameter_shapes).of(parameters)[:] = np.concatenate(blocks)
    expected = observations.copy()
    for name in ("speed", "place"):
        mean, deviation = seen[name].mean(axis=0), np.sqrt(seen[name].astype(np.float64).var(axis=0) + 1e-8)
        expected[name] = (observations[name] - mean) / deviation

    def fields(array):
        return {name: tf.constant(array[name]) for name in dtype.names}

    found = network(tf.constant(parameters), fields(observations))
    wanted = plain(tf.constant(parameters[: plain.size]), fields(expected))
    np.testing.assert_allclose(found.policy, wanted.policy, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(found.value, wanted.value, rtol=1e-3, atol=1e-5)
