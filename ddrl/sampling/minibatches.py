"""Cutting a rollout into the batches that gradients are taken of."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from ddrl.ops.returns import generalized_advantages
from ddrl.sampling.rollouts import time_slice
from ddrl.types import Transitions, Unroll


def transitions_of(rollout: Unroll, unroll_length: int, gae_lambda: float) -> Transitions:
    """All steps of a rollout [T, B] as T B transitions, time first, with advantages.

    Advantages reach to the end of their unroll of `unroll_length` steps, where the value of the policy that acted
    bootstraps (Schulman et al. 2016; with lambda 1, the n-step returns of Mnih et al. 2016).

    Args:
        rollout: [T, B], with values [T+1, B].
        unroll_length: agent steps, a divisor of T.
        gae_lambda: in [0, 1].
    """
    steps, simulators = rollout.reward.shape
    advantage, return_ = np.empty_like(rollout.reward), np.empty_like(rollout.reward)
    for start in range(0, steps, unroll_length):
        stop = start + unroll_length
        unroll = time_slice(rollout, start, stop)
        advantage[start:stop], return_[start:stop] = generalized_advantages(
            unroll.reward, unroll.discount, unroll.continues, unroll.valid, unroll.value, gae_lambda
        )
    rows = steps * simulators

    def flat(array: np.ndarray) -> np.ndarray:
        return array[:steps].reshape(rows, *array.shape[2:])

    return Transitions(
        observation=flat(rollout.observation),
        action=flat(rollout.action),
        advantage=flat(advantage),
        return_=flat(return_),
        value=flat(rollout.value),
        behaviour_log_prob=flat(rollout.behaviour_log_prob),
        weight=flat(rollout.valid),
        behaviour_version=flat(rollout.behaviour_version),
    )


def normalized(advantage: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Advantages <float32>[M] minus their mean, divided by their standard deviation, both of the rows of weight 1."""
    counted = advantage[weight > 0]
    if not len(counted):
        return advantage
    return (advantage - counted.mean()) / (counted.std() + np.float32(1e-8))


class Minibatches:
    """Cuts a rollout into the batches of its gradients: all its transitions `epochs` times, in batches of one size.

    With `shuffle` every epoch has its own order, drawn from (seed, number of the rollout, epoch) alone. Without it,
    the order is that of the steps, and a batch has some consecutive steps of all simulators.

    Args:
        unroll_length: steps to which an advantage reaches at most.
        gae_lambda: of the advantages, in [0, 1].
        batch_size: transitions per gradient; it divides those of a rollout.
        epochs: times that each transition is learned from.
        shuffle: whether an epoch has an order of its own.
        normalize: whether advantages are normalized in each batch.
        seed: of the orders.
    """

    _transitions: Transitions  # of the rollout that `start` was given

    def __init__(
        self,
        unroll_length: int,
        gae_lambda: float,
        batch_size: int,
        *,
        epochs: int = 1,
        shuffle: bool = False,
        normalize: bool = False,
        seed: tuple[int, ...] = (),
    ):
        self.unroll_length, self.gae_lambda = unroll_length, gae_lambda
        self.batch_size, self.epochs, self.shuffle = batch_size, epochs, shuffle
        self.normalize, self.seed = normalize, seed
        self._pending: deque[np.ndarray | slice] = deque()
        self.taken = 0

    @property
    def empty(self) -> bool:
        """Whether all batches of the last rollout were taken."""
        return not self._pending

    def start(self, rollout: Unroll, number: int, taken: int = 0) -> None:
        """Begins a rollout.

        Args:
            rollout: [T, B]; without shuffling, batches are views of it.
            number: number of the rollout, from which the orders of its epochs are drawn.
            taken: how many of its batches were taken before a resume.
        """
        self._transitions = transitions_of(rollout, self.unroll_length, self.gae_lambda)
        self._pending.extend(self._order(len(self._transitions.weight), number))
        self.taken = taken
        for _ in range(taken):
            self._pending.popleft()

    def take(self) -> Transitions:
        """The next batch. Without shuffling it holds views of the rollout."""
        rows = self._pending.popleft()
        self.taken += 1
        if isinstance(rows, slice):
            batch = Transitions(*(array[rows] for array in self._transitions))
        else:  # `take` copies rows several times as fast as an index does
            batch = Transitions(*(array.take(rows, axis=0) for array in self._transitions))
        return batch._replace(advantage=normalized(batch.advantage, batch.weight)) if self.normalize else batch

    def clear(self) -> None:
        """Forgets the rollout."""
        self._pending.clear()

    def _order(self, count: int, number: int) -> Iterator[np.ndarray | slice]:
        for epoch in range(self.epochs):
            order = np.random.default_rng([*self.seed, number, epoch]).permutation(count) if self.shuffle else None
            for start in range(0, count, self.batch_size):
                rows = slice(start, start + self.batch_size)
                yield rows if order is None else order[rows]
