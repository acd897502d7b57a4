"""Counts what a worker sees for the running statistics: moments of observations and of discounted returns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ddrl.envs import Step
from ddrl.exchange.statistics import Moments, Statistics, block_size, merged_moments, moments_of, packed, unpacked
from ddrl.networks.normalization import LIMIT, Normalization, reward_scale
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.sampling.pool import DrawnPoints
from ddrl.structured import float_rows
from ddrl.types import DataPoints, Unroll


class RunningReturns:
    """Normalizes the rewards of an actor's simulators, and counts the moments of their discounted returns.

    The discounted return R of a simulator begins at 0 in each episode, and each step makes it discount R + r. A reward
    is divided by the standard deviation of R in the statistics of the version that acts, and clipped to +-LIMIT. That
    is the scheme of Gymnasium's NormalizeReward and Stable-Baselines3's VecNormalize, with the deviation over all
    workers.

    Args:
        simulators: B.
        discount: per agent step.
        transform_reward: raw rewards -> rewards before they are normalized.
        life_loss_terminal: whether a lost life counts as an episode's end.
        scales: whether rewards are divided here; those in a replay are divided when they are drawn, all by the same
            deviation.
    """

    def __init__(
        self,
        simulators: int,
        discount: float,
        transform_reward: Callable[[np.ndarray], np.ndarray],
        life_loss_terminal: bool,
        scales: bool,
    ):
        self.discount, self.transform_reward, self.scales = discount, transform_reward, scales
        self.life_loss_terminal = life_loss_terminal
        self._returns = np.zeros(simulators)
        self._sums = np.zeros(3)  # count, sum and sum of squares of the returns since the last `take`
        self._scale = np.float32(1.0)
        self._lock = threading.Lock()  # the trainer's thread calls `take`

    def use(self, parameters: Any) -> None:
        """Takes the deviation for the rewards from the parameters <float32>[N] that act from now on."""
        if self.scales:
            self._scale = reward_scale(np.asarray(parameters[-block_size(1) :]))

    def of(self, step: Step) -> np.ndarray:
        """The rewards <float32>[b] of a step as they are learned from; also counts the step's returns."""
        rewards, ids = self.transform_reward(step.reward), step.env_id
        with np.errstate(all="ignore"):  # for infinite rewards, whose gradient will be refused
            returns = self.discount * self._returns[ids] + rewards
            counted = returns[step.valid]
            with self._lock:
                self._sums += len(counted), counted.sum(), np.square(counted).sum()
        ended = step.terminated | step.truncated | (step.life_lost & self.life_loss_terminal) | ~np.isfinite(returns)
        self._returns[ids] = np.where(ended | ~step.valid, 0.0, returns)
        return np.clip(rewards * self._scale, -LIMIT, LIMIT) if self.scales else rewards

    def reset(self) -> None:
        """New episodes begin everywhere."""
        self._returns[:] = 0.0

    def take(self) -> Moments:
        """The moments of the returns since the last call."""
        with self._lock:
            (count, total, squares), self._sums = self._sums, np.zeros(3)
        mean = total / max(count, 1.0)
        variance = squares / max(count, 1.0) - mean * mean  # in float64, over a short time
        return Moments(float(count), np.array([mean]), np.maximum(np.array([variance]), 0.0))

    def get_state(self) -> dict[str, np.ndarray]:
        """The returns under way and what was counted since the last `take`, for a checkpoint."""
        return {"returns": self._returns.copy(), "sums": self._sums.copy()}

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """The inverse; what is missing, or of another number of simulators, begins at 0."""
        self._returns[:], self._sums = 0.0, np.zeros(3)
        if "sums" in state:
            self._sums = state["sums"].copy()
        if len(state.get("returns", ())) == len(self._returns):
            self._returns[:] = state["returns"]


class Seen:
    """Makes what the gradients of a worker carry for the running statistics: moments of what it saw, <float32>[S].

    Args:
        normalization: what the network normalizes.
        components: number of floats in an observation.
        returns: those of the actors, in their order; empty if rewards are not normalized.
        metrics: of this rank.
    """

    def __init__(
        self, normalization: Normalization, components: int, returns: Sequence[RunningReturns], metrics: RankMetrics
    ):
        self._normalization, self._returns, self._metrics = normalization, tuple(returns), metrics
        widths = (components,) * normalization.observations + (1,) * normalization.rewards
        self.statistics = Statistics(0, widths)
        self._told = False

    def of_batch(self, batch: DataPoints | Unroll) -> np.ndarray:
        """The moments <float32>[S] of a batch; if it is from a pool, without data-points that were in earlier ones."""
        if isinstance(batch, Unroll):
            return self.of_unroll(batch)
        first = batch.first if isinstance(batch, DrawnPoints) else np.ones(len(batch.action), bool)
        return self._of(batch.observation, first)

    def of_unroll(self, unroll: Unroll, left_out: np.ndarray | None = None) -> np.ndarray:
        """The moments <float32>[S] of the valid states of an unroll [T, B], except those `left_out` <bool>[T, B]."""
        counted = unroll.valid > 0
        return self._of(unroll.observation[: len(counted)], counted if left_out is None else counted & ~left_out)

    def _of(self, observations: np.ndarray, counted: np.ndarray) -> np.ndarray:
        """The moments <float32>[S] of the counted observations, and of the returns since the last call.

        They are not finite if observations or rewards were not; then an event says so.
        """
        blocks = []
        if self._normalization.observations:
            rows = float_rows(observations[counted])
            blocks.append(("component {} of the observations", moments_of(rows)))
        if self._normalization.rewards:
            moments = self._returns[0].take()
            for returns in self._returns[1:]:
                moments = merged_moments(moments, returns.take())
            blocks.append(("the discounted return", moments))
        vector = np.concatenate([packed(moments) for _, moments in blocks])
        if not np.isfinite(vector).all():
            self._tell([(name, moments) for name, moments in blocks if not np.isfinite(packed(moments)).all()])
        return vector

    def _tell(self, wrong: list[tuple[str, Moments]]) -> None:
        if self._told:
            return
        self._told = True
        name, moments = wrong[0]
        _, mean, variance = unpacked(packed(moments))  # what float32 holds of them
        first = int(np.argmin(np.isfinite(mean) & np.isfinite(variance)))
        text = (
            f"{name.format(first)} that {self._metrics.role} {self._metrics.index} saw is NaN, infinite, or too large "
            "for the running statistics; its gradient is refused, and later ones are not reported"
        )
        self._metrics.event("statistics_not_finite", text)
