"""Networks: observation -> PolicyValue, as pure functions of one flat float32 parameter vector.

A network is made by a function of `Spaces` and settings: one of those here, one that a plugin registers by name, or one
that --network names as module:function. Read `network` first, then `mlp`, the simplest. Of ddrl's packages only `ops`,
`config`, and from `exchange` the arithmetic of running statistics may be imported here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ddrl import plugin_modules, plugins
from ddrl.config import NetworkConfig
from ddrl.errors import UsageError, in_one_line, raised_at
from ddrl.types import ActionSpace, QHead

if TYPE_CHECKING:
    from ddrl.networks.network import Network
    from ddrl.networks.spaces import Spaces

Build = Callable[["Spaces", NetworkConfig], Any]
"""Makes a network: a `Network`, or a Keras model."""


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
        UsageError: the observation does not suit the network, or the actions not the head; a function of a user fails,
            or what it makes is no network for these spaces.
    """
    from ddrl.networks.spaces import Spaces

    spaces = Spaces(tuple(observation_shape), np.dtype(observation_dtype), action_space, head)
    if is_own(config) and spaces.observation_dtype.names:
        return _structured(spaces, config)
    if is_own(config):
        network: Network = OWN[config.network](spaces, config)
        return network
    return _network_of_user(config, spaces)


def is_own(config: NetworkConfig) -> bool:
    """Whether the network is one of the system's, which suits whatever it does not refuse at once."""
    return config.network in OWN


def _network_of_user(config: NetworkConfig, spaces: Spaces) -> Network:
    from ddrl.networks.keras_network import KEEPS_STATE, KerasNetwork, is_keras_model, policy_of, seeded
    from ddrl.networks.network import Network

    build = _function_named(config.network)

    def made() -> Any:
        try:
            with policy_of(config.compute_dtype if spaces.is_image else "float32"):
                return build(spaces, config)
        except UsageError:
            raise
        except Exception as error:
            # Keras asks for a batch of a fixed size then, which there is not.
            stateful = "`stateful=True`" in str(error)
            why = f"a layer {KEEPS_STATE}" if stateful else f"{in_one_line(error)}{raised_at(error)}"
            raise UsageError(f"network {config.network} cannot be made: {why}") from error

    with seeded(0):
        network = made()
    if isinstance(network, Network):
        return network
    if not is_keras_model(network):
        raise UsageError(f"network {config.network} is {network!r:.80}, neither a Keras model nor a ddrl Network")
    return KerasNetwork(config.network, made, network, spaces, config.compute_dtype)


def _function_named(name: str) -> Build:
    """A registered function, or that of module:function.

    Raises:
        UsageError: there is none, or its module cannot be imported.
    """
    module_name, _, function = name.partition(":")
    if not function:
        return plugins.networks.get(name)
    try:
        found = getattr(plugin_modules.import_named_module(module_name), function, None)
    except UsageError as error:
        raise UsageError(f"--network {name}: {error}") from error
    except Exception as error:
        raise UsageError(f"--network {name}: {module_name} cannot be imported: {in_one_line(error)}") from error
    if not callable(found):
        raise UsageError(f"--network {name}: {module_name} has no function {function}")
    return found


def _structured(spaces: Spaces, config: NetworkConfig) -> Network:
    from ddrl.networks.structured import StructuredNetwork, images_of

    dtype = spaces.observation_dtype
    if not spaces.fields:
        raise UsageError("the observation has nothing but a mask of legal actions; add something that a policy can see")
    if not images_of(dtype):
        return _mlp(spaces, config)
    return StructuredNetwork(config, dtype, spaces.actions, spaces.head, build_network)


def _mlp(spaces: Spaces, config: NetworkConfig) -> Network:
    from ddrl.networks.mlp import MLP

    return MLP(config, *spaces)


def _convolutional(spaces: Spaces, config: NetworkConfig) -> Network:
    from ddrl.networks.convolutional import ConvolutionalNetwork

    return ConvolutionalNetwork(config, *spaces)


def _residual(spaces: Spaces, config: NetworkConfig) -> Network:
    from ddrl.networks.residual import ResidualNetwork

    return ResidualNetwork(config, *spaces)


OWN: dict[str, Build] = {
    "a3c": _convolutional,
    "nature": _convolutional,
    "ba3c": _convolutional,
    "impala": _residual,
    "mlp": _mlp,
}
for _name, _build in OWN.items():
    plugins.register_network(_name, _build)
