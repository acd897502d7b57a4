"""A deterministic policy of continuous actions and a critic of them, for DPG."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from ddrl.config import NetworkConfig
from ddrl.networks.layouts import deterministic_tensors
from ddrl.networks.network import Network
from ddrl.types import Continuous, DeterministicHead, PolicyValue


class DeterministicNetwork(Network):
    """Two towers of dense tanh layers over the flattened observation (Horgan et al. 2018, appendix D).

    The policy ends in tanh, scaled to the bounds of the actions. The action enters the critic beside its first hidden
    layer (Lillicrap et al. 2016, section 7), in units of half its range. Sizes are --policy-layers and --critic-layers.

    Flat order: policy0/kernel, policy0/bias, ... from the input up, then critic0/kernel, ...; in critic1/kernel the
    rows of the first hidden layer come before those of the action. Orthogonal kernels with gain sqrt(2), 0.01 for the
    last ones; biases zero. Always float32.
    """

    def __init__(
        self,
        config: NetworkConfig,
        observation_shape: tuple[int, ...],
        observation_dtype: Any,
        action_space: Continuous,
    ) -> None:
        tensors = deterministic_tensors(config, observation_shape, action_space)
        super().__init__("mlp", tensors, observation_dtype, action_space, "float32", DeterministicHead())
        self._depths = {"policy": len(config.policy_layers), "critic": len(config.critic_layers)}
        low, high = np.array(action_space.low, np.float64), np.array(action_space.high, np.float64)
        self._middle, self._half = (((high + sign * low) / 2).astype(np.float32) for sign in (1, -1))

    def prepare(self, vector: Any) -> dict[str, Any]:
        """The named tensors as they are."""
        return self.unflatten(vector)

    def apply(self, prepared: dict[str, Any], observations: Any) -> PolicyValue:
        """pi(s) <float32>[B, A] as the environment takes it, and q(s, pi(s)) <float32>[B]."""
        action = self.policy_actions(prepared, observations)
        return PolicyValue(self._middle + self._half * action, self.critic(prepared, observations, action))

    def policy_actions(self, prepared: dict[str, Any], observations: Any) -> Any:
        """pi(s) <float32>[B, A] in units of half the range: in [-1, 1]."""
        return tf.tanh(self._tower(prepared, "policy", self._inputs(observations)))

    def critic(self, prepared: dict[str, Any], observations: Any, actions: Any) -> Any:
        """q(s, a) <float32>[B] of actions <float32>[B, A] in units of half their range."""
        return tf.squeeze(self._tower(prepared, "critic", self._inputs(observations), actions), axis=-1)

    def normalized(self, actions: Any) -> Any:
        """From actions as the environment takes them to units of half their range."""
        return (actions - self._middle) / self._half

    def _inputs(self, observations: Any) -> Any:
        flat = tf.reshape(observations, [tf.shape(observations)[0], -1])
        return tf.cast(flat, tf.float32) * self.observation_scale

    def _tower(self, prepared: dict[str, Any], name: str, x: Any, actions: Any = None) -> Any:
        for layer in range(self._depths[name] + 1):
            if layer == 1 and actions is not None:
                x = tf.concat([x, actions], axis=1)
            x = tf.matmul(x, prepared[f"{name}{layer}/kernel"]) + prepared[f"{name}{layer}/bias"]
            x = tf.tanh(x) if layer < self._depths[name] else x
        return x
