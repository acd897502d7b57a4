"""Rollouts: T steps of all simulators of a worker in arrays of one fixed shape, and the actors that fill them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ddrl.envs import VectorEnvironment
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.sampling.actor import Actor, ActorOptions, PolicyFunction
from ddrl.structured import whole
from ddrl.types import ActionSpace, Snapshot, Unroll

if TYPE_CHECKING:
    from typing_extensions import Required, Unpack

POLL_SECONDS = 0.1  # how soon a thread that waits sees that it should end


class Ended(Exception):
    """The schedule was stopped in the middle of a rollout."""


def empty_unroll(
    steps: int,
    simulators: int,
    observation_shape: tuple[int, ...],
    observation_dtype: np.dtype,
    action_space: ActionSpace,
) -> Unroll:
    """Arrays for an unroll, all zero.

    Args:
        steps: T.
        simulators: B.
        observation_shape: of one observation.
        observation_dtype: of one.
        action_space: gives shape and dtype of the actions.
    """
    shape = (steps, simulators)
    after = (steps + 1, simulators)
    return Unroll(
        observation=np.zeros((*after, *observation_shape), observation_dtype),
        action=np.zeros((*shape, *action_space.action_shape), action_space.action_dtype),
        reward=np.zeros(shape, np.float32),
        discount=np.zeros(shape, np.float32),
        continues=np.zeros(shape, np.float32),
        valid=np.zeros(shape, np.float32),
        value=np.zeros(after, np.float32),
        behaviour_log_prob=np.zeros(shape, np.float32),
        behaviour_version=np.zeros(shape, np.int64),
    )


def columns(unroll: Unroll, start: int, stop: int) -> Unroll:
    """The simulators start .. stop - 1 of an unroll, as views."""
    return Unroll(*(array[:, start:stop] for array in unroll))


def time_slice(unroll: Unroll, start: int, stop: int) -> Unroll:
    """The steps start .. stop - 1 of an unroll, as views."""
    steps = len(unroll.reward)
    return Unroll(*(array[start : stop + (len(array) - steps)] for array in unroll))


class RolloutOptions(ActorOptions, total=False):
    """Keyword arguments of `RolloutActor`."""

    discount: Required[Callable[[int], float]]
    transform_reward: Required[Callable[[np.ndarray], np.ndarray]]
    life_loss_terminal: Required[bool]
    ended: Required[threading.Event]
    last_value: bool


class RolloutActor(Actor):
    """An actor that fills its columns of a rollout.

    Args:
        discount: per agent step, by the version that chose the action.
        transform_reward: raw rewards -> rewards to learn from (clipping, scale).
        life_loss_terminal: whether a lost life counts as a termination.
        ended: set when the schedule stops.
        last_value: whether the value of the last observation is needed; otherwise it is not inferred.
    """

    def __init__(
        self,
        environment: VectorEnvironment,
        policy: PolicyFunction,
        metrics: RankMetrics,
        *,
        discount: Callable[[int], float],
        transform_reward: Callable[[np.ndarray], np.ndarray],
        life_loss_terminal: bool,
        ended: threading.Event,
        last_value: bool = True,
        **options: Unpack[ActorOptions],
    ):
        super().__init__(environment, policy, metrics, **options)
        self.discount, self.transform_reward = discount, transform_reward
        self.life_loss_terminal, self.ended, self.last_value = life_loss_terminal, ended, last_value

    def fill(self, out: Unroll, newest: Callable[[], Snapshot], refresh_every: int = 0) -> None:
        """Acts for as many steps as `out` has.

        Args:
            out: this actor's columns.
            newest: gives the parameters to act with; asked at the beginning, and after every `refresh_every` steps
                (0: not again).

        Raises:
            Ended: the schedule was stopped.
        """
        snapshot = newest()
        if self.received:
            self.infer(snapshot)  # the observations at hand were last seen by older parameters
        else:
            self.receive(snapshot)
        steps = len(out.reward)
        for t in range(steps):
            if self.ended.is_set():
                raise Ended
            if refresh_every and t and t % refresh_every == 0:
                snapshot = newest()
                self.infer(snapshot)
            self._write_state(out, t)
            self.act()
            self._write_action(out, t)
            if self.last_value or t + 1 < steps:
                self.receive(snapshot)
            else:
                self.observe()
            self._write_outcome(out, t)
        self._write_state(out, steps)

    def _write_state(self, out: Unroll, t: int) -> None:
        step = self.step
        _put(whole(out.observation[t]), step.env_id, whole(step.observation))
        _put(out.value[t], step.env_id, self.value)

    def _write_action(self, out: Unroll, t: int) -> None:
        ids = self.step.env_id
        _put(out.action[t], ids, self.action)
        _put(out.behaviour_log_prob[t], ids, self.log_prob)
        out.behaviour_version[t] = self.version

    def _write_outcome(self, out: Unroll, t: int) -> None:
        """Writes what the actions led to. The reward of an action that was ignored is 0."""
        step = self.step
        ids = step.env_id
        terminal = step.terminated | (step.life_lost & self.life_loss_terminal)
        goes_on = step.valid & ~terminal
        _put(out.reward[t], ids, self.transform_reward(step.reward))
        _put(out.discount[t], ids, np.where(goes_on, np.float32(self.discount(self.version)), np.float32(0.0)))
        _put(out.continues[t], ids, goes_on & ~step.truncated)
        _put(out.valid[t], ids, step.valid)


class UnrollBatcher:
    """Puts unrolls of groups side by side until a batch has `simulators` columns. Any thread may add."""

    def __init__(self, simulators: int):
        self._simulators, self._lock = simulators, threading.Lock()
        self._unrolls: list[Unroll] = []

    def add(self, unroll: Unroll) -> list[Unroll]:
        """Adds an unroll [T, B]; returns the batches [T, simulators] that became full. B divides `simulators`."""
        with self._lock:
            self._unrolls.append(unroll)
            if sum(part.reward.shape[1] for part in self._unrolls) < self._simulators:
                return []
            parts, self._unrolls = self._unrolls, []
        if len(parts) == 1:
            return parts
        return [Unroll(*(np.concatenate(arrays, axis=1) for arrays in zip(*parts, strict=True)))]


class UnrollActor(RolloutActor):
    """An actor that produces unrolls one after the other, for IMPALA.

    Args:
        make_unroll: new arrays for one unroll of its simulators.
        batcher: shared with the actors of the other groups.
    """

    def __init__(
        self,
        environment: VectorEnvironment,
        policy: PolicyFunction,
        metrics: RankMetrics,
        *,
        make_unroll: Callable[[], Unroll],
        batcher: UnrollBatcher,
        **options: Unpack[RolloutOptions],
    ):
        super().__init__(environment, policy, metrics, **options)
        self._make_unroll, self._batcher = make_unroll, batcher

    def advance(self, newest: Callable[[], Snapshot]) -> list[Unroll]:
        """Acts for an unroll, with the newest parameters at its beginning; returns the batches that became full."""
        unroll = self._make_unroll()
        try:
            self.fill(unroll, newest)
        except Ended:
            return []
        return self._batcher.add(unroll)


def _put(target: np.ndarray, ids: np.ndarray, values: np.ndarray) -> None:
    """target[ids] = values; a plain copy where the rows are in order, as they are when all come at once."""
    if ids[0] == 0 and (np.diff(ids) == 1).all():
        target[:] = values
    else:
        target[ids] = values
