"""A deterministic policy of continuous actions and a critic of them, for DPG."""

from __future__ import annotations

from typing import Any

from ddrl.config import NetworkConfig
from ddrl.errors import UsageError
from ddrl.lazy import tf
from ddrl.networks.dense import BoundedNetwork, activation_named, flat_observations, tower_outputs, tower_tensors
from ddrl.structured import inputs_of
from ddrl.types import Continuous, PolicyValue


class DeterministicNetwork(BoundedNetwork):
    """Two towers of dense tanh layers over the flattened observation (Horgan et al. 2018, appendix D).

    The policy ends in tanh, scaled to the bounds of the actions. The action enters the critic beside its first hidden
    layer (Lillicrap et al. 2016, section 7), in units of half its range. Sizes are --policy-layers and --critic-layers.

    Flat order: policy0/kernel, policy0/bias, ... from the input up, then critic0/kernel, ...; in critic1/kernel the
    rows of the first hidden layer come before those of the action. Orthogonal kernels with gain sqrt(2), 0.01 for the
    last ones; biases zero. Always float32.

    Args:
        config: sizes of the layers.
        observation_shape: of one observation, flattened here.
        observation_dtype: uint8 (scaled by 1/255), float32 or bool, or fields of these.
        action_space: with finite bounds.
    """

    def __init__(
        self,
        config: NetworkConfig,
        observation_shape: tuple[int, ...],
        observation_dtype: Any,
        action_space: Continuous,
    ) -> None:
        if not isinstance(action_space, Continuous):
            raise UsageError("dpg takes continuous actions, not discrete ones: train dqn, a2c, ppo or impala")
        inputs, actions = inputs_of(observation_shape, observation_dtype), action_space.head_size
        norm = config.layer_norm
        tensors = tower_tensors("policy", (inputs, *config.policy_layers, actions), 0.01, layer_norm=norm)
        tensors += tower_tensors("critic", (inputs, *config.critic_layers, 1), 0.01, actions, norm)
        super().__init__(tensors, observation_dtype, action_space)
        self._activation = config.activation
        self._depths = {"policy": len(config.policy_layers), "critic": len(config.critic_layers)}

    def apply(self, prepared: dict[str, Any], observations: Any) -> PolicyValue:
        """pi(s) <float32>[B, A] as the environment takes it, and q(s, pi(s)) <float32>[B]."""
        action = self.policy_actions(prepared, observations)
        return PolicyValue(self.scaled(action), self.critic(prepared, observations, action))

    def policy_actions(self, prepared: dict[str, Any], observations: Any) -> Any:
        """pi(s) <float32>[B, A] of `observations` [B, ...], in units of half the range: in [-1, 1]."""
        inputs = flat_observations(self.observed(prepared, observations), self.observation_scale)
        activation = activation_named(self._activation, "tanh")
        return tf.tanh(tower_outputs(prepared, "policy", self._depths["policy"], inputs, activation))

    def critic(self, prepared: dict[str, Any], observations: Any, actions: Any) -> Any:
        """q(s, a) <float32>[B] of `observations` [B, ...] and actions <float32>[B, A] in units of half their range."""
        inputs = flat_observations(self.observed(prepared, observations), self.observation_scale)
        activation = activation_named(self._activation, "tanh")
        values = tower_outputs(prepared, "critic", self._depths["critic"], inputs, activation, beside_first=actions)
        return tf.squeeze(values, axis=-1)
