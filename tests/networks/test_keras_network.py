"""Keras models as networks: what they give is what the model gives, and what cannot be exchanged is refused."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from ddrl import networks, plugins
from ddrl.config import NetworkConfig
from ddrl.errors import UsageError
from ddrl.networks import OWN, build_network
from ddrl.networks.keras_network import variable_names
from ddrl.structured import tensors_of
from ddrl.types import Continuous, Discrete, QHead

VECTOR, IMAGE, SIX = (7,), (4, 36, 28), Discrete(6)
MADE: list = []


def dense(spaces, settings):
    import keras

    x = inputs = spaces.inputs()
    x = keras.layers.Dense(settings.fc_neurons, activation="tanh")(x)
    MADE.append(keras.Model(inputs, spaces.heads(x)))
    return MADE[-1]


def images(spaces, settings):
    import keras

    x = inputs = spaces.inputs()
    x = keras.layers.Conv2D(8, 4, 2, activation="relu")(x)
    MADE.append(keras.Model(inputs, spaces.heads(keras.layers.Flatten()(x))))
    return MADE[-1]


def subclassed(spaces, settings):
    import keras

    class Two(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden = keras.layers.Dense(5)
            self.towers = {name: keras.layers.Dense(width) for name, width in spaces.outputs.items()}
            self.policy, self.value = self.towers["policy"], self.towers["value"]

        def call(self, x):
            x = self.hidden(x)
            return {"policy": self.policy(x), "value": self.value(x)}

    return Two()


def same_names(spaces, settings):
    import keras

    class Same(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.second = (keras.layers.Dense(7, name="hidden") for _ in range(2))
            self.policy, self.value = (keras.layers.Dense(width) for width in spaces.outputs.values())

        def call(self, x):
            x = self.second(self.first(x))
            return {"policy": self.policy(x), "value": self.value(x)}

    return Same()


ARGUMENTS = {"BatchNormalization": {}, "Dropout": {"rate": 0.1}, "GaussianNoise": {"stddev": 0.2}}


def with_layer(layer):
    def build(spaces, settings):
        import keras

        x = inputs = spaces.inputs()
        x = getattr(keras.layers, layer)(**ARGUMENTS[layer])(x)
        return keras.Model(inputs, spaces.heads(keras.layers.Dense(4)(x)))

    return build


def regularized(spaces, settings):
    import keras

    x = inputs = spaces.inputs()
    x = keras.layers.Dense(4, kernel_regularizer="l2")(x)
    return keras.Model(inputs, spaces.heads(x))


def no_model(spaces, settings):
    return "a model"


def failing(spaces, settings):
    return spaces.no_such_thing


def failing_in_keras(spaces, settings):
    import keras

    return keras.layers.Conv2D(8, 3)(spaces.inputs())


def nameless(spaces, settings):
    import keras

    inputs = spaces.inputs()
    return keras.Model(inputs, keras.layers.Dense(6)(inputs))


def made(function, shape=VECTOR, space=SIX, head=None, **settings):
    name = f"{__name__}:{function}"
    return build_network(
        NetworkConfig(network=name, **settings), shape, np.uint8 if len(shape) == 3 else np.float32, space, head
    )


def observations(shape):
    return np.random.default_rng(3).integers(0, 256, (5, *shape)).astype(np.uint8 if len(shape) == 3 else np.float32)


@pytest.mark.parametrize("function, shape", [("dense", VECTOR), ("images", IMAGE)])
def test_values_and_gradients_are_those_of_the_model(function, shape):
    network = made(function, shape, compute_dtype="float32")
    model, rows = network._model, observations(shape)
    flat = network.initial_parameters(5)
    parts = np.split(flat, np.cumsum([np.prod(s, dtype=int) for _, s in network.parameter_shapes])[:-1])
    model.set_weights([part.reshape(s) for part, (_, s) in zip(parts, network.parameter_shapes)])
    inputs = rows.transpose(0, 2, 3, 1) / np.float32(255) if len(shape) == 3 else rows
    with tf.GradientTape() as tape:
        known = model(inputs)
        loss = tf.reduce_sum(known["policy"] ** 2) + tf.reduce_sum(known["value"])
    expected = np.concatenate([np.ravel(g) for g in tape.gradient(loss, [v.value for v in model.trainable_variables])])
    vector = tf.constant(flat)
    with tf.GradientTape() as tape:
        tape.watch(vector)
        output = network(vector, rows)
        loss = tf.reduce_sum(output.policy**2) + tf.reduce_sum(output.value)
    np.testing.assert_allclose(output.policy, known["policy"], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(tape.gradient(loss, vector), expected, rtol=1e-4, atol=1e-4)


def test_parameters_are_a_function_of_the_seed_whatever_was_made_before():
    first = made("dense", fc_neurons=9)
    made("images", IMAGE)
    state = random.getstate()
    again = made("dense", fc_neurons=9)
    assert first.parameter_shapes == again.parameter_shapes and first.parameter_shapes[0] == ("dense/kernel", (7, 9))
    assert (first.initial_parameters(2) == again.initial_parameters(2)).all()
    assert (first.initial_parameters(2) != again.initial_parameters(3)).any()
    assert random.getstate() == state, "the user's generator is as it was"


def test_heads_of_the_q_learning_family_and_of_continuous_actions():
    rows = observations(VECTOR)
    q = made("dense", head=QHead(dueling=True, atoms=5))
    values = q.action_values(q.prepare(tf.constant(q.initial_parameters(0))), rows)
    assert values.shape == (5, 6, 5)
    gaussian = made("dense", space=Continuous((-1.0, -1.0), (1.0, 1.0)))
    assert gaussian.parameter_shapes[-1] == ("policy/log_deviation", (2,))
    assert gaussian(tf.constant(gaussian.initial_parameters(0)), rows).policy.shape == (5, 4)


def test_images_are_computed_in_the_compute_type_and_vectors_in_float32():
    import keras

    before = keras.config.dtype_policy().name
    assert made("images", IMAGE, compute_dtype="bfloat16")._model.layers[1].compute_dtype == "bfloat16"
    assert made("images", IMAGE, compute_dtype="float32")._model.layers[1].compute_dtype == "float32"
    assert made("dense")._model.layers[1].compute_dtype == "float32" == before == keras.config.dtype_policy().name


def test_a_model_that_is_built_when_it_is_called():
    network = made("subclassed")
    assert network(tf.constant(network.initial_parameters(0)), observations(VECTOR)).policy.shape == (5, 6)
    assert network.size == 7 * 5 + 5 + 5 * 6 + 6 + 5 + 1


@pytest.mark.parametrize(
    "layer, said",
    [
        ("BatchNormalization", r"/moving_mean is not a trainable variable, .*use LayerNormalization .* for BatchNorm"),
        ("Dropout", r"layer dropout\w* has rate=0.1, .*: set rate to 0, or leave the layer out"),
        ("GaussianNoise", r"layer gaussian_noise\w* has stddev=0.2, .*: set stddev to 0, or leave the layer out"),
    ],
)
def test_what_a_layer_changes_by_itself_is_refused(layer, said, monkeypatch):
    monkeypatch.setitem(globals(), "layered", with_layer(layer))
    with pytest.raises(UsageError, match=said) as error:
        made("layered")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "function, said",
    [
        ("no_model", "is 'a model', neither a Keras model nor a ddrl Network"),
        ("failing", r"cannot be made: AttributeError: .*no_such_thing.* \(test_keras_network.py, line"),
        ("failing_in_keras", r"cannot be made: ValueError: .*conv2d.* \(test_keras_network.py, line"),
        ("nameless", r"its outputs are policy \[B, 6\], and must be policy \[B, 6\] and value \[B, 1\]"),
        ("missing", "has no function missing"),
        ("regularized", "dense.*/kernel has a regularizer or a constraint"),
        ("same_names", "has several tensors .*hidden/kernel: give each layer a name of its own"),
    ],
)
def test_what_is_no_network_is_refused(function, said):
    with pytest.raises(UsageError, match=said):
        made(function)


def test_a_module_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match="--network no_such_module:build: there is no module no_such_module"):
        build_network(NetworkConfig(network="no_such_module:build"), VECTOR, np.float32, Discrete(2))


def test_the_example_of_the_documentation_is_the_nature_network(tmp_path, monkeypatch):
    text = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
    example = next(block for block in text.split("```python\n")[1:] if block.startswith("def build")).split("```")[0]
    (tmp_path / "example_network.py").write_text(example)
    monkeypatch.syspath_prepend(tmp_path)
    own, known = (
        build_network(NetworkConfig(network=name), (4, 84, 84), np.uint8, SIX)
        for name in ("nature", "example_network:build")
    )
    assert [shape for _, shape in known.parameter_shapes] == [shape for _, shape in own.parameter_shapes]
    flat, rows = tf.constant(own.initial_parameters(1)), observations((4, 84, 84))
    np.testing.assert_allclose(known(flat, rows).policy, own(flat, rows).policy, atol=2e-3)


def test_names_are_those_of_a_fresh_process():
    paths = ["dense_7/kernel", "dense_7/bias", "two_1/dense_9/kernel", "dense_8/kernel", "scale"]
    assert variable_names(paths) == ["dense/kernel", "dense/bias", "two/dense/kernel", "dense_1/kernel", "scale"]


def test_layers_whose_own_names_have_numbers_keep_their_parameters_apart():
    paths = ["conv_1/kernel", "conv_2/kernel", "conv_1_1/kernel", "conv_1_2/kernel"]
    assert variable_names(paths) == ["conv/kernel", "conv_1/kernel", "conv_1_1/kernel", "conv_1_2/kernel"]


def test_the_settings_and_the_registry_have_the_same_names():
    from ddrl.config.settings import CONVOLUTIONAL, DENSE

    assert set(OWN) == {*CONVOLUTIONAL, *DENSE} and set(OWN) <= set(plugins.networks.names())
    assert networks.is_own(NetworkConfig()) and not networks.is_own(NetworkConfig(network="a:b"))


def several(spaces, settings):
    import keras

    inputs = spaces.inputs()
    joined = keras.layers.Concatenate()([keras.layers.Flatten()(x) for x in inputs.values()])
    MADE.append(keras.Model(inputs, spaces.heads(joined)))
    return MADE[-1]


def test_an_observation_of_several_entries_is_a_dict_without_its_legal_actions():
    dtype = np.dtype(
        [("camera", "u1", (3, 2)), ("inner/speed", "f4", (2,)), ("switch", "?", (1,)), ("action_mask", "?", (6,))]
    )
    network = build_network(NetworkConfig(network=f"{__name__}:several"), (), dtype, SIX)
    assert network.size == (6 + 2 + 1) * (6 + 1) + 6 + 1
    parameters, observations = network.initial_parameters(1), np.zeros(2, dtype)
    observations["camera"][1] = 51
    observations["inner/speed"], observations["action_mask"] = [0.5, -2.0], [True, False, True, True, True, True]
    fields = dict(zip(sorted(dtype.names), tensors_of(observations)))
    result = network(tf.constant(parameters), fields)
    flat = np.array([[0.0] * 6 + [0.5, -2.0, 0.0], [0.2] * 6 + [0.5, -2.0, 0.0]], np.float32)
    kernel, bias = parameters[:54].reshape(9, 6), parameters[54:60]
    expected = flat @ kernel + bias
    legal = observations["action_mask"][0]
    np.testing.assert_allclose(result.policy.numpy()[:, legal], expected[:, legal], rtol=1e-5, atol=1e-6)
    assert (result.policy.numpy()[:, ~legal] < -1e8).all()


@pytest.mark.parametrize("name", ["nature", "impala", f"{__name__}:images"])
def test_images_with_their_channels_last_give_what_those_with_channels_first_give(name):
    images = np.random.default_rng(3).integers(256, size=(2, 44, 40, 3)).astype(np.uint8)
    config = NetworkConfig(network=name, compute_dtype="float32")
    last, first = (build_network(config, shape, np.uint8, SIX) for shape in ((44, 40, 3), (3, 44, 40)))
    parameters = tf.constant(first.initial_parameters(1))
    one = last(parameters, tf.constant(images))
    other = first(parameters, tf.constant(np.ascontiguousarray(images.transpose(0, 3, 1, 2))))
    np.testing.assert_allclose(one.policy, other.policy, rtol=1e-4, atol=1e-6)
