"""The deep network of IMPALA (Espeholt et al. 2018, figure 3, right), without its LSTM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ddrl.config import NetworkConfig
from ddrl.lazy import tf
from ddrl.networks.convolutional import (
    Architecture,
    channels_first,
    channels_last,
    channels_moved_last,
    check_image,
    dense_outputs,
    dense_tensors,
)
from ddrl.networks.network import Network, Tensors, streams_of, zeros
from ddrl.types import ActionSpace, QHead

SECTIONS = (16, 32, 32)  # channels of each
BLOCKS = 2  # of a section
_DENSE = Architecture((), neurons=256)  # and its initializers


class _Layer(NamedTuple):
    name: str
    inputs: int
    outputs: int


class ResidualNetwork(Network):
    """Three sections of 16, 32 and 32 channels, ReLU, a dense layer of 256 with ReLU, and linear heads.

    A section is a convolution, a max-pooling 3x3 of stride 2, and two residual blocks of ReLU, convolution, ReLU,
    convolution. Convolutions are 3x3 of stride 1, with zeros around their input, so that they keep its size.

    Flat order: section0/conv/kernel [3, 3, in, out], section0/conv/bias, section0/block0/conv0/..., conv1, block1, the
    other sections, then dense and heads as in `ConvolutionalNetwork`, also in the Q-learning family. Orthogonal kernels
    with gain sqrt(2), 0.01 for the heads but 1.0 for the value beside a policy; biases zero. Observations are
    <uint8 or float32>[B, C, H, W].

    Args:
        config: the type of convolutions and dense layer: float32 or bfloat16.
        observation_shape: [C, H, W] or [H, W, C].
        observation_dtype: uint8 (scaled by 1/255) or float32 (taken as it is).
        action_space: which decides the width of the heads.
        head: of the Q-learning family (None: policy and value).

    Raises:
        UsageError: not an image.
    """

    def __init__(
        self,
        config: NetworkConfig,
        observation_shape: tuple[int, ...],
        observation_dtype: Any,
        action_space: ActionSpace,
        head: QHead | None = None,
    ) -> None:
        check_image(config.network, observation_shape)
        self._last = channels_last(observation_shape)
        channels, height, width = channels_first(observation_shape)
        tensors: Tensors = []
        for layer in _layers(channels):
            shape = (3, 3, layer.inputs, layer.outputs)
            tensors += [(f"{layer.name}/kernel", shape, _DENSE.convolution_kernel)]
            tensors += [(f"{layer.name}/bias", (layer.outputs,), zeros)]
        for _ in SECTIONS:
            height, width = -(-height // 2), -(-width // 2)
        tensors += dense_tensors(_DENSE, height * width * SECTIONS[-1], action_space, head)
        super().__init__(config.network, tensors, observation_dtype, action_space, config.compute_dtype, head)

    def prepare(self, parameters: Any) -> dict[str, Any]:
        """Hidden tensors in the compute type; the first kernel takes in the scale."""
        tensors = super().prepare(parameters)
        tensors["section0/conv/kernel"] *= self.observation_scale
        return {
            name: tf.cast(x, self.compute_dtype) if name.startswith("section") or name == "dense/kernel" else x
            for name, x in tensors.items()
        }

    def outputs(self, prepared: dict[str, Any], observations: Any) -> dict[str, Any]:
        """Of each head, <float32>[B, width], for <uint8 or float32>[B, C, H, W]."""
        x = self.observed(prepared, observations)
        x = tf.cast(x, self.compute_dtype) if self._last else channels_moved_last(x, 0, self.compute_dtype)
        for section in range(len(SECTIONS)):
            x = tf.nn.max_pool2d(_convolved(prepared, f"section{section}/conv", x), 3, 2, "SAME")
            for block in range(BLOCKS):
                name = f"section{section}/block{block}"
                inner = _convolved(prepared, f"{name}/conv0", tf.nn.relu(x))
                x += _convolved(prepared, f"{name}/conv1", tf.nn.relu(inner))
        return dense_outputs(prepared, tf.nn.relu(x), streams_of(self.action_space, self.head))


def _layers(channels: int) -> Iterator[_Layer]:
    """Every convolution, in the flat order."""
    for section, outputs in enumerate(SECTIONS):
        yield _Layer(f"section{section}/conv", channels, outputs)
        for block in range(BLOCKS):
            for layer in range(2):
                yield _Layer(f"section{section}/block{block}/conv{layer}", outputs, outputs)
        channels = outputs


def _convolved(prepared: dict[str, Any], name: str, x: Any) -> Any:
    return tf.nn.bias_add(tf.nn.conv2d(x, prepared[f"{name}/kernel"], 1, "SAME"), prepared[f"{name}/bias"])
