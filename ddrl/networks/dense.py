"""Towers of dense layers: their tensors, and what they compute."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ddrl.lazy import tf
from ddrl.networks.network import Initializer, Network, Tensors, ones, orthogonal, zeros
from ddrl.structured import ACTION_MASK
from ddrl.types import Continuous

NORM_EPSILON = 1e-5  # beside the variance of a layer


def layer_tensors(name: str, inputs: int, outputs: int, kernel: Initializer) -> Tensors:
    """NAME/kernel [inputs, outputs], drawn by `kernel`, and NAME/bias, zero."""
    return [(f"{name}/kernel", (inputs, outputs), kernel), (f"{name}/bias", (outputs,), zeros)]


def layer_output(prepared: dict[str, Any], name: str, x: Any) -> Any:
    """Layer NAME of x <float32>[B, inputs]: <float32>[B, outputs]."""
    return tf.matmul(x, prepared[f"{name}/kernel"]) + prepared[f"{name}/bias"]


def head_outputs(prepared: dict[str, Any], x: Any, streams: list[dict[str, int]]) -> dict[str, Any]:
    """Of each head, <float32>[B, its width], where x <float32>[B, features] has the features of all `streams`."""
    return {
        head: layer_output(prepared, head, hidden)
        for hidden, heads in zip(tf.split(x, len(streams), axis=1), streams)
        for head in heads
    }


def tower_tensors(
    tower: str, widths: Sequence[int], last_gain: float, beside_first: int = 0, layer_norm: bool = False
) -> Tensors:
    """TOWER0/kernel [inputs, outputs], TOWER0/bias, TOWER1/kernel, ...: from the input up.

    Args:
        tower: its name.
        widths: of the input, of each hidden layer, and of the output.
        last_gain: of the orthogonal kernel of the output layer; hidden ones have sqrt(2), biases are zero.
        beside_first: inputs that enter beside the first hidden layer; their rows come after its own.
        layer_norm: TOWER0/scale, TOWER0/offset and so on come after the bias of each hidden layer.
    """
    tensors: Tensors = []
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        rows = inputs + (beside_first if layer == 1 else 0)
        kernel = orthogonal(last_gain if layer == len(widths) - 2 else math.sqrt(2.0))
        tensors += layer_tensors(f"{tower}{layer}", rows, outputs, kernel)
        if layer_norm and layer < len(widths) - 2:
            tensors += [(f"{tower}{layer}/scale", (outputs,), ones), (f"{tower}{layer}/offset", (outputs,), zeros)]
    return tensors


def tower_outputs(
    prepared: dict[str, Any],
    tower: str,
    hidden: int,
    x: Any,
    activation: Callable[[Any], Any],
    beside_first: Any = None,
) -> Any:
    """What a tower gives for x <float32>[B, inputs]: <float32>[B, outputs].

    Args:
        prepared: the named tensors.
        tower: its name.
        hidden: number of its hidden layers.
        x: the input.
        activation: of the hidden layers; the output has none.
        beside_first: <float32>[B, A] that enters beside the first hidden layer.
    """
    for layer in range(hidden + 1):
        if layer == 1 and beside_first is not None:
            x = tf.concat([x, beside_first], axis=1)
        x = layer_output(prepared, f"{tower}{layer}", x)
        if f"{tower}{layer}/scale" in prepared:
            x = _normalized(x) * prepared[f"{tower}{layer}/scale"] + prepared[f"{tower}{layer}/offset"]
        x = activation(x) if layer < hidden else x
    return x


def activation_named(name: str, default: str) -> Callable[[Any], Any]:
    """The function of --activation, where `default` is that of the network."""
    name = default if name == "default" else name
    return tf.tanh if name == "tanh" else getattr(tf.nn, name)


def _normalized(x: Any) -> Any:
    """Rows <float32>[B, N] with mean 0 and variance 1."""
    mean, variance = tf.nn.moments(x, axes=[1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + NORM_EPSILON)


def flat_observations(observations: Any, scale: Any) -> Any:
    """`observations` [B, ...] as <float32>[B, numbers], times `scale` (`Network.observation_scale`); of several fields
    in the order of their names, without that of legal actions."""
    if isinstance(observations, dict):
        fields = [(name, x) for name, x in sorted(observations.items()) if name != ACTION_MASK]
        return tf.concat([flat_observations(x, scale[name]) for name, x in fields], axis=1)
    flat = tf.cast(tf.reshape(observations, [tf.shape(observations)[0], -1]), tf.float32)
    return flat if scale == 1.0 else flat * scale


class BoundedNetwork(Network):
    """Towers of dense layers in float32 for actions within bounds, which are in units of half their range inside.

    Args:
        tensors: of the towers.
        observation_dtype: uint8 or float32.
        action_space: with finite bounds.
    """

    def __init__(self, tensors: Tensors, observation_dtype: Any, action_space: Continuous) -> None:
        super().__init__("mlp", tensors, observation_dtype, action_space, "float32")
        low, high = np.array(action_space.low, np.float64), np.array(action_space.high, np.float64)
        self._middle, self._half = (((high + sign * low) / 2).astype(np.float32) for sign in (1, -1))
        self._unit = np.where(self._half > 0.0, self._half, np.float32(1.0))  # 0 / 0 would make NaN of the whole critic

    def normalized(self, actions: Any) -> Any:
        """From actions as the environment takes them to units of half their range; 0 where there is no range."""
        return (actions - self._middle) / self._unit

    def scaled(self, actions: Any) -> Any:
        """The inverse."""
        return self._middle + self._half * actions
