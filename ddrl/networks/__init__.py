"""Networks: observation -> PolicyValue, as pure functions of one flat float32 parameter vector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

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
        observation_shape: [C, H, W] or [H, W, C] for the convolutional networks, anything for mlp.
        observation_dtype: uint8 (scaled by 1/255), float32 or bool (taken as they are), or fields of these.
        action_space: which decides the policy head.
        head: of the algorithm (`head` of its settings): None for policy and value.

    Raises:
        UsageError: the observation does not suit the network, or the actions not the head.
    """
    if np.dtype(observation_dtype).names:
        from ddrl.networks.structured import StructuredNetwork

        return StructuredNetwork(config, observation_dtype, action_space, head, build_network)
    if config.network == "mlp":
        from ddrl.networks.mlp import MLP

        return MLP(observation_shape, observation_dtype, action_space, head)
    from ddrl.networks.convolutional import ConvolutionalNetwork

    return ConvolutionalNetwork(config, observation_shape, observation_dtype, action_space, head)
