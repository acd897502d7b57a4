"""Compiled functions that algorithms with a replay need beside their gradient.

`TargetFunction` computes the targets of transitions, and `CriticFunction` the values of continuous actions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ddrl.algorithms.record import Targets
from ddrl.config import AlgorithmConfig
from ddrl.errors import UsageError
from ddrl.graph import Graph
from ddrl.lazy import tf
from ddrl.learner import Preparation, padded, with_scaled_rewards
from ddrl.networks.network import Network
from ddrl.structured import spec_of, tensors_of
from ddrl.types import Replayed


class _InChunks:
    """A function of parameters and of rows, computed in chunks of one size.

    The last chunk is padded. At equal sizes of the chunks and at an equal place in its chunk, a row's result is the
    same to the bit, whatever rows are beside it.
    """

    def __init__(self, network: Network, columns: list[tuple[tuple[int, ...], Any]], chunk: int) -> None:
        if chunk < 1:
            raise UsageError(f"chunks of {chunk} transitions: give at least 1")
        self._network, self._chunk = network, chunk
        self._columns = [(tuple(shape), np.dtype(dtype)) for shape, dtype in columns]
        self._prepare = Preparation(network)
        signature = [spec_of([chunk, *shape], dtype) for shape, dtype in columns]
        signature.append(self._prepare.specs)
        self._graph = Graph(self._of, signature)

    def _rows(self, parameters: np.ndarray | tf.Tensor, arrays: list[np.ndarray]) -> np.ndarray:
        for array, known in zip(arrays, self._columns, strict=True):
            if (array.shape[1:], array.dtype) != known:
                raise ValueError(f"{array.dtype}{list(array.shape)} is no column of {known[1]}[M, *{known[0]}]")
        prepared = self._prepare(parameters)
        pieces = [
            self._piece([array[start : start + self._chunk] for array in arrays], prepared)
            for start in range(0, len(arrays[0]), self._chunk)
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _piece(self, arrays: list[np.ndarray], prepared: list[Any]) -> np.ndarray:
        tensors = [tensor for array in arrays for tensor in tensors_of(padded(array, self._chunk))]
        return np.asarray(self._graph(*tensors, *prepared)[0])[: len(arrays[0])]

    def _of(self, *tensors: Any) -> Any:
        raise NotImplementedError


class TargetFunction(_InChunks):
    """Targets for any number of transitions.

    Args:
        network: the network of the algorithm.
        targets: the function of the algorithm that computes targets.
        settings: the settings of the algorithm.
        observation_shape: shape of one observation.
        observation_dtype: type of one observation.
        chunk: number of transitions that are computed at once.
    """

    def __init__(
        self,
        network: Network,
        targets: Targets,
        settings: AlgorithmConfig,
        observation_shape: tuple[int, ...],
        observation_dtype: Any,
        chunk: int,
    ) -> None:
        self._targets, self._settings = targets, settings
        column = ((), np.float32)
        super().__init__(network, [column, column, (observation_shape, observation_dtype)], chunk)

    def __call__(self, target: np.ndarray | tf.Tensor, batch: Replayed) -> np.ndarray:
        """Targets of M >= 1 transitions, as `targets` of the algorithm gives them.

        Args:
            target: <float32>[N] theta^-. A tensor from `as_device_vector` is prepared once.
            batch: arrays; `reward`, `discount` and `next_observation` are used.
        """
        return self._rows(target, [batch.reward, batch.discount, batch.next_observation])

    def _of(self, *tensors: Any) -> Any:
        reward, discount, next_observation, target = tensors
        unused = dict.fromkeys(Replayed._fields)
        batch = Replayed(**unused | {"reward": reward, "discount": discount, "next_observation": next_observation})
        batch = with_scaled_rewards(self._network, target, batch, self._settings)
        return self._targets(self._network, target, batch, self._settings)


class CriticFunction(_InChunks):
    """Values of any continuous actions, for a network with a critic.

    Args:
        network: the network of the algorithm.
        critic: (network, prepared parameters, observations, actions) -> q <float32>[M].
        observation_shape: shape of one observation.
        observation_dtype: type of one observation.
        chunk: number of actions that are computed at once.
    """

    def __init__(
        self,
        network: Network,
        critic: Callable[[Any, Any, Any, Any], Any],
        observation_shape: tuple[int, ...],
        observation_dtype: Any,
        chunk: int,
    ) -> None:
        self._critic = critic
        action = (network.action_space.action_shape, network.action_space.action_dtype)
        super().__init__(network, [(observation_shape, observation_dtype), action], chunk)

    def __call__(self, parameters: np.ndarray | tf.Tensor, observation: np.ndarray, action: np.ndarray) -> np.ndarray:
        """q(s, a) <float32>[M] for M >= 1.

        Args:
            parameters: <float32>[N]. A tensor from `as_device_vector` is prepared once.
            observation: [M, ...].
            action: <float32>[M, A] as the environment takes it.
        """
        return self._rows(parameters, [observation, action])

    def _of(self, *tensors: Any) -> Any:
        observation, action, prepared = tensors
        return self._critic(self._network, prepared, observation, action)
