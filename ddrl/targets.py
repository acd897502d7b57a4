"""The targets of Q-learning, compiled: what a replay gives -> what the values of its actions should be."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from ddrl.algorithms import DQNConfig
from ddrl.algorithms.dqn_loss import targets
from ddrl.errors import UsageError
from ddrl.learner import Preparation
from ddrl.networks.network import Network
from ddrl.types import Replayed


class TargetFunction:
    """Targets for any number of transitions, computed in chunks of one size.

    The last chunk is padded. A row's target has the same bits whatever rows are beside it, so the minibatches of many
    updates may be done at once, as long as the chunks' size is the same.

    Args:
        network: with a Q head.
        algorithm: settings of the targets.
        observation_shape: of one observation.
        observation_dtype: uint8 or float32.
        chunk: transitions at once.

    Attributes:
        trace_count: times that a function was traced: constant after construction.
    """

    def __init__(
        self,
        network: Network,
        algorithm: DQNConfig,
        observation_shape: tuple[int, ...],
        observation_dtype: Any,
        chunk: int,
    ) -> None:
        if chunk < 1:
            raise UsageError(f"chunks of {chunk} transitions: give at least 1")
        self._network, self._algorithm, self._chunk = network, algorithm, chunk
        self._target = Preparation(network)
        self.trace_count = 1
        column = tf.TensorSpec([chunk], tf.float32)
        observation = tf.TensorSpec([chunk, *observation_shape], tf.as_dtype(observation_dtype))
        signature = [column, column, observation, self._target.specs]
        self._compiled = tf.function(self._trace, input_signature=signature, autograph=False).get_concrete_function()

    def __call__(self, target: np.ndarray | tf.Tensor, batch: Replayed) -> np.ndarray:
        """Targets of M >= 1 transitions, as `ddrl.algorithms.dqn_loss.targets`.

        Args:
            target: <float32>[N] theta^-. A tensor from `as_device_vector` is prepared once.
            batch: arrays; `reward`, `discount` and `next_observation` are used.
        """
        prepared = self._target(target)
        arrays = (batch.reward, batch.discount, batch.next_observation)
        pieces = [
            self._piece([array[start : start + self._chunk] for array in arrays], prepared)
            for start in range(0, len(batch.reward), self._chunk)
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _piece(self, arrays: list[np.ndarray], prepared: Any) -> np.ndarray:
        count = len(arrays[0])
        if count < self._chunk:
            arrays = [np.concatenate([x, np.zeros((self._chunk - count, *x.shape[1:]), x.dtype)]) for x in arrays]
        return np.asarray(self._compiled(*map(tf.convert_to_tensor, arrays), prepared))[:count]

    def _trace(self, reward, discount, next_observation, target):
        self.trace_count += 1
        unused = dict.fromkeys(Replayed._fields)
        batch = Replayed(**unused | {"reward": reward, "discount": discount, "next_observation": next_observation})
        return targets(self._network, target, batch, self._algorithm)
