"""The tensors of each network, their order, shapes and initial values. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import math

from ddrl.config import NetworkConfig
from ddrl.errors import UsageError
from ddrl.networks.network import LOG_DEVIATION, Initializer, orthogonal, truncated_normal, uniform_unit_scaling, zeros
from ddrl.types import ActionSpace, Continuous, DeterministicHead, Head, QHead

Tensors = list[tuple[str, tuple[int, ...], Initializer]]

MLP_HIDDEN = (64, 64)
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
    """What distinguishes the convolutional networks."""

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


def streams_of(action_space: ActionSpace, head: QHead | None) -> list[dict[str, int]]:
    """Linear heads and their widths; those of one stream read the same hidden layer, each stream has its own."""
    if head is None:
        return [{"policy": action_space.head_size, "value": 1}]
    each = head.atoms or 1
    if head.dueling:
        return [{"value": each}, {"advantage": action_space.head_size * each}]
    return [{"q": action_space.head_size * each}]


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

    Raises:
        UsageError: not an image [channels, height, width], or too small for the network.
    """
    if len(observation_shape) != 3:
        raise UsageError(
            f"network {name} takes images [channels, height, width], not observations of shape "
            f"{tuple(observation_shape)}: use --network mlp"
        )
    channels, *image = observation_shape
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
    streams = streams_of(action_space, head)
    dense = [("dense", (features, architecture.neurons * len(streams)), architecture.dense_kernel)]
    for head_name, width in (item for stream in streams for item in stream.items()):
        is_value = head is None and head_name == "value"  # values of actions start near 0, as policies do
        kernel = architecture.value_kernel if is_value else architecture.policy_kernel
        dense.append((head_name, (architecture.neurons, width), kernel))
    for layer_name, shape, kernel in dense:
        tensors += [(f"{layer_name}/kernel", shape, kernel), (f"{layer_name}/bias", (shape[1],), zeros)]
    return tensors + deviation_tensors(action_space)


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


def deviation_tensors(action_space: ActionSpace) -> Tensors:
    """Logarithms of the standard deviations of a Gaussian policy: parameters of their own, whatever the state."""
    return [(LOG_DEVIATION, (action_space.head_size,), zeros)] if isinstance(action_space, Continuous) else []


def mlp_tensors(observation_shape: tuple[int, ...], action_space: ActionSpace, head: QHead | None = None) -> Tensors:
    """Name, shape and initializer of each tensor, in the flat order."""
    tensors: Tensors = []
    for tower, width in mlp_towers(action_space, head).items():
        gain = 1.0 if head is None and tower == "value" else 0.01
        widths = (math.prod(observation_shape), *MLP_HIDDEN, width)
        for layer, (fan_in, fan_out) in enumerate(zip(widths, widths[1:])):
            last = layer == len(MLP_HIDDEN)
            kernel = orthogonal(gain if last else math.sqrt(2.0))
            tensors.append((f"{tower}{layer}/kernel", (fan_in, fan_out), kernel))
            tensors.append((f"{tower}{layer}/bias", (fan_out,), zeros))
    return tensors + deviation_tensors(action_space)


def mlp_towers(action_space: ActionSpace, head: QHead | None) -> dict[str, int]:
    """Name and width of each tower: every head has one."""
    return {name: width for stream in streams_of(action_space, head) for name, width in stream.items()}


def deterministic_tensors(
    config: NetworkConfig, observation_shape: tuple[int, ...], action_space: Continuous
) -> Tensors:
    """Name, shape and initializer of each tensor of DPG's policy and critic, in the flat order.

    Raises:
        UsageError: the actions are discrete.
    """
    if not isinstance(action_space, Continuous):
        raise UsageError("dpg takes continuous actions, not discrete ones: train dqn, a2c, ppo or impala")
    inputs, actions = math.prod(observation_shape), action_space.head_size
    tensors: Tensors = []
    for tower, layers, outputs in (("policy", config.policy_layers, actions), ("critic", config.critic_layers, 1)):
        widths = (inputs, *layers, outputs)
        for layer, (fan_in, fan_out) in enumerate(zip(widths, widths[1:])):
            fan_in += actions if tower == "critic" and layer == 1 else 0
            kernel = orthogonal(0.01 if layer == len(layers) else math.sqrt(2.0))
            tensors.append((f"{tower}{layer}/kernel", (fan_in, fan_out), kernel))
            tensors.append((f"{tower}{layer}/bias", (fan_out,), zeros))
    return tensors


def parameter_count(
    config: NetworkConfig, observation_shape: tuple[int, ...], action_space: ActionSpace, head: Head | None = None
) -> int:
    """Length of the flat vector of the network that `config` names, with this head.

    Raises:
        UsageError: the observation does not suit the network.
    """
    if isinstance(head, DeterministicHead):
        tensors = deterministic_tensors(config, observation_shape, action_space)
    elif config.network == "mlp":
        tensors = mlp_tensors(observation_shape, action_space, head)
    else:
        architecture = architecture_of(config)
        tensors = convolutional_tensors(config.network, architecture, observation_shape, action_space, head)
    return sum(math.prod(shape) for _, shape, _ in tensors)
