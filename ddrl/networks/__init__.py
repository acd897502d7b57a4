"""Networks: observation -> PolicyValue, as pure functions of one flat float32 parameter vector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddrl.config import NetworkConfig
from ddrl.types import ActionSpace, QHead

if TYPE_CHECKING:
    from ddrl.networks.network import Network


def build_network(
    config: NetworkConfig,
    observation_shape: tuple[int, ...],
    observation_dtype: Any,
    action_space: ActionSpace,
    head: QHead | None = None,
) -> Network:
    """The network that the settings name, for one observation and action space.

    Args:
        config: network settings.
        observation_shape: [C, H, W] for the convolutional networks, anything for mlp.
        observation_dtype: uint8 (scaled by 1/255) or float32 (taken as it is).
        action_space: which decides the policy head.
        head: of the algorithm (`head` of its settings): None for policy and value.

    Raises:
        UsageError: the observation does not suit the network, or the actions not the head.
    """
    if config.network == "mlp":
        from ddrl.networks.mlp import MLP

        return MLP(observation_shape, observation_dtype, action_space, head)
    from ddrl.networks.convolutional import ConvolutionalNetwork

    return ConvolutionalNetwork(config, observation_shape, observation_dtype, action_space, head)
