"""A Keras model as a network: a pure function of the flat vector, by Keras' `stateless_call`."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ddrl.errors import UsageError
from ddrl.lazy import import_tensorflow, tf
from ddrl.networks.convolutional import channels_last
from ddrl.networks.network import Network, Tensors, deviation_tensors, scale_of, zeros
from ddrl.networks.spaces import Spaces, keras_name

_NUMBERED = re.compile(r"_\d+$")
_RANDOM = ("dropout", "recurrent_dropout", "rate", "stddev")  # settings of Keras' layers that draw random numbers
_PURE = "the outputs must be a function of parameters and observations alone"
KEEPS_STATE = (
    "has stateful=True, and a policy keeps no state from step to step: leave it out, and stack observations; the layer "
    "then begins each window of them with zeros"
)


class KerasNetwork(Network):
    """A Keras 3 model whose outputs are a dict of the heads by name, or the one head that there is.

    The model gets observations as `Spaces.inputs` declares them: images [B, H, W, C] in the compute type, everything
    else in float32, and of several entries a dict by name. Flat order: its trainable variables in Keras' order, then
    policy/log_deviation where actions are continuous. Variables have the names of Keras in a fresh process, however
    many models were made before. What a layer changes by itself, such as BatchNormalization's averages, no exchange
    would see, so it has no other variables, except for seeds that Keras gives each recurrent layer and that nothing
    reads without dropout.

    Args:
        name: as in NetworkConfig.network.
        make: makes the model, with other initial values each time.
        model: a first one.
        spaces: what it is made for.
        compute_dtype: of images: float32 or bfloat16, by Keras' policy `mixed_bfloat16`.

    Raises:
        UsageError: the model has other outputs, or variables that cannot be in the flat vector.
    """

    def __init__(self, name: str, make: Callable[[], Any], model: Any, spaces: Spaces, compute_dtype: str) -> None:
        dtype = compute_dtype if spaces.is_image else "float32"
        self._make, self._model, self._spaces = make, model, spaces
        _check_stateless(name, model)  # before Keras asks for a batch of a fixed size
        with seeded(0):
            outputs = _outputs_of(model, spaces, dtype)
        _check_outputs(name, outputs, spaces)
        _check_variables(name, self._model)
        variables = self._model.trainable_variables
        self._names = variable_names([variable.path for variable in variables])
        tensors: Tensors = [(path, tuple(x.shape), zeros) for path, x in zip(self._names, variables)]
        tensors += deviation_tensors(spaces.actions)
        super().__init__(name, tensors, spaces.observation_dtype, spaces.actions, dtype, spaces.head)

    def initial_parameters(self, seed: int) -> np.ndarray:
        """<float32>[N]: the variables of a model that is made with Python's and NumPy's generators seeded, from which
        Keras draws the seeds of its initializers."""
        with seeded(seed):
            model = self._make()
            _outputs_of(model, self._spaces, self.compute_dtype)
        values = [np.asarray(variable, np.float32).reshape(-1) for variable in model.trainable_variables]
        whole = super().initial_parameters(seed)  # whose rest is what stands behind the variables
        whole[: sum(map(len, values))] = np.concatenate(values)
        return whole

    def outputs(self, prepared: dict[str, Any], observations: Any) -> dict[str, Any]:
        """Of each head, <float32>[B, width], for observations [B, ...] or a dict of them.

        Raises:
            UsageError: a layer of the model draws random numbers with the seed of a recurrent layer.
        """
        observations = self.observed(prepared, observations)
        if self._spaces.fields:
            inputs = {
                keras_name(name): tf.cast(observations[name], tf.float32) * scale_of(name, dtype)
                for name, (_, dtype) in self._spaces.fields.items()
            }
        elif self._spaces.is_image and not channels_last(self._spaces.observation_shape):
            inputs = _channels_last(observations, self.observation_scale, self.compute_dtype)
        else:
            inputs = tf.cast(tf.cast(observations, tf.float32) * self.observation_scale, self.compute_dtype)
        variables = [prepared[name] for name in self._names]
        seeds = [tf.zeros(seed.shape, seed.dtype) for seed in self._model.non_trainable_variables]
        outputs, after = self._model.stateless_call(variables, seeds, inputs)
        if any(one is not other for one, other in zip(seeds, after, strict=True)):
            raise UsageError(
                f"network {self.name}: a recurrent layer draws random numbers with its seed_generator, and {_PURE}: "
                "draw none"
            )
        return {name: tf.cast(x, tf.float32) for name, x in _by_name(outputs, self._spaces).items()}


def is_keras_model(value: Any) -> bool:
    """Whether something is a Keras model; asked of what a user's function returned, which has imported Keras then."""
    import keras

    return isinstance(value, keras.Model)


