"""Actions of evaluation games: the greedy ones, some of them random, or draws from the policy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ddrl.errors import UsageError
from ddrl.ops.action_masks import legal
from ddrl.ops.draws import draw_for, greedy_actions, random_instead, several_uniforms
from ddrl.structured import split_components
from ddrl.types import ActionSpace, Continuous, MultiDiscrete

Policy = Callable[[np.ndarray], np.ndarray]
"""observations [b, ...] -> the policy's outputs <float>[b, P]: logits or values of actions, or means and logarithms of
deviations, or continuous actions; b varies, a policy with a fixed shape pads itself."""

Act = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(observations [b, ...], their rows <int>[b] among those of all environments) -> actions [b, ...]."""


class GreedyActions:
    """The largest logit's action, and action 1, if it is legal, from the n-th identical choice in a row on.

    The rule counts what the policy chose, not what was sent, so it lets go when the policy changes its
    mind; after Adamski et al., 2018 (30 identical actions force action 1). n = 0 switches it off.

    Args:
        policy: of discrete actions.
        num_envs: rows of all environments together.
        repeat_fire_after: n, identical choices in a row.
        epsilon: probability of a random action instead, whatever the policy chose.
        seed: of the random actions.

    Attributes:
        forced: actions that the rule has put in place of others.
    """

    def __init__(
        self, policy: Policy, num_envs: int, repeat_fire_after: int, epsilon: float = 0.0, seed: int = 0
    ) -> None:
        self._policy, self._limit, self._epsilon, self._seed = policy, repeat_fire_after, epsilon, seed
        self._steps = np.zeros(num_envs, np.int64)
        self._last = np.full(num_envs, -1, np.int32)
        self._run = np.zeros(num_envs, np.int64)
        self.forced = 0

    def begin(self, rows: np.ndarray) -> None:
        """The environments `rows` <int>[b] show new games: what was chosen in those before counts no more."""
        self._last[rows] = -1

    def __call__(self, observations: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """<int32>[b] for observations [b, ...] of the environments `rows` <int>[b]."""
        logits = _outputs(self._policy, observations)
        choice = logits.argmax(axis=1).astype(np.int32)
        self._run[rows] = np.where(choice == self._last[rows], self._run[rows] + 1, 1)
        self._last[rows] = choice
        stuck = self._run[rows] >= self._limit if self._limit else np.zeros(len(rows), bool)
        stuck &= (choice != 1) & legal(logits)[:, 1:2].any(axis=1)
        self.forced += int(stuck.sum())
        return self._explore(np.where(stuck, 1, choice).astype(np.int32), rows, logits)

    def _explore(self, actions: np.ndarray, rows: np.ndarray, logits: np.ndarray) -> np.ndarray:
        if not self._epsilon:
            return actions
        numbers = several_uniforms(self._seed, rows, self._steps[rows], 2).T
        self._steps[rows] += 1
        return random_instead(actions, logits, self._epsilon, *numbers)


class GreedyComponents:
    """The largest logit's action of each component.

    Args:
        policy: its outputs are logits of all components.
        space: of the actions.
        num_envs: rows of all environments together.
        epsilon: probability that all components are random instead, among the legal ones.
        seed: of the random actions.
    """

    def __init__(
        self, policy: Policy, space: MultiDiscrete, num_envs: int, epsilon: float = 0.0, seed: int = 0
    ) -> None:
        self._policy, self._space, self._epsilon, self._seed = policy, space, epsilon, seed
        self._steps = np.zeros(num_envs, np.int64)

    def __call__(self, observations: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """<int32>[b, K] for observations [b, ...] of the environments `rows` <int>[b]."""
        outputs = _outputs(self._policy, observations)
        actions = greedy_actions(self._space, outputs)
        if not self._epsilon:
            return actions
        parts = split_components(self._space, outputs)
        explore, *which = several_uniforms(self._seed, rows, self._steps[rows], 1 + len(parts)).T
        self._steps[rows] += 1
        drawn = [random_instead(a, p, self._epsilon, explore, w) for a, p, w in zip(actions.T, parts, which)]
        return np.stack(drawn, axis=1).astype(np.int32)


class DrawnActions:
    """Actions drawn from the policy, as training draws them.

    Args:
        space: of the actions.
        policy: its outputs are the parameters of a distribution.
        num_envs: rows of all environments together.
        seed: of the draws.
    """

    def __init__(self, space: ActionSpace, policy: Policy, num_envs: int, seed: int) -> None:
        self._policy, self._draw, self._seed = policy, draw_for(space), seed
        self._steps = np.zeros(num_envs, np.int64)

    def __call__(self, observations: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Actions [b, ...] for observations [b, ...] of the environments `rows` <int>[b]."""
        actions, _ = self._draw(_outputs(self._policy, observations), self._seed, rows, self._steps[rows])
        self._steps[rows] += 1
        return actions


def actions_for(
    space: ActionSpace,
    policy: Policy,
    rows: int,
    repeat_fire_after: int,
    epsilon: float = 0.0,
    seed: int = 0,
    drawn: bool = False,
) -> Act:
    """What turns observations of some of `rows` rows into the actions of an evaluation.

    Args:
        space: of the environments.
        policy: of a network.
        rows: of all environments together.
        repeat_fire_after, epsilon, seed: as in GreedyActions; continuous actions do without.
        drawn: from the policy, with `seed` alone of these.
    """
    if drawn:
        return DrawnActions(space, policy, rows, seed)
    if isinstance(space, Continuous):
        return lambda observations, rows: greedy_actions(space, _outputs(policy, observations))
    if isinstance(space, MultiDiscrete):
        return GreedyComponents(policy, space, rows, epsilon, seed)
    return GreedyActions(policy, rows, repeat_fire_after, epsilon, seed)


def _outputs(policy: Policy, observations: np.ndarray) -> np.ndarray:
    outputs = np.asarray(policy(observations), np.float32)
    if outputs.shape[:1] != (len(observations),):
        problem = f"outputs of shape {outputs.shape} for {len(observations)} observations"
        raise UsageError(f"the policy gave {problem}; use a checkpoint for this game")
    if not np.isfinite(outputs).all():
        remedy = "use an earlier checkpoint, or train with a lower --learning-rate"
        raise UsageError(f"the policy gave outputs that are not finite; {remedy}")
    return outputs
