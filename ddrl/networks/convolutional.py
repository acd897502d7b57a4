"""Convolutional networks for images: the A3C and Nature networks of the DQN line, and BA3C's."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

from ddrl.config import NetworkConfig
from ddrl.errors import UsageError
from ddrl.lazy import tf
from ddrl.networks.dense import head_outputs, layer_tensors
from ddrl.networks.network import (
    Initializer,
    Network,
    Tensors,
    deviation_tensors,
    heads_of,
    orthogonal,
    streams_of,
    truncated_normal,
    uniform_unit_scaling,
    zeros,
)
from ddrl.types import ActionSpace, QHead

_STOOKE_IMAGE = (104, 80)  # the image for which accel_rl pads every convolution after the first by 1


@dataclasses.dataclass(frozen=True)
class Convolution:
    """One convolution, ReLU and optional max-pooling; square kernels, the same stride both ways."""

    filters: int
    kernel: int
    stride: int = 1
    pool: int = 1


@dataclasses.dataclass(frozen=True)
class Architecture:
    """What distinguishes the convolutional networks.

    Attributes:
        convolutions: from the image on.
        neurons: of the dense layer, or of each of two.
        convolution_bias: whether convolutions have one.
        dense_relu: whether the dense layer has an activation.
        channel_multiple: input channels are padded with zeros to a multiple of this.
        convolution_kernel, dense_kernel, policy_kernel, value_kernel: initializers.
    """

    convolutions: tuple[Convolution, ...]
    neurons: int
    convolution_bias: bool = True
    dense_relu: bool = True
    channel_multiple: int = 1
    convolution_kernel: Initializer = orthogonal(math.sqrt(2.0))
    dense_kernel: Initializer = orthogonal(math.sqrt(2.0))
    policy_kernel: Initializer = orthogonal(0.01)
    value_kernel: Initializer = orthogonal(1.0)


_A3C = Architecture((Convolution(16, 8, 4), Convolution(32, 4, 2)), 256)
_NATURE = Architecture((Convolution(32, 8, 4), Convolution(64, 4, 2), Convolution(64, 3, 1)), 512)
_BA3C = Architecture(
    (Convolution(32, 5, pool=2), Convolution(32, 5, pool=2), Convolution(64, 5, pool=2), Convolution(64, 3)),
    neurons=128,
    convolution_bias=False,
    dense_relu=False,
    channel_multiple=16,
    convolution_kernel=truncated_normal(0.03),
    dense_kernel=uniform_unit_scaling(1.43),
    policy_kernel=uniform_unit_scaling(1.43),
    value_kernel=uniform_unit_scaling(1.43),
)


class ConvolutionalNetwork(Network):
    """Convolutions, one dense layer, and linear heads for policy and value, or for the values of actions.

    a3c: 16 filters 8x8 stride 4, 32 4x4 stride 2, dense 256 (Mnih et al. 2016, section 5.1).
    nature: 32 8x8 stride 4, 64 4x4 stride 2, 64 3x3, dense 512 (Mnih et al. 2015).
    ba3c: 32 5x5, 32 5x5, 64 5x5, each with a 2x2 max-pooling, 64 3x3, dense `fc_neurons` without activation (from the
    code behind Adamski et al. 2018, whose figure 6 compares numbers of neurons). No bias in its convolutions; input
    channels are padded with zeros to a multiple of 16, and the padding's weights count.

    Flat order: conv0/kernel [height, width, in, out], conv0/bias, conv1/kernel, ..., dense/kernel [in, out],
    dense/bias, policy/kernel, policy/bias, value/kernel, value/bias; the dense layer reads the last image in
    the order [height, width, channel]. In the Q-learning family q/kernel, q/bias follow the dense layer, [action,
    atom] in row-major order; or, dueling, value/kernel, value/bias, advantage/kernel, advantage/bias, and the dense
    layer is two side by side, the value's first (Wang et al. 2016). Observations are <uint8 or float32>[B, C, H, W], or
    [B, H, W, C] where the last is the smallest.
    Convolutions are valid, but padded by 1 after the first for 104x80 images (Stooke and Abbeel 2018).

    Orthogonal kernels with gain sqrt(2), 0.01 for the heads but 1.0 for the value beside a policy; ba3c draws
    convolutions from a normal of deviation 0.03 truncated at 2 deviations, dense layers from a uniform unit scaling of
    1.43 (tensorpack's values of that time). Biases are zero.

    Args:
        config: its name, and the type of convolutions and dense layer: float32 or bfloat16.
        observation_shape: [C, H, W].
        observation_dtype: uint8 (scaled by 1/255) or float32 (taken as it is).
        action_space: which decides the width of the heads.
        head: of the Q-learning family (None: policy and value).

    Raises:
        UsageError: not an image, or too small for the network.
    """

    def __init__(
        self,
        config: NetworkConfig,
        observation_shape: tuple[int, ...],
        observation_dtype: Any,
        action_space: ActionSpace,
        head: QHead | None = None,
    ) -> None:
        self.architecture = architecture = architecture_of(config)
        tensors = convolutional_tensors(config.network, architecture, observation_shape, action_space, head)
        self._last = channels_last(observation_shape)
        self._channels, *image = channels_first(observation_shape)
        self._padded_by = padding_after_first(tuple(image))
        first = architecture.convolutions[0]
        # A convolution whose stride divides its kernel is one of stride 1 over blocks: 1.5 times as fast.
        self._block = first.stride if first.kernel % first.stride == 0 else 1
        used = [(side - first.kernel) // first.stride * first.stride + first.kernel for side in image]
        self._rows, self._columns = used
        super().__init__(config.network, tensors, observation_dtype, action_space, config.compute_dtype, head)

    def prepare(self, parameters: Any) -> dict[str, Any]:
        """Hidden tensors in the compute type; the first kernel takes in the scale and the blocks."""
        tensors = super().prepare(parameters)
        kernel = tensors["conv0/kernel"] * self.observation_scale
        tensors["conv0/kernel"] = _kernel_on_blocks(kernel, self._block) if self._block > 1 else kernel
        return {
            name: tf.cast(x, self.compute_dtype) if name.startswith("conv") or name == "dense/kernel" else x
            for name, x in tensors.items()
        }

    def outputs(self, prepared: dict[str, Any], observations: Any) -> dict[str, Any]:
        """Of each head, <float32>[B, width], for <uint8 or float32>[B, C, H, W]."""
        x = self._channels_last(self.observed(prepared, observations))
        for layer, spec in enumerate(self.architecture.convolutions):
            stride = spec.stride // self._block if layer == 0 else spec.stride
            x = self._convolve(prepared, layer, stride, spec.pool, x)
        return dense_outputs(prepared, x, streams_of(self.action_space, self.head), self.architecture.dense_relu)

    def _channels_last(self, observations: Any) -> Any:
        """[B, H, W, C], or what `_blocks` makes where the first convolution works on blocks; compute type."""
        if self._last:
            observations = tf.transpose(observations, [0, 3, 1, 2])
        if self._block > 1:
            blocks = _blocks(observations[:, :, : self._rows, : self._columns], self._block)
            return tf.cast(blocks, self.compute_dtype)
        padding = -self._channels % self.architecture.channel_multiple
        return channels_moved_last(observations, padding, self.compute_dtype)

    def _convolve(self, prepared: dict[str, Any], layer: int, stride: int, pool: int, x: Any) -> Any:
        pad = self._padded_by if layer else 0  # apart: oneDNN has no gradient for a convolution with explicit padding
        x = tf.pad(x, [[0, 0], [pad, pad], [pad, pad], [0, 0]]) if pad else x
        x = tf.nn.conv2d(x, prepared[f"conv{layer}/kernel"], stride, "VALID")
        if self.architecture.convolution_bias:
            x = tf.nn.bias_add(x, prepared[f"conv{layer}/bias"])
        # ReLU and maximum commute: after the pooling there is a quarter of the work.
        return tf.nn.relu(tf.nn.max_pool2d(x, pool, pool, "VALID") if pool > 1 else x)


def architecture_of(config: NetworkConfig) -> Architecture:
    """The convolutional architecture that `config` names."""
    ba3c = dataclasses.replace(_BA3C, neurons=config.fc_neurons)
    return {"a3c": _A3C, "nature": _NATURE, "ba3c": ba3c}[config.network]


def padding_after_first(image: tuple[int, ...]) -> int:
    """Zeros around the input of every convolution but the first, for images of this [height, width]."""
    return 1 if image == _STOOKE_IMAGE else 0


def convolutional_tensors(
    name: str,
    architecture: Architecture,
    observation_shape: tuple[int, ...],
    action_space: ActionSpace,
    head: QHead | None = None,
) -> Tensors:
    """Name, shape and initializer of each tensor, in the flat order.

    Args:
        name: for errors.
        architecture: its layers and initializers.
        observation_shape: [C, H, W].
        action_space, head: which decide the heads.

    Raises:
        UsageError: not an image [channels, height, width], or too small for the network.
    """
    check_image(name, observation_shape)
    channels, *image = channels_first(observation_shape)
    pixels = math.prod(_last_image(name, architecture, tuple(image)))
    features = pixels * architecture.convolutions[-1].filters
    channels = -(-channels // architecture.channel_multiple) * architecture.channel_multiple
    tensors: Tensors = []
    for layer, spec in enumerate(architecture.convolutions):
        shape = (spec.kernel, spec.kernel, channels, spec.filters)
        tensors.append((f"conv{layer}/kernel", shape, architecture.convolution_kernel))
        if architecture.convolution_bias:
            tensors.append((f"conv{layer}/bias", (spec.filters,), zeros))
        channels = spec.filters
    return tensors + dense_tensors(architecture, features, action_space, head)


def dense_tensors(
    architecture: Architecture, features: int, action_space: ActionSpace, head: QHead | None = None
) -> Tensors:
    """Those after the last image: of the dense layer, the heads, and the deviations of continuous actions.

    Args:
        architecture: its neurons and initializers.
        features: numbers of the last image.
        action_space, head: which decide the heads.
    """
    neurons, streams = architecture.neurons, streams_of(action_space, head)
    tensors = layer_tensors("dense", features, neurons * len(streams), architecture.dense_kernel)
    for name, width in heads_of(action_space, head).items():
        is_value = head is None and name == "value"  # values of actions start near 0, as policies do
        kernel = architecture.value_kernel if is_value else architecture.policy_kernel
        tensors += layer_tensors(name, neurons, width, kernel)
    return tensors + deviation_tensors(action_space)


def dense_outputs(prepared: dict[str, Any], x: Any, streams: list[dict[str, int]], relu: bool = True) -> dict[str, Any]:
    """Of each head, <float32>[B, width], for the last image [B, H, W, C].

    Args:
        prepared: parameters, as `prepare` makes them.
        x: in the type of dense/kernel.
        streams: heads, see `streams_of`.
        relu: whether the dense layer has an activation.
    """
    x = tf.reshape(x, [-1, math.prod(x.shape[1:])])
    x = half_variance(x) if len(streams) > 1 else x
    x = tf.matmul(x, prepared["dense/kernel"])
    # In float32 from here: also, with the bias apart oneDNN multiplies with its faster kernel.
    x = tf.cast(x, tf.float32) + prepared["dense/bias"]
    return head_outputs(prepared, tf.nn.relu(x) if relu else x, streams)


def check_image(name: str, observation_shape: tuple[int, ...]) -> None:
    """Raises UsageError for observations that are no images."""
    if len(observation_shape) != 3:
        raise UsageError(
            f"network {name} takes images [channels, height, width], not observations of shape "
            f"{tuple(observation_shape)}: use --network mlp"
        )


def channels_last(shape: tuple[int, ...]) -> bool:
    """Whether an image is [H, W, C], which is where the last of its three sizes is smaller than the first."""
    return len(shape) == 3 and shape[2] < shape[0]


def channels_first(shape: tuple[int, ...]) -> tuple[int, ...]:
    """[C, H, W] of an image of either kind."""
    return (shape[2], *shape[:2]) if channels_last(shape) else tuple(shape)


def _last_image(name: str, architecture: Architecture, image: tuple[int, ...]) -> tuple[int, ...]:
    """Height and width after the last convolution and its pooling."""
    size = image
    for layer, spec in enumerate(architecture.convolutions):
        padding = padding_after_first(image) if layer else 0
        before = [side + 2 * padding for side in size]
        size = tuple(((side - spec.kernel) // spec.stride + 1) // spec.pool for side in before)
        if min(before) < spec.kernel or min(size) < 1:
            raise UsageError(
                f"images of {image[0]}x{image[1]} are too small for network {name} (nothing is left "
                f"after convolution {layer + 1}): use --network mlp"
            )
    return size


def half_variance(x: Any) -> Any:
    """x, with a gradient of 1/sqrt(2): it is the sum of two streams' (Wang et al. 2016, section 4.2)."""
    return tf.custom_gradient(lambda y: (y, lambda gradient: gradient * tf.cast(math.sqrt(0.5), gradient.dtype)))(x)


def channels_moved_last(images: Any, padding: int, dtype: str) -> Any:
    """[B, H, W, C + padding] in `dtype` of images [B, C, H, W]; the added channels are zero."""
    if images.dtype != dtype:
        return _moved_and_cast()(images, padding, dtype)
    x = tf.transpose(images, [0, 2, 3, 1])  # there is nothing to fuse it with
    # Not tf.pad: TensorFlow's optimizer of graphs takes it for the convolution's own padding, and loses it.
    return tf.concat([x, tf.tile(tf.zeros_like(x[..., :1]), [1, 1, 1, padding])], axis=3) if padding else x


@functools.cache
def _moved_and_cast() -> Callable[[Any, int, str], Any]:
    """(images [B, C, H, W], padding, dtype) -> [B, H, W, C + padding] in `dtype`, the added channels zero."""

    def transpose(images: Any, padding: int, dtype: str) -> Any:
        x = tf.cast(tf.transpose(images, [0, 2, 3, 1]), dtype)
        return tf.pad(x, [[0, 0], [0, 0], [0, 0], [0, padding]])

    return tf.function(transpose, jit_compile=True, autograph=False)  # fused by XLA it takes a third of the time


def _blocks(images: Any, size: int) -> Any:
    """[B, C, H, W] -> [B, H / size, W / size, C size size]; a block lies in the order [C, row, column]."""
    channels, height, width = images.shape[1:]
    shape = [-1, channels, height // size, size, width // size, size]
    if images.dtype == tf.uint8 and size == 4:
        # The 4 bytes of a block's row move as one word; as float32, because oneDNN transposes that type only.
        words = tf.transpose(tf.bitcast(tf.reshape(images, shape), tf.float32), [0, 2, 4, 1, 3])
        blocks = tf.bitcast(words, tf.uint8)
    else:
        blocks = tf.transpose(tf.reshape(images, shape), [0, 2, 4, 1, 3, 5])
    return tf.reshape(blocks, [-1, height // size, width // size, channels * size * size])


def _kernel_on_blocks(kernel: Any, size: int) -> Any:
    """[k, k, C, F] -> [k / size, k / size, C size size, F]: the same convolution, on `_blocks`."""
    side, _, channels, filters = kernel.shape
    parts = tf.reshape(kernel, [side // size, size, side // size, size, channels, filters])
    parts = tf.transpose(parts, [0, 2, 4, 1, 3, 5])
    return tf.reshape(parts, [side // size, side // size, channels * size * size, filters])