@contextlib.contextmanager
def policy_of(compute_dtype: str) -> Iterator[None]:
    """Keras' default of what layers compute in; their variables are float32."""
    import_tensorflow()
    import keras

    if keras.config.backend() != "tensorflow":
        raise UsageError(
            f"Keras uses {keras.config.backend()} here, but networks need TensorFlow: set KERAS_BACKEND=tensorflow"
        )
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16" if compute_dtype == "bfloat16" else "float32")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def variable_names(paths: list[str]) -> list[str]:
    """Paths of Keras' variables with layers numbered anew: Keras counts on over all models of a process."""
    renamed: dict[str, str] = {}
    names = []
    for path in paths:
        layer, _, rest = path.rpartition("/")
        if layer not in renamed:
            base = "/".join(_NUMBERED.sub("", part) for part in layer.split("/"))
            numbered = (f"{base}_{number}" if number else base for number in itertools.count())
            # A user's conv_1_1 is numbered as conv_1, which may be there.
            renamed[layer] = next(name for name in numbered if name not in renamed.values())
        names.append(f"{renamed[layer]}/{rest}" if layer else rest)
    return names


def _outputs_of(model: Any, spaces: Spaces, compute_dtype: str) -> Any:
    """Its outputs as Keras' symbolic tensors; after this a model has all its variables."""
    with policy_of(compute_dtype):
        return model(spaces.inputs())


def _by_name(outputs: Any, spaces: Spaces) -> dict[str, Any]:
    return outputs if isinstance(outputs, dict) else dict.fromkeys(list(spaces.outputs)[:1], outputs)


def _check_outputs(name: str, outputs: Any, spaces: Spaces) -> None:
    found = _by_name(outputs, spaces)
    shapes = {head: list(getattr(x, "shape", ["?"])) for head, x in found.items()}
    if shapes != {head: [None, width] for head, width in spaces.outputs.items()}:
        text = " and ".join(f"{head} [B{''.join(f', {n}' for n in shape[1:])}]" for head, shape in shapes.items())
        raise UsageError(f"network {name}: its outputs are {text}, and must be {spaces}, as spaces.heads makes them")


def _check_stateless(name: str, model: Any) -> None:
    for layer in _layers_of(model):
        if getattr(layer, "stateful", False):
            raise UsageError(f"network {name}: layer {layer.name} {KEEPS_STATE}")


def _check_variables(name: str, model: Any) -> None:
    unread = _unread_seeds(name, model)
    changing = [variable.path for variable in model.non_trainable_variables if id(variable) not in unread]
    if changing:
        raise UsageError(
            f"network {name}: {changing[0]} is not a trainable variable, and workers exchange gradients only: use "
            "LayerNormalization or GroupNormalization for BatchNormalization, and no frozen layers, or layers that "
            "draw random numbers"
        )
    for variable in model.trainable_variables:
        if variable.dtype != "float32":
            raise UsageError(f"network {name}: {variable.path} is {variable.dtype}, and parameters are float32")
        if variable.regularizer is not None or variable.constraint is not None:
            why = "the loss is the algorithm's and the update the exchange's; leave it out"
            raise UsageError(f"network {name}: {variable.path} has a regularizer or a constraint: {why}")


def _unread_seeds(name: str, model: Any) -> set[int]:
    """Ids of the seeds of recurrent cells, which have one even without dropout.

    Raises:
        UsageError: a layer has dropout or noise.
    """
    unread = set()
    for layer in _layers_of(model):
        generator = getattr(layer, "seed_generator", None)
        if generator is None:
            continue
        where = layer.path or layer.name  # one without weights may have no path
        for setting in _RANDOM:
            if value := getattr(layer, setting, 0):
                raise UsageError(
                    f"network {name}: layer {where} has {setting}={value}, and {_PURE}: "
                    f"set {setting} to 0, or leave the layer out"
                )
        if hasattr(layer, "recurrent_dropout"):
            unread.add(id(generator.state))
    return unread


def _layers_of(model: Any) -> list[Any]:
    """All layers of a model, those within layers included."""
    return model._flatten_layers()  # noqa: SLF001 - Keras has no other way to them


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Python's and NumPy's generators seeded, and at the end as they were."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 - those of Keras
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


def _channels_last(images: Any, scale: float, dtype: str) -> Any:
    """Images [B, C, H, W] as [B, H, W, C] in `dtype`, times `scale`."""
    # For images that have the dtype already, such as those of an export, there is nothing to fuse, and ONNX has no XLA.
    return (_scaled if images.dtype == dtype else _scaled_by_xla())(images, scale, dtype)


def _scaled(images: Any, scale: float, dtype: str) -> Any:
    return tf.cast(tf.cast(tf.transpose(images, [0, 2, 3, 1]), tf.float32) * scale, dtype)


@functools.cache
def _scaled_by_xla() -> Callable[[Any, float, str], Any]:
    return tf.function(_scaled, jit_compile=True, autograph=False)  # fused by XLA it takes a third of the time
