"""The minibatches of a learning period: drawn from a replay that stays as it is meanwhile, with their targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from ddrl.envs.pinning import use_all_cores
from ddrl.replay.replay import Replay
from ddrl.types import Replayed, Snapshot

Targets = Callable[[Any, Replayed], np.ndarray]
"""(theta^- <float32>[N], transitions [M]) -> targets <float32>[M, ...], as `Replayed` has them."""


class ReplayBatches:
    """Draws a fixed number of minibatches in each period, as a function of (seed, period) and of the replay.

    Nothing changes within a period: priorities that come meanwhile are set at its end, and the exponent of the
    importance weights is that of its beginning. So several minibatches can be drawn at once, and their targets computed
    together, ahead of their updates. While some are learned from, a thread prepares the next ones.

    Args:
        replay: the replay to draw from.
        targets: computes the targets of transitions ahead of their updates (None: the loss computes them).
        batch_size: M.
        updates: minibatches in a period.
        ahead: minibatches drawn at once.
        importance: updates of the run so far -> exponent of the importance weights.
        seed: of the draws.

    Attributes:
        taken: minibatches of this period that were given out.
    """

    def __init__(
        self,
        replay: Replay,
        targets: Targets | None,
        *,
        batch_size: int,
        updates: int,
        ahead: int,
        importance: Callable[[int], float],
        seed: Sequence[int],
    ):
        self.replay, self.updates, self.taken = replay, updates, updates
        self._targets, self._batch_size, self._ahead = targets, batch_size, ahead
        self._importance, self._seed = importance, tuple(seed)
        self._period = self._version = 0
        self._target: Any = None  # theta^- <float32>[N] of the period
        self._drawn: Replayed | None = None  # the minibatches at hand, one after the other
        self._first = 0  # number of the first of them in the period
        # The thread that takes the first minibatch makes it, and may be pinned, since it may step the simulators, too.
        self._drawer = ThreadPoolExecutor(1, "minibatches", use_all_cores)
        self._coming: tuple[int, Future[Replayed]] | None = None  # number of the first of the next ones, and these
        self._priorities: list[tuple[np.ndarray, np.ndarray]] = []
        # Observations of the minibatches at hand and of those to come, in turns.
        self._memory = [replay.memory_for(ahead * batch_size) for _ in range(2)]

    @property
    def empty(self) -> bool:
        """Whether the period's minibatches were all given out."""
        return self.taken == self.updates

    def start(self, period: int, target: Snapshot, version: int, taken: int = 0) -> None:
        """Begins a period.

        Args:
            period: its number, from which its draws follow.
            target: theta^-.
            version: version of the run's parameters at its beginning, which is the updates by all workers so far.
            taken: how many of its minibatches were given out before a resume.
        """
        if self._coming is not None:
            wait([self._coming[1]])  # of a period that was broken off
        self._period, self._target, self._drawn, self._coming = period, target.parameters, None, None
        self._version = version
        self.taken = min(taken, self.updates)  # a resume with shorter periods has no minibatch left of a longer one

    def take(self) -> Replayed:
        """The next minibatch; its arrays hold until the one after it is taken."""
        first = self.taken - self.taken % self._ahead
        if self._drawn is None or first != self._first:
            self._drawn, self._first = self._from(first), first
        rows = slice((self.taken - first) * self._batch_size, (self.taken - first + 1) * self._batch_size)
        self.taken += 1
        return Replayed(*(None if array is None else array[rows] for array in self._drawn))

    def learned(self, batch: Replayed, priorities: np.ndarray) -> None:
        """Takes the new priorities <float32>[M] of a minibatch, which are set when the period ends."""
        if self.replay.priority_exponent:
            self._priorities.append((batch.key, priorities))

    def finish(self) -> None:
        """Ends the period: priorities become visible, in the order in which they came."""
        if self._priorities:
            self.replay.set_priorities(*(np.concatenate(arrays) for arrays in zip(*self._priorities, strict=True)))
            self._priorities = []

    def close(self) -> None:
        """Ends the thread; no minibatch may be taken afterward."""
        self._drawer.shutdown(cancel_futures=True)

    def get_state(self) -> dict[str, np.ndarray]:
        """The state from which a period under way is resumed, together with the replay."""
        keys, priorities = zip(*self._priorities, strict=True) if self._priorities else ((), ())
        return {
            "period": np.int64(self._period),
            "period.version": np.int64(self._version),
            "taken": np.int64(self.taken),
            "waiting.keys": np.concatenate(keys) if keys else np.zeros(0, np.int64),
            "waiting.priorities": np.concatenate(priorities) if priorities else np.zeros(0, np.float32),
        }

    def set_state(self, state: dict[str, np.ndarray], target: Snapshot) -> None:
        """The inverse of `get_state`; `target` has theta^-."""
        period = int(state["period"])
        version = state.get("period.version", (period - 1) * self.updates)  # which older checkpoints do not have
        self.start(period, target, int(version), int(state["taken"]))
        keys, priorities = state["waiting.keys"], state["waiting.priorities"]
        left = self.replay.may_have_priorities(keys)
        self._priorities = [(keys[left], priorities[left])] if left.any() else []

    def _from(self, first: int) -> Replayed:
        """The minibatches from number `first` of the period on; also starts to draw those after them."""
        coming, after = self._coming, first + self._ahead
        drawn = coming[1].result() if coming is not None and coming[0] == first else self._draw(first)
        self._coming = (after, self._drawer.submit(self._draw, after)) if after < self.updates else None
        return drawn

    def _draw(self, first: int) -> Replayed:
        bits = np.random.PCG64([*self._seed, self._period])
        bits.advance(first * self._batch_size)  # each earlier transition took one number
        count = min(self._ahead, self.updates - first)
        exponent = self._importance(self._version)
        self._memory.reverse()
        observation, following = (array[: count * self._batch_size] for array in self._memory[0])
        random = np.random.Generator(bits)
        drawn = self.replay.sample(random, self._batch_size, exponent, count, (observation, following))
        return drawn if self._targets is None else drawn._replace(target=self._targets(self._target, drawn))
