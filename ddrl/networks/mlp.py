"""A network of dense layers for vectors and tiny images."""

from __future__ import annotations

from typing import Any

from ddrl.config import NetworkConfig
from ddrl.networks.dense import activation_named, flat_observations, tower_outputs, tower_tensors
from ddrl.networks.network import Network, Tensors, deviation_tensors, heads_of
from ddrl.structured import inputs_of
from ddrl.types import ActionSpace, QHead

MLP_HIDDEN = (64, 64)


class MLP(Network):
    """A tower for each head, each of 2 hidden tanh layers of 64 or of --hidden-layers, over the flattened observation.

    Flat order: the policy tower's kernels and biases from the input up, then the value tower's; in the Q-learning
    family the tower q alone, or value, then advantage. With --layer-norm each hidden layer has a scale and an offset
    after its bias, which begin at 1 and 0. Orthogonal kernels with gain sqrt(2), 0.01 for the heads but 1.0 for the
    value beside a policy; biases zero. Always float32: layers this small gain nothing from bfloat16, and
    float observations would lose digits.

    Args:
        config: sizes and activation of the hidden layers.
        observation_shape: of one observation, flattened here.
        observation_dtype: uint8 (scaled by 1/255), float32 or bool (taken as they are), or fields of these, put side
            by side in the order of their names.
        action_space: which decides the width of the heads.
        head: of the Q-learning family (None: policy and value).
    """

    def __init__(
        self,
        config: NetworkConfig,
        observation_shape: tuple[int, ...],
        observation_dtype: Any,
        action_space: ActionSpace,
        head: QHead | None = None,
    ) -> None:
        self._hidden = config.hidden_layers or MLP_HIDDEN
        self._activation = config.activation
        tensors: Tensors = []
        for tower, width in heads_of(action_space, head).items():
            widths = (inputs_of(observation_shape, observation_dtype), *self._hidden, width)
            gain = 1.0 if head is None and tower == "value" else 0.01
            tensors += tower_tensors(tower, widths, gain, layer_norm=config.layer_norm)
        tensors += deviation_tensors(action_space)
        super().__init__("mlp", tensors, observation_dtype, action_space, "float32", head)

    def outputs(self, prepared: dict[str, Any], observations: Any) -> dict[str, Any]:
        """Of each tower, <float32>[B, width], for observations [B, ...]."""
        inputs = flat_observations(self.observed(prepared, observations), self.observation_scale)
        activation = activation_named(self._activation, "tanh")
        return {
            tower: tower_outputs(prepared, tower, len(self._hidden), inputs, activation)
            for tower in heads_of(self.action_space, self.head)
        }
