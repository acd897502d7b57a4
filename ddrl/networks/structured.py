"""A network for observations of several fields with images among them: branches, joined by a dense layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ddrl.config import NetworkConfig
from ddrl.errors import UsageError
from ddrl.lazy import tf
from ddrl.networks.convolutional import channels_first, channels_last, half_variance
from ddrl.networks.dense import flat_observations, head_outputs, layer_output, layer_tensors
from ddrl.networks.network import (
    Network,
    Tensors,
    cut_vector,
    deviation_tensors,
    heads_of,
    orthogonal,
    streams_of,
    zeros,
)
from ddrl.networks.normalization import prepared_blocks
from ddrl.structured import ACTION_MASK, field_types, inputs_of
from ddrl.types import ActionSpace, Discrete, QHead

IMAGE_FEATURES = 256  # that an image's branch gives, and neurons of the layer that joins branches with an image's
FEATURES = 64  # that the branch of all other fields gives
OTHERS = "/others"  # its name, which no field has
SMALL_FILTERS = (16, 32, 32)  # of the convolutions for images that are too small for the chosen network
SMALL_KERNEL = 3
LEAST_SIDE = 5  # of an image for a convolution; where a side is longer than STRIDED_SIDE it has stride 2
STRIDED_SIDE = 16
GAIN = orthogonal(math.sqrt(2.0))


class StructuredNetwork(Network):
    """A branch for each image, one dense layer over all other fields, a dense layer over what these give, and linear
    heads. (Observations without an image are flattened: `MLP`.)

    An image's branch is the network that the settings name, with a head of IMAGE_FEATURES in place of its own, or, for
    --network mlp and for images that are too small for it, `SmallImageBranch`. All features and the joining layer are
    rectified. In the Q-learning family a dueling head has two joining layers side by side, the value's first.

    Flat order: the images' branches in the order of the fields, each with its own tensors under FIELD/, that of the
    other fields under OTHERS/, then joined/kernel, joined/bias, and kernel and bias of the heads. Orthogonal kernels
    with gain sqrt(2), 0.01 for the heads but 1.0 for the value beside a policy; biases zero; the inside of an image's
    network as it is by itself.

    Args:
        config: network settings.
        observation_dtype: structured, of uint8, float32 and bool, with an image.
        action_space: which decides the width of the heads.
        head: of the Q-learning family (None: policy and value).
        build: (settings, shape, dtype, action space, head) -> the network that the settings name, for an image.
    """

    def __init__(
        self,
        config: NetworkConfig,
        observation_dtype: Any,
        action_space: ActionSpace,
        head: QHead | None,
        build: Callable[..., Network],
    ) -> None:
        fields = field_types(observation_dtype)
        images = images_of(observation_dtype)
        self._branches = {name: _branch(config, name, *fields[name], build) for name in images}
        self._gray = {name for name in images if len(fields[name][0]) == 2}  # images of one channel
        self._others = [name for name in fields if name not in images and name != ACTION_MASK]
        if self._others:
            self._branches[OTHERS] = DenseBranch(np.dtype(observation_dtype)[self._others])
        width, streams = IMAGE_FEATURES, streams_of(action_space, head)
        features = sum(branch.action_space.head_size for branch in self._branches.values())
        self._own = layer_tensors("joined", features, width * len(streams), GAIN)
        for name, outputs in heads_of(action_space, head).items():
            gain = 1.0 if head is None and name == "value" else 0.01
            self._own += layer_tensors(name, width, outputs, orthogonal(gain))
        self._own += deviation_tensors(action_space)
        tensors = [tensor for name, branch in self._branches.items() for tensor in branch_tensors(name, branch)]
        super().__init__(
            config.network, tensors + self._own, observation_dtype, action_space, config.compute_dtype, head
        )
        self._layers = len(self.parameter_shapes)  # tensors, before those that are added behind them

    def prepare(self, parameters: Any) -> dict[str, Any]:
        """Of each branch what it prepares, under FIELD/; of the rest the tensors."""
        sizes = [branch.size for branch in self._branches.values()]
        own = [math.prod(shape) for _, shape, _ in self._own]
        added = self.parameter_shapes[self._layers :]
        pieces = cut_vector(parameters, [*sizes, *own, *(math.prod(shape) for _, shape in added)])
        prepared = {
            f"{name}/{tensor}": x
            for (name, branch), piece in zip(self._branches.items(), pieces)
            for tensor, x in branch.prepare(piece).items()
        }
        prepared |= {name: tf.reshape(piece, shape) for (name, shape, _), piece in zip(self._own, pieces[len(sizes) :])}
        behind = {name: tf.reshape(x, shape) for (name, shape), x in zip(added, pieces[len(sizes) + len(own) :])}
        return prepared | prepared_blocks(behind)

    def outputs(self, prepared: dict[str, Any], observations: Any) -> dict[str, Any]:
        """Of each head, <float32>[B, width], for a dict of the fields [B, ...]."""
        features, observations = [], self.observed(prepared, observations)
        for name, branch in self._branches.items():
            own = {key.removeprefix(f"{name}/"): x for key, x in prepared.items() if key.startswith(f"{name}/")}
            x = {other: observations[other] for other in self._others} if name == OTHERS else observations[name]
            x = tf.expand_dims(x, 1) if name in self._gray else x
            features.append(tf.nn.relu(branch.outputs(own, x)["q"]))
        streams = streams_of(self.action_space, self.head)
        x = tf.concat(features, axis=1)
        x = half_variance(x) if len(streams) > 1 else x
        return head_outputs(prepared, tf.nn.relu(layer_output(prepared, "joined", x)), streams)


class DenseBranch(Network):
    """A dense layer over all fields of a structured type together."""

    def __init__(self, dtype: np.dtype) -> None:
        tensors = layer_tensors("dense", inputs_of((), dtype), FEATURES, GAIN)
        super().__init__(OTHERS, tensors, dtype, Discrete(FEATURES), "float32", QHead())

    def outputs(self, prepared: dict[str, Any], observations: Any) -> dict[str, Any]:
        """The features <float32>[B, FEATURES] of a dict of fields."""
        return {"q": layer_output(prepared, "dense", flat_observations(observations, self.observation_scale))}


class SmallImageBranch(Network):
    """Convolutions 3x3 without padding, as many as the image has room for, and a dense layer; in float32.

    Args:
        name: of the field.
        shape: [C, H, W], or [H, W, C] where the last is the smallest.
        dtype: of the pixels.
    """

    def __init__(self, name: str, shape: tuple[int, ...], dtype: Any) -> None:
        self._last = channels_last(shape)
        channels, *sides = channels_first(shape)
        tensors: Tensors = []
        self._strides: list[int] = []
        for layer, filters in enumerate(SMALL_FILTERS):
            if min(sides) < LEAST_SIDE:
                break
            stride = 2 if min(sides) > STRIDED_SIDE else 1
            kernel = (SMALL_KERNEL, SMALL_KERNEL, channels, filters)
            tensors += [(f"conv{layer}/kernel", kernel, GAIN), (f"conv{layer}/bias", (filters,), zeros)]
            self._strides.append(stride)
            channels, sides = filters, [(side - SMALL_KERNEL) // stride + 1 for side in sides]
        tensors += layer_tensors("dense", channels * math.prod(sides), IMAGE_FEATURES, GAIN)
        super().__init__(name, tensors, dtype, Discrete(IMAGE_FEATURES), "float32", QHead())

    def outputs(self, prepared: dict[str, Any], observations: Any) -> dict[str, Any]:
        """The features <float32>[B, IMAGE_FEATURES]."""
        x = observations if self._last else tf.transpose(observations, [0, 2, 3, 1])
        x = tf.cast(x, tf.float32) * self.observation_scale
        for layer, stride in enumerate(self._strides):
            x = tf.nn.conv2d(x, prepared[f"conv{layer}/kernel"], stride, "VALID")
            x = tf.nn.relu(tf.nn.bias_add(x, prepared[f"conv{layer}/bias"]))
        return {"q": layer_output(prepared, "dense", tf.reshape(x, [-1, math.prod(x.shape[1:])]))}


def branch_tensors(name: str, branch: Network) -> Tensors:
    """Those of a field's branch under the name of the field; its last layer is a hidden one here."""
    initializers = {tensor: GAIN if tensor == "q/kernel" else known for tensor, known in branch.initializers.items()}
    return [(f"{name}/{tensor}", shape, initializers[tensor]) for tensor, shape in branch.parameter_shapes]


def is_image(shape: tuple[int, ...], dtype: Any) -> bool:
    """Whether a field is an image: of three dimensions, or gray <uint8>[H, W]; its sides no shorter than LEAST_SIDE."""
    if len(shape) == 2:
        return np.dtype(dtype) == np.uint8 and min(shape) >= LEAST_SIDE
    return len(shape) == 3 and min(channels_first(shape)[1:]) >= LEAST_SIDE


def images_of(dtype: Any) -> list[str]:
    """The fields of a structured type that are images."""
    return [name for name, field in field_types(dtype).items() if is_image(*field) and name != ACTION_MASK]


def _branch(
    config: NetworkConfig, name: str, shape: tuple[int, ...], dtype: Any, build: Callable[..., Network]
) -> Network:
    image = (1, *shape) if len(shape) == 2 else shape
    if config.network == "mlp":
        return SmallImageBranch(name, image, dtype)
    try:
        return build(config, image, dtype, Discrete(IMAGE_FEATURES), QHead())
    except UsageError:  # too small for it
        return SmallImageBranch(name, image, dtype)
