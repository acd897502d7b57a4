"""Keras' recurrent layers over a window of observations: pure functions of it, or refused."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from ddrl.algorithms import ba3c
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import NetworkConfig, OptimizerConfig
from ddrl.errors import UsageError
from ddrl.exchange.optimizers import make_optimizer
from ddrl.learner import Learner, Policy
from ddrl.networks import build_network
from ddrl.types import DataPoints, Discrete, LossOutput

STEPS, ROWS = 4, 5
WINDOW = (STEPS, 2)


def network_of(layer, monkeypatch, shape=WINDOW, dtype=np.float32, actions=4, **settings):
    """A network whose hidden layer is `layer(keras, x)`."""

    def build(spaces, settings):
        import keras

        inputs = spaces.inputs()
        return keras.Model(inputs, spaces.heads(keras.layers.Flatten()(layer(keras, inputs))))

    monkeypatch.setitem(globals(), "layered", build)
    config = NetworkConfig(network=f"{__name__}:layered", **settings)
    return build_network(config, shape, dtype, Discrete(actions))


def rows(spaces, settings):
    """Reads an image row by row; for tests of exports."""
    import keras

    inputs = spaces.inputs()
    height, width, channels = inputs.shape[1:]
    x = keras.layers.Reshape((height, width * channels))(inputs)
    x = keras.layers.Bidirectional(keras.layers.GRU(4, return_sequences=True))(x)
    return keras.Model(inputs, spaces.heads(keras.layers.LSTM(4)(x)))


def gru(keras, x):
    return keras.layers.GRU(3)(x)


def within_models(keras, x):
    layers = keras.layers
    first = layers.Bidirectional(layers.LSTM(2, return_sequences=True))
    inner = keras.Sequential([keras.Input(WINDOW), first, layers.RNN([layers.GRUCell(3), layers.SimpleRNNCell(2)])])
    outer = keras.Input(WINDOW)
    return keras.Model(outer, inner(outer))(x)


ACCEPTED = {
    "unrolled": lambda keras, x: keras.layers.GRU(3, unroll=True, go_backwards=True)(x),
    "masked": lambda keras, x: keras.layers.LSTM(3)(keras.layers.Masking()(x)),
    "convolutional": lambda keras, x: keras.layers.ConvLSTM1D(2, 1)(keras.layers.Reshape((*WINDOW, 1))(x)),
    "within models": within_models,
}


def windows(seed=2):
    return np.random.default_rng(seed).standard_normal((ROWS, *WINDOW)).astype(np.float32)


def noisy_start(network):
    """Parameters without zeros, which would hide biases."""
    noise = np.random.default_rng(1).normal(0, 0.3, network.size)
    return network.initial_parameters(3) + noise.astype(np.float32)


def tensors(network, flat):
    parts = np.split(flat, np.cumsum([np.prod(shape, dtype=int) for _, shape in network.parameter_shapes])[:-1])
    return [part.reshape(shape) for part, (_, shape) in zip(parts, network.parameter_shapes)]


def squares(output):
    return tf.reduce_sum(output["policy"] ** 2) + tf.reduce_sum(output["value"])


def learner_of(network, observations):
    def loss(network, parameters, batch, settings, context):
        output = network(parameters, batch.observation)
        return LossOutput(squares({"policy": output.policy, "value": output.value}), {})

    count = len(observations)
    batch = DataPoints(observations, np.zeros(count, np.int32), *np.zeros((2, count), np.float32), np.zeros(count, int))
    return Learner(network, loss, BA3CConfig(), OptimizerConfig(batch_size=count), batch), batch


@pytest.mark.parametrize("name", ACCEPTED)
def test_compiled_values_and_gradients_are_those_of_the_model(name, monkeypatch):
    network = network_of(ACCEPTED[name], monkeypatch)
    model, flat, observations = network._model, noisy_start(network), windows()
    assert len(network.parameter_shapes) == len(model.trainable_variables), "no seed is a parameter"
    for variable, value in zip(model.trainable_variables, tensors(network, flat)):
        variable.assign(value)
    with tf.GradientTape() as tape:
        known = model(observations)
        loss = squares(known)
    expected = np.concatenate([np.ravel(g) for g in tape.gradient(loss, [v.value for v in model.trainable_variables])])
    policy, value = Policy(network, WINDOW, np.float32, (ROWS,))(flat, observations)
    np.testing.assert_allclose(policy, known["policy"], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(value, np.ravel(known["value"]), rtol=1e-4, atol=1e-6)
    learner, batch = learner_of(network, observations)
    np.testing.assert_allclose(learner.gradient(flat, batch)[0], expected, rtol=1e-4, atol=1e-5)


def transcribed(network, flat, observations):
    """A GRU that begins with zeros (Cho et al. 2014; the reset gate as in cuDNN), and linear heads."""
    kernel, recurrent, bias, policy, policy_bias, value, value_bias = tensors(network, flat)
    state = np.zeros((len(observations), 3))
    for x in observations.swapaxes(0, 1):
        update, reset, new = np.split(x @ kernel + bias[0], 3, axis=1)
        old_update, old_reset, old_new = np.split(state @ recurrent + bias[1], 3, axis=1)
        update, reset = (1 / (1 + np.exp(-gate)) for gate in (update + old_update, reset + old_reset))
        state = update * state + (1 - update) * np.tanh(new + reset * old_new)
    return state @ policy + policy_bias, (state @ value + value_bias)[:, 0]


def test_a_gru_is_that_of_its_equations_and_its_gradient_that_of_finite_differences(monkeypatch):
    network, observations = network_of(gru, monkeypatch), windows()
    flat = noisy_start(network)
    policy, value = Policy(network, WINDOW, np.float32, (ROWS,))(flat, observations)
    known = transcribed(network, flat.astype(np.float64), observations)
    np.testing.assert_allclose(policy, known[0], atol=1e-6)
    np.testing.assert_allclose(value, known[1], atol=1e-6)

    def loss(parameters):
        policy, value = transcribed(network, parameters, observations)
        return (policy**2).sum() + value.sum()

    learner, batch = learner_of(network, observations)
    steps = 1e-5 * np.eye(network.size)
    differences = [(loss(flat + step) - loss(flat - step)) / 2e-5 for step in steps]
    np.testing.assert_allclose(learner.gradient(flat, batch)[0], differences, rtol=1e-4, atol=1e-5)


def test_equal_windows_give_equal_bits_whatever_came_before(monkeypatch):
    network, again = network_of(gru, monkeypatch), network_of(gru, monkeypatch)
    assert again.parameter_shapes == network.parameter_shapes
    np.testing.assert_array_equal(again.initial_parameters(3), network.initial_parameters(3))
    (learner, batch), flat = learner_of(network, windows()), noisy_start(network)
    gradient = learner.gradient(flat, batch)[0]
    learner.gradient(flat, batch._replace(observation=windows(seed=4)))
    np.testing.assert_array_equal(learner.gradient(flat, batch)[0], gradient)
    np.testing.assert_array_equal(learner_of(again, windows())[0].gradient(flat, batch)[0], gradient)


def test_bfloat16_is_close(monkeypatch):
    def read_rows(keras, x):
        return keras.layers.GRU(6)(keras.layers.Reshape((12, 20))(x))

    observations = np.random.default_rng(3).integers(0, 256, (ROWS, 2, 12, 10)).astype(np.uint8)
    gradients = []
    for compute in ("float32", "bfloat16"):
        network = network_of(read_rows, monkeypatch, (2, 12, 10), np.uint8, compute_dtype=compute)
        assert network._model.layers[2].compute_dtype == compute
        learner, batch = learner_of(network, observations)
        gradients.append(learner.gradient(network.initial_parameters(1), batch)[0])
    exact, rough = gradients
    assert exact @ rough / np.linalg.norm(exact) / np.linalg.norm(rough) > 0.99


@pytest.mark.slow
def test_what_was_seen_first_is_learned_at_the_end_of_the_window(monkeypatch):
    network = network_of(lambda keras, x: keras.layers.GRU(8)(x), monkeypatch, (STEPS, 1), actions=2)
    random, count, settings = np.random.default_rng(5), 64, OptimizerConfig(optimizer="adam", batch_size=64)
    policy, optimizer = Policy(network, (STEPS, 1), np.float32, (count,)), make_optimizer(settings, network.size)
    parameters = network.initial_parameters(1)

    def seen():
        cue = random.integers(2, size=count).astype(np.int32)
        observations = random.uniform(-0.2, 0.2, (count, STEPS, 1)).astype(np.float32)
        observations[:, 0, 0] = 2 * cue - 1
        logits = policy(parameters, observations)[0]
        return cue, observations, 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))

    learner = None
    for _ in range(60):
        cue, observations, probability = seen()
        action = (random.uniform(size=count) < probability).astype(np.int32)
        log_prob = np.log(np.where(action, probability, 1 - probability)).astype(np.float32)
        batch = DataPoints(observations, action, (action == cue).astype(np.float32), log_prob, np.zeros(count, int))
        learner = learner or Learner(network, ba3c.loss, BA3CConfig(), settings, batch)
        optimizer.apply(parameters, learner.gradient(parameters, batch)[0], 0.02)
    cue, _, probability = seen()
    assert ((probability > 0.5) == cue).mean() > 0.95


def noisy_cell(keras, x):
    class Noisy(keras.layers.GRUCell):
        def call(self, inputs, states, training=False):
            output, states = super().call(inputs, states)
            return output + keras.random.normal(keras.ops.shape(output), seed=self.seed_generator), states

    return keras.layers.RNN(Noisy(3))(x)


ALONE = "and the outputs must be a function of parameters and observations alone: set {0} to 0, or leave the layer out"
STATEFUL = "has stateful=True, and a policy keeps no state .*: leave it out, and stack observations"
REFUSED = {
    "dropout": (
        lambda keras, x: keras.layers.GRU(3, dropout=0.1, name="memory")(x),
        "layer memory/gru_cell has dropout=0.1, " + ALONE.format("dropout"),
    ),
    "recurrent dropout": (
        lambda keras, x: keras.layers.Bidirectional(keras.layers.LSTM(3, recurrent_dropout=0.2), name="both")(x),
        r"layer both/\w+/lstm_cell has recurrent_dropout=0.2, " + ALONE.format("recurrent_dropout"),
    ),
    "frozen": (
        lambda keras, x: keras.layers.GRU(3, trainable=False, name="memory")(x),
        "memory/gru_cell/kernel is not a trainable variable, .*no frozen layers",
    ),
    "stateful": (lambda keras, x: keras.layers.GRU(3, stateful=True, name="memory")(x), "a layer " + STATEFUL),
    "stateful for a fixed batch": (
        lambda keras, x: keras.layers.GRU(3, stateful=True, name="memory")(keras.ops.reshape(x, (ROWS, *WINDOW))),
        "layer memory " + STATEFUL,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_pure_function_is_refused(name, monkeypatch):
    layer, said = REFUSED[name]
    with pytest.raises(UsageError, match=said) as error:
        network_of(layer, monkeypatch)
    assert "\n" not in str(error.value)


def test_a_model_that_is_built_when_it_is_called_keeps_no_state_either(monkeypatch):
    def build(spaces, settings):
        import keras

        class Memory(keras.Model):
            def __init__(self):
                super().__init__()
                self.memory = keras.layers.GRU(3, stateful=True, name="memory")

            def call(self, x):
                return self.memory(x)

        return Memory()

    monkeypatch.setitem(globals(), "layered", build)
    with pytest.raises(UsageError, match="layer memory " + STATEFUL):
        build_network(NetworkConfig(network=f"{__name__}:layered"), WINDOW, np.float32, Discrete(4))


def test_a_cell_that_draws_with_its_seed_is_refused(monkeypatch):
    network = network_of(noisy_cell, monkeypatch)
    with pytest.raises(UsageError, match="a recurrent layer draws random numbers with its seed_generator"):
        Policy(network, WINDOW, np.float32, (ROWS,))
