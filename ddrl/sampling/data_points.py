"""Cutting each simulator's stream of steps into segments of at most n, and segments into data-points."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ddrl.envs import Step, VectorEnvironment
from ddrl.ops.returns import lambda_returns
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.sampling.actor import Actor, ActorOptions, PolicyFunction, part
from ddrl.sampling.batcher import Batcher
from ddrl.sampling.pool import DataPointPool
from ddrl.types import DataPoints, Snapshot

if TYPE_CHECKING:
    from typing_extensions import Unpack


class DataPointBuilder:
    """Holds the open segment of each of E simulators, as arrays [n, E].

    A segment ends after n transitions, at a termination (return bootstrapped with 0), at a truncation (with the
    value of the final observation), and, if asked for, at the loss of a life (0). Each state's return reaches
    to the segment's end, as in A3C (Mnih et al. 2016, algorithm S3).

    Args:
        simulators: E.
        unroll_length: n, in agent steps.
        observation_shape: of one observation.
        observation_dtype: of one.
        discount: per agent step, by the version that chose the action, or versions.
        transform_reward: raw rewards -> rewards of the returns (clipping).
        life_loss_terminal: whether a lost life counts as a termination.
        action_shape: of one action.
        gae_lambda: of the returns (1: n-step returns).
    """

    def __init__(
        self,
        simulators: int,
        unroll_length: int,
        observation_shape: tuple[int, ...],
        observation_dtype: np.dtype,
        discount: Callable[[Any], Any],
        transform_reward: Callable[[np.ndarray], np.ndarray],
        life_loss_terminal: bool,
        action_shape: tuple[int, ...] = (),
        gae_lambda: float = 1.0,
    ):
        n, e = unroll_length, simulators
        self.discount, self.transform_reward = discount, transform_reward
        self.life_loss_terminal, self.gae_lambda = life_loss_terminal, gae_lambda
        self.length = np.zeros(e, np.int64)
        self.observation = np.zeros((n, e, *observation_shape), observation_dtype)
        self.action = np.zeros((n, e, *action_shape), np.int32)
        self.log_prob = np.zeros((n, e), np.float32)
        self.version = np.zeros((n, e), np.int64)
        self.reward = np.zeros((n, e), np.float32)
        self.next_value = np.zeros((n, e), np.float32)  # of the observation after the action

    def close(self, step: Step, value: np.ndarray) -> DataPoints | None:
        """Adds the rewards of `step` to the open segments, and cuts those that end with it.

        Args:
            step: what the simulators answered to the actions last stored.
            value: <float32>[b] value of `step.observation`.

        Returns:
            The data-points of the segments that ended, in the order of the simulators, oldest first; or None.
        """
        n = len(self.action)
        ids, valid = step.env_id, step.valid
        terminal = step.terminated | (step.life_lost & self.life_loss_terminal)
        newest = self.length[ids[valid]] - 1, ids[valid]
        self.reward[newest] = self.transform_reward(step.reward[valid])
        self.next_value[newest] = np.where(terminal, np.float32(0.0), value)[valid]
        ended = valid & (terminal | step.truncated | (self.length[ids] == n))
        if not ended.any():
            return None
        return self._cut(ids[ended])

    def store(self, step: Step, action: np.ndarray, log_prob: np.ndarray, version: int) -> None:
        """Opens the transitions that start at `step.observation`: its action, and which version chose it.

        The action on a final observation is ignored by the environment, and so it is here.

        Args:
            step: of b simulators.
            action: <int32>[b] or [b, K].
            log_prob: <float32>[b] of the actions.
            version: of the parameters that chose them.
        """
        self.length[step.env_id[~step.valid]] = 0  # a new episode: nothing of the last one stays open
        rows = ~(step.terminated | step.truncated)
        ids = step.env_id[rows]
        at = self.length[ids]
        self.observation[at, ids] = step.observation[rows]
        self.action[at, ids] = action[rows]
        self.log_prob[at, ids] = log_prob[rows]
        self.version[at, ids] = version
        self.length[ids] += 1

    def get_state(self) -> dict[str, np.ndarray]:
        """The open segments, for a checkpoint."""
        names = ("length", "observation", "action", "log_prob", "version", "reward", "next_value")
        return {name: getattr(self, name).copy() for name in names}

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """The inverse of `get_state`; segments that were begun with another unroll length are forgotten."""
        if len(state["action"]) != len(self.action):
            self.length[:] = 0
            return
        for name, array in state.items():
            getattr(self, name)[...] = array

    def _cut(self, ids: np.ndarray) -> DataPoints:
        length = self.length[ids]
        inside = np.arange(len(self.action))[:, None] < length[None, :]
        # Beyond a segment's end the reward is 0, the discount 1, and every value the bootstrap, which is so carried on.
        rewards = np.where(inside, self.reward[:, ids], np.float32(0.0))
        discounts = np.where(inside, self.discount(self.version[:, ids]), 1.0).astype(np.float32)
        next_values = np.where(inside, self.next_value[:, ids], self.next_value[length - 1, ids])
        returns = lambda_returns(rewards, discounts, next_values, self.gae_lambda)
        self.length[ids] = 0
        column, at = np.nonzero(inside.T)
        env = ids[column]
        return DataPoints(
            self.observation[at, env],
            self.action[at, env],
            returns[at, column].astype(np.float32),
            self.log_prob[at, env],
            self.version[at, env],
        )


class DataPointActor(Actor):
    """An actor whose steps become data-points: receive, close, act, store; and again.

    Args:
        segments: the open segments of its simulators.
        batcher: gathers the data-points of all actors.
    """

    def __init__(
        self,
        environment: VectorEnvironment,
        policy: PolicyFunction,
        metrics: RankMetrics,
        *,
        segments: DataPointBuilder,
        batcher: Batcher | DataPointPool,
        **options: Unpack[ActorOptions],
    ):
        super().__init__(environment, policy, metrics, **options)
        self.segments, self.batcher = segments, batcher

    def advance(self, newest: Callable[[], Snapshot]) -> list[DataPoints]:
        """One step of all simulators with the newest parameters; the batches that it made full."""
        self.observe()
        self.infer(newest())  # of now: observations may have taken a while
        self.act()  # first, so that the simulators work while the data-points are put together
        full = self.close()
        self.store()
        return full

    def reset(self, seed: int) -> None:
        super().reset(seed)
        self.segments.length[:] = 0

    def close(self) -> list[DataPoints]:
        """Cuts the segments that ended with the last observations; returns the batches that became full."""
        points = self.segments.close(self.step, self.value)
        return self.batcher.add(points) if points is not None else []

    def store(self) -> None:
        """Opens the transitions of the actions just sent."""
        self.segments.store(self.step, self.action, self.log_prob, self.version)

    def get_state(self) -> dict[str, np.ndarray]:
        state = super().get_state()
        if "step.env_id" in state:
            state |= {f"segments.{k}": v for k, v in self.segments.get_state().items()}
        return state

    def set_state(self, state: dict[str, np.ndarray]) -> bool:
        goes_on = super().set_state(state)
        if goes_on:
            self.segments.set_state(part(state, "segments."))
        return goes_on
