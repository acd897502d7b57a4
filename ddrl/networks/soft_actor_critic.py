"""A squashed Gaussian policy, two critics and a temperature, for SAC."""

from __future__ import annotations

import math
from typing import Any

from ddrl.config import NetworkConfig
from ddrl.lazy import tf
from ddrl.networks.dense import BoundedNetwork, activation_named, flat_observations, tower_outputs, tower_tensors
from ddrl.networks.network import Tensors, zeros
from ddrl.structured import inputs_of
from ddrl.types import Continuous, PolicyValue

LOG_TEMPERATURE = "temperature/log"
SMALLEST_LOG_DEVIATION, LARGEST_LOG_DEVIATION = -20.0, 2.0  # as in the authors' code
LOG_2, LOG_2_PI = math.log(2.0), math.log(2.0 * math.pi)


class SoftActorCriticNetwork(BoundedNetwork):
    """Three towers of dense ReLU layers over the flattened observation (Haarnoja et al. 2018b, appendix D).

    The policy gives the mean and the logarithm of the deviation of u; the action is tanh(u), scaled to the bounds. The
    action enters the critics beside the observation, in units of half its range. Sizes are --policy-layers and
    --critic-layers.

    Flat order: policy0/kernel, policy0/bias, ... from the input up, the same of first and second, the critics, then
    temperature/log, the logarithm of alpha. Orthogonal kernels with gain sqrt(2), 0.01 for the policy's last and 1 for
    the critics'; the rest is zero, so that alpha begins at 1. Always float32.

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
        inputs, actions = inputs_of(observation_shape, observation_dtype), action_space.head_size
        norm = config.layer_norm
        tensors: Tensors = tower_tensors("policy", (inputs, *config.policy_layers, 2 * actions), 0.01, layer_norm=norm)
        for critic in ("first", "second"):
            tensors += tower_tensors(critic, (inputs + actions, *config.critic_layers, 1), 1.0, layer_norm=norm)
        tensors.append((LOG_TEMPERATURE, (), zeros))
        super().__init__(tensors, observation_dtype, action_space)
        self._activation = config.activation
        self._policy_depth, self._critic_depth = len(config.policy_layers), len(config.critic_layers)

    def apply(self, prepared: dict[str, Any], observations: Any) -> PolicyValue:
        """Policy <float32>[B, 3 A]: the action to evaluate with, as the environment takes it, then mean and logarithm
        of the deviation of u; and the smaller q <float32>[B] of that action."""
        mean, log_deviation = self.gaussian(prepared, observations)
        action = tf.tanh(mean)
        value = tf.minimum(*self.critics(prepared, observations, action))
        return PolicyValue(tf.concat([self.scaled(action), mean, log_deviation], axis=1), value)

    def gaussian(self, prepared: dict[str, Any], observations: Any) -> tuple[Any, Any]:
        """Mean and logarithm of the deviation of u, <float32>[B, A] each, of `observations` [B, ...]."""
        inputs = flat_observations(self.observed(prepared, observations), self.observation_scale)
        activation = activation_named(self._activation, "relu")
        outputs = tower_outputs(prepared, "policy", self._policy_depth, inputs, activation)
        mean, log_deviation = tf.split(outputs, 2, axis=1)
        return mean, tf.clip_by_value(log_deviation, SMALLEST_LOG_DEVIATION, LARGEST_LOG_DEVIATION)

    def sampled(self, prepared: dict[str, Any], observations: Any, normal: Any) -> tuple[Any, Any]:
        """Actions tanh(u) <float32>[B, A] of `observations` [B, ...] and standard normal numbers [B, A], and their
        log-probabilities <float32>[B].

        log pi(a) = log N(u) - sum log(1 - tanh(u)^2) (Haarnoja et al. 2018b, appendix C, equation 26), the latter as
        2 (log 2 - u - softplus(-2 u)), which is finite for any u.
        """
        mean, log_deviation = self.gaussian(prepared, observations)
        u = mean + tf.exp(log_deviation) * normal
        gaussian = -0.5 * tf.square(normal) - log_deviation - 0.5 * LOG_2_PI
        squash = 2.0 * (LOG_2 - u - tf.nn.softplus(-2.0 * u))
        return tf.tanh(u), tf.reduce_sum(gaussian - squash, axis=1)

    def critics(self, prepared: dict[str, Any], observations: Any, actions: Any) -> tuple[Any, Any]:
        """Both q(s, a) <float32>[B] of `observations` [B, ...] and actions <float32>[B, A] in half ranges."""
        inputs = tf.concat(
            [flat_observations(self.observed(prepared, observations), self.observation_scale), actions], axis=1
        )
        activation = activation_named(self._activation, "relu")
        first, second = (
            tf.squeeze(tower_outputs(prepared, critic, self._critic_depth, inputs, activation), axis=-1)
            for critic in ("first", "second")
        )
        return first, second
