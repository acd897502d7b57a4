"""A small network of dense layers for vectors and tiny images."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ddrl.networks.layouts import MLP_HIDDEN, MLP_TOWERS, mlp_tensors
from ddrl.networks.network import Network
from ddrl.types import ActionSpace, PolicyValue


class MLP(Network):
    """Two towers, policy and value, each of 2 hidden tanh layers of 64, over the flattened observation.

    Flat order: the policy tower's kernels and biases from the input up, then the value tower's. Orthogonal
    kernels with gain sqrt(2), 0.01 for the policy head and 1.0 for the value; biases zero. Always float32: layers
    this small gain nothing from bfloat16, and float observations would lose digits.
    """

    def __init__(self, observation_shape: tuple[int, ...], observation_dtype: Any, action_space: ActionSpace) -> None:
        tensors = mlp_tensors(observation_shape, action_space)
        super().__init__("mlp", tensors, observation_dtype, action_space, "float32")

    def prepare(self, vector: Any) -> dict[str, Any]:
        """The named tensors as they are."""
        return self.unflatten(vector)

    def apply(self, prepared: dict[str, Any], observations: Any) -> PolicyValue:
        """Policy <float32>[B, P] and value <float32>[B] of uint8 or float32 [B, ...]."""
        batch = tf.shape(observations)[0]
        inputs = tf.cast(tf.reshape(observations, [batch, -1]), tf.float32) * self.observation_scale
        outputs = {}
        for tower in MLP_TOWERS:
            x = inputs
            for layer in range(len(MLP_HIDDEN) + 1):
                x = tf.matmul(x, prepared[f"{tower}{layer}/kernel"]) + prepared[f"{tower}{layer}/bias"]
                x = tf.tanh(x) if layer < len(MLP_HIDDEN) else x
            outputs[tower] = x
        return PolicyValue(self.policy(outputs["policy"], prepared), tf.squeeze(outputs["value"], axis=-1))
