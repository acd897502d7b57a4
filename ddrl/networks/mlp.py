"""A small network of dense layers for vectors and tiny images."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ddrl.networks.layouts import MLP_HIDDEN, mlp_tensors, mlp_towers
from ddrl.networks.network import Network
from ddrl.types import ActionSpace, QHead


class MLP(Network):
    """A tower for each head, each of 2 hidden tanh layers of 64, over the flattened observation.

    Flat order: the policy tower's kernels and biases from the input up, then the value tower's; in the Q-learning
    family the tower q alone, or value, then advantage. Orthogonal kernels with gain sqrt(2), 0.01 for the heads but
    1.0 for the value beside a policy; biases zero. Always float32: layers this small gain nothing from bfloat16, and
    float observations would lose digits.
    """

    def __init__(
        self,
        observation_shape: tuple[int, ...],
        observation_dtype: Any,
        action_space: ActionSpace,
        head: QHead | None = None,
    ) -> None:
        tensors = mlp_tensors(observation_shape, action_space, head)
        super().__init__("mlp", tensors, observation_dtype, action_space, "float32", head)

    def prepare(self, vector: Any) -> dict[str, Any]:
        """The named tensors as they are."""
        return self.unflatten(vector)

    def outputs(self, prepared: dict[str, Any], observations: Any) -> dict[str, Any]:
        """Of each tower, <float32>[B, width], for observations [B, ...]."""
        batch = tf.shape(observations)[0]
        inputs = tf.cast(tf.reshape(observations, [batch, -1]), tf.float32) * self.observation_scale
        outputs = {}
        for tower in mlp_towers(self.action_space, self.head):
            x = inputs
            for layer in range(len(MLP_HIDDEN) + 1):
                x = tf.matmul(x, prepared[f"{tower}{layer}/kernel"]) + prepared[f"{tower}{layer}/bias"]
                x = tf.tanh(x) if layer < len(MLP_HIDDEN) else x
            outputs[tower] = x
        return outputs
