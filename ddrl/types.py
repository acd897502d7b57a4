"""Records that pass between the four concerns (algorithm, schedule, exchange, placement).

Arrays are NumPy on the host; nothing here imports TensorFlow. Shapes use B for a batch of
data-points or simulators, T for steps, N for the length of the flat parameter vector. An observation is an array,
<uint8, bool or float32>[B, ...], or of several fields: <structured>[B], see `ddrl.structured`.

The names `behaviour_log_prob` and `behaviour_version` keep their British spelling, as checkpoints and the losses of
plugins have them.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np


class Snapshot(NamedTuple):
    """One immutable version of the parameters.

    Attributes:
        version: number of optimizer updates behind `parameters`.
        step: the slot that the next gradient belongs to (a refused step advances `step` only).
        parameters: <float32>[N], read-only. A TensorFlow tensor may stand in its place once a process
            has put it on its device.
    """

    version: int
    step: int
    parameters: Any


class DataPoints(NamedTuple):
    """What a learner trains on: B independent (state, action, return) triples.

    Attributes:
        observation: [B, ...] as the environment gave it.
        action: <int32>[B], or <int32>[B, K].
        return_: <float32>[B] n-step or lambda-return of the transformed (clipped) rewards, bootstrapped.
        behaviour_log_prob: <float32>[B] log-probability of `action` when it was taken.
        behaviour_version: <int64>[B] version of the parameters that chose `action`.
    """

    observation: np.ndarray
    action: np.ndarray
    return_: np.ndarray
    behaviour_log_prob: np.ndarray
    behaviour_version: np.ndarray


class Transitions(NamedTuple):
    """A minibatch of M transitions with advantages computed when they were gathered: A2C, PPO.

    Attributes:
        observation: [M, ...] as the environment gave it.
        action: <int32>[M] or [M, K], or <float32>[M, A] as drawn, before an environment clips it.
        advantage: <float32>[M] `ddrl.ops.returns.generalized_advantages`, normalized or not.
        return_: <float32>[M] advantage, not normalized, plus `value`: what the value learns.
        value: <float32>[M] by the policy that acted.
        behaviour_log_prob: <float32>[M] log-probability of `action` when it was taken.
        weight: <float32>[M] 1, or 0 for a row to ignore (the action after an episode's end).
        behaviour_version: <int64>[M] version of the parameters that chose `action`.
    """

    observation: Any
    action: Any
    advantage: Any
    return_: Any
    value: Any
    behaviour_log_prob: Any
    weight: Any
    behaviour_version: Any


class Unroll(NamedTuple):
    """T steps of B simulators, time first.

    An episode that ends at step t leaves its final observation in row t + 1. The action on that observation is
    ignored (the next step gives the first observation of the next episode), so row t + 1 is not valid.

    Attributes:
        observation: [T+1, B, ...]; row T is where the unroll stopped.
        action: <int32>[T, B] or [T, B, K], or <float32>[T, B, A] as drawn.
        reward: <float32>[T, B] of the action at step t, transformed (clipped).
        discount: <float32>[T, B] gamma, or 0 where the episode terminated at step t.
        continues: <float32>[T, B] 1 where step t + 1 belongs to the same episode, 0 where step t terminated or
            truncated it.
        valid: <float32>[T, B] 0 for the action that is ignored after an episode's end, else 1.
        value: <float32>[T+1, B] by the policy that acted.
        behaviour_log_prob: <float32>[T, B] log-probability of `action` when it was taken.
        behaviour_version: <int64>[T, B] version of the parameters that chose `action`.
    """

    observation: Any
    action: Any
    reward: Any
    discount: Any
    continues: Any
    valid: Any
    value: Any
    behaviour_log_prob: Any
    behaviour_version: Any


class Replayed(NamedTuple):
    """M transitions of n steps as a replay gives them, with their targets: for the Q-learning family, DPG and SAC.

    Attributes:
        observation: [M, ...] where the action was taken.
        action: <int32>[M], or <float32>[M, A].
        reward: <float32>[M] discounted sum of the (transformed) rewards of the steps, at most n.
        discount: <float32>[M] factor on the value of `next_observation`: gamma^k after k steps, 0 after a termination.
        next_observation: [M, ...] after the steps.
        weight: <float32>[M] importance weight, 1 where sampling is uniform.
        behaviour_version: <int64>[M] version of the parameters that chose `action`.
        key: <int64>[M] names the transition, for `set_priorities`.
        target: targets for the value of the action, if they are computed ahead of the update: <float32>[M] returns, or
            <float32>[M, atoms] their distribution. With double Q-learning <float32>[M, A] or [M, A, atoms]: the target
            for each next action, of which the loss chooses one.
    """

    observation: Any
    action: Any
    reward: Any
    discount: Any
    next_observation: Any
    weight: Any
    behaviour_version: Any
    key: Any
    target: Any = None


class Discrete(NamedTuple):
    """Actions 0 .. count - 1, <int32>[B]; the policy is `count` logits."""

    count: int  # type: ignore[assignment] # hides tuple.count

    @property
    def counts(self) -> tuple[int, ...]:
        """Actions of each component, of which there is one."""
        return (self.count,)

    @property
    def head_size(self) -> int:
        """Outputs of a network's policy head."""
        return self.count

    @property
    def policy_size(self) -> int:
        """Parameters of the policy per observation."""
        return self.count

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of one action."""
        return ()

    @property
    def action_dtype(self) -> np.dtype:
        """Of one component of an action."""
        return np.dtype(np.int32)


class Continuous(NamedTuple):
    """Actions <float32>[B, A] within bounds; the policy is A means, then A logarithms of standard deviations.

    Attributes:
        low: smallest value of each of the A components; environments clip what a policy draws beyond.
        high: largest.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def head_size(self) -> int:
        """Outputs of a network's policy head: the means."""
        return len(self.low)

    @property
    def policy_size(self) -> int:
        """Parameters of the policy per observation."""
        return 2 * len(self.low)

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of one action."""
        return (len(self.low),)

    @property
    def action_dtype(self) -> np.dtype:
        """Of one component of an action."""
        return np.dtype(np.float32)


class MultiDiscrete(NamedTuple):
    """Actions of K components, <int32>[B, K], component k in 0 .. counts[k] - 1; the policy is the logits of all
    components, one after the other.
    """

    counts: tuple[int, ...]

    @property
    def head_size(self) -> int:
        """Outputs of a network's policy head."""
        return sum(self.counts)

    @property
    def policy_size(self) -> int:
        """Parameters of the policy per observation."""
        return sum(self.counts)

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of one action."""
        return (len(self.counts),)

    @property
    def action_dtype(self) -> np.dtype:
        """Of one component of an action."""
        return np.dtype(np.int32)


ActionSpace = Discrete | Continuous | MultiDiscrete


class QHead(NamedTuple):
    """What a network of the Q-learning family gives for every action, in place of a policy and a value.

    Attributes:
        dueling: value and advantages are separate, each with a hidden layer of its own.
        atoms: number of atoms of each return's distribution (0: expected returns).
        value_min: return of the first atom.
        value_max: return of the last atom.
    """

    dueling: bool = False
    atoms: int = 0
    value_min: float = -10.0
    value_max: float = 10.0


class PolicyValue(NamedTuple):
    """What acting needs of a network: policy <float32>[B, P] and value <float32>[B].

    `policy` parametrizes the distribution of the actions: logits, or means and logarithms of standard deviations.
    With a `QHead` it is the expected return of each action, and `value` the largest. A network that itself gives
    continuous actions has the action to take in evaluations in the first A columns.
    """

    policy: Any
    value: Any


class LossContext(NamedTuple):
    """What a loss may read beside parameters and batch.

    Attributes:
        anneal: <float32>[] the share of the linear schedules that is left, from 1 to 0.
        target: <float32>[N] parameters of the target networks; for an algorithm that learns from rollouts, those with
            which the rollout began. None if the algorithm does not ask for them.
        key: <int32>[2] seed of `tf.random.stateless_*`, another one for each gradient; None if it is not asked for.
    """

    anneal: Any = 1.0
    target: Any = None
    key: Any = None


class LossOutput(NamedTuple):
    """Scalar loss to minimize, the scalars to log (name -> scalar), and per-sample priorities or None."""

    loss: Any
    metrics: dict[str, Any]
    priorities: Any = None


class Machine(NamedTuple):
    """The resources of the machine for a local run.

    Attributes:
        cores: number of cores that the run may use.
        memory_bytes: bytes of free memory.
        bfloat16: it has a processor with instructions for bfloat16, or a GPU; other processors emulate the type.
    """

    cores: int
    memory_bytes: float
    bfloat16: bool = False

    @property
    def faster_dtype(self) -> Literal["float32", "bfloat16"]:
        """The type in which networks compute faster on this machine."""
        return "bfloat16" if self.bfloat16 else "float32"


class EpisodeEnd(NamedTuple):
    """One finished episode: raw (unclipped) score, length in agent steps, number of the simulator."""

    score: float
    agent_steps: int
    env_id: int
