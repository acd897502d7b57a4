"""Drawing actions from a policy with counter-based random numbers.

The number for (seed, environment, count) is a hash of the three, so a draw depends on nothing else: not on
which thread makes it, nor on which other simulators are in the batch; and the whole state of the stream is
one counter per simulator.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ddrl.ops.action_masks import legal, nth_legal
from ddrl.structured import split_components
from ddrl.types import ActionSpace, Continuous, MultiDiscrete

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)

Draw = Callable[[np.ndarray, int, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""(policy <float32>[b, P], seed, simulator ids [b], counts [b]) -> (actions, log-probabilities <float32>[b])."""


def _mix(values: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64 (Steele, Lea, Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return values ^ (values >> np.uint64(31))


def uniforms(seed: int, simulators: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """One number in [0, 1) per simulator: <float64>[b], from ids `simulators` and `counters`, <integer>[b] both.

    Seeds count modulo 2^64, since those of evaluations are sums that may be above the largest seed of a run.
    """
    with np.errstate(over="ignore"):
        stream = _mix(np.uint64(int(seed) % 2**64) * _GAMMA + simulators.astype(np.uint64) + np.uint64(1))
        bits = _mix(stream + counters.astype(np.uint64) * _GAMMA)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def draw_for(space: ActionSpace) -> Draw:
    """The function that draws the actions of an action space."""
    if isinstance(space, MultiDiscrete):
        return _draw_components(space)
    return _draw_gaussian if isinstance(space, Continuous) else _draw_categorical


def greedy_actions(space: ActionSpace, policy: np.ndarray) -> np.ndarray:
    """The best actions by a policy <float32>[b, P], the lowest of several: <int32>[b], <int32>[b, K] of several
    components, or means <float32>[b, A]."""
    if isinstance(space, Continuous):
        return policy[:, : space.head_size]
    if isinstance(space, MultiDiscrete):
        parts = split_components(space, policy)
        return np.stack([part.argmax(axis=1) for part in parts], axis=1).astype(np.int32)
    return policy.argmax(axis=1).astype(np.int32)


def _draw_categorical(
    policy: np.ndarray, seed: int, simulators: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    return draw_actions(policy, uniforms(seed, simulators, counts))


def _draw_components(space: MultiDiscrete) -> Draw:
    """The function that draws actions <int32>[b, K] of independent components."""
    size = len(space.counts)

    def draw(
        policy: np.ndarray, seed: int, simulators: np.ndarray, counters: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        uniform = several_uniforms(seed, simulators, counters, size)
        drawn = [draw_actions(part, uniform[:, k]) for k, part in enumerate(split_components(space, policy))]
        actions, log_probs = zip(*drawn)
        return np.stack(actions, axis=1), np.asarray(sum(log_probs), np.float32)

    return draw


def draw_actions(logits: np.ndarray, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Samples one action per row of a categorical distribution by inverting its cumulative distribution.

    Args:
        logits: <float32>[b, A]; those of illegal actions are `ddrl.ops.action_masks.ILLEGAL`.
        uniform: <float64>[b] in [0, 1).

    Returns:
        Actions <int32>[b] and their log-probabilities <float32>[b].
    """
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    cumulative = np.cumsum(np.exp(shifted), axis=1)
    total = cumulative[:, -1]
    at = np.minimum(uniform * total, np.nextafter(total, 0.0))  # rounded up, it would be beyond the last legal action
    actions = (cumulative[:, :-1] <= at[:, None]).sum(axis=1)
    log_prob = shifted[np.arange(len(actions)), actions] - np.log(total)
    return actions.astype(np.int32), log_prob.astype(np.float32)


def _draw_gaussian(
    policy: np.ndarray, seed: int, simulators: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Actions <float32>[b, A] of a diagonal Gaussian."""
    return gaussian_actions(policy, normals(several_uniforms(seed, simulators, counts, policy.shape[1])))


def several_uniforms(seed: int, simulators: np.ndarray, counts: np.ndarray, size: int) -> np.ndarray:
    """`size` numbers in [0, 1) for each count of a simulator: <float64>[b, size].

    Args:
        seed: of the run.
        simulators: <integer>[b] ids.
        counts: <integer>[b] of the actions drawn in each.
        size: numbers for a count.
    """
    counters = counts[:, None] * size + np.arange(size)
    return uniforms(seed, np.repeat(simulators, size), counters.ravel()).reshape(-1, size)


def normals(uniform: np.ndarray) -> np.ndarray:
    """Standard normal numbers <float64>[b, A] of <float64>[b, 2 A] in [0, 1) (Box and Muller 1958)."""
    first, second = np.split(uniform, 2, axis=1)
    return np.sqrt(-2.0 * np.log1p(-first)) * np.cos(2.0 * math.pi * second)


def gaussian_actions(policy: np.ndarray, normal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Actions of a diagonal Gaussian from standard normal numbers.

    Args:
        policy: <float32>[b, 2 A] means, then logarithms of standard deviations.
        normal: <float64>[b, A].

    Returns:
        Actions <float32>[b, A], not clipped, and their log-probabilities <float32>[b].
    """
    mean, log_deviation = np.split(policy.astype(np.float64), 2, axis=1)
    actions = (mean + np.exp(log_deviation) * normal).astype(np.float32)
    standard = (actions - mean) * np.exp(-log_deviation)  # of the rounded action, which is what the learner sees
    log_prob = -0.5 * standard**2 - log_deviation - 0.5 * math.log(2.0 * math.pi)
    return actions, log_prob.sum(axis=1).astype(np.float32)


def epsilon_greedy(epsilon: Callable[[np.ndarray, np.ndarray], np.ndarray | float]) -> Draw:
    """The function that draws the actions of an epsilon-greedy policy over values.

    Args:
        epsilon: (simulator ids [b], counts [b]) -> probability of a random action <float>[b], or one for all.
    """

    def draw(q: np.ndarray, seed: int, simulators: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return draw_epsilon_greedy(q, epsilon(simulators, counts), *several_uniforms(seed, simulators, counts, 2).T)

    return draw


def random_instead(
    actions: np.ndarray, outputs: np.ndarray, epsilon: np.ndarray | float, explore: np.ndarray, which: np.ndarray
) -> np.ndarray:
    """`actions`, or legal ones drawn uniformly.

    Args:
        actions: <int>[b].
        outputs: <float>[b, A] logits or values, which show what is legal.
        epsilon: probability of a random action: <float>[b], or one for all.
        explore: <float64>[b] in [0, 1); the action is random where it is below epsilon.
        which: <float64>[b] in [0, 1) picks the random action.

    Returns:
        <int32>[b].
    """
    return np.where(explore < epsilon, nth_legal(outputs, which), actions).astype(np.int32)


def draw_epsilon_greedy(
    q: np.ndarray, epsilon: np.ndarray | float, explore: np.ndarray, which: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """With probability epsilon an action drawn uniformly, else the one of the largest value, the lowest of several.

    Args:
        q: <float32>[b, A].
        epsilon: <float>[b], or one for all.
        explore: <float64>[b] in [0, 1); the action is random where it is below epsilon.
        which: <float64>[b] in [0, 1) picks the random action.

    Returns:
        Actions <int32>[b], and <float32>[b] the logarithms of their probabilities epsilon / legal actions, and 1 -
        epsilon more for the greedy one.
    """
    count, greedy = legal(q).sum(axis=1), q.argmax(axis=1)
    actions = random_instead(greedy, q, epsilon, explore, which)
    probability = epsilon / count + (actions == greedy) * (1.0 - np.asarray(epsilon))
    return actions, np.log(probability).astype(np.float32)


def noisy(
    space: Continuous, deviation: float, at_random: Callable[[np.ndarray, np.ndarray], np.ndarray | bool]
) -> Draw:
    """The function that adds normal noise to the actions of a deterministic policy, and clips them to their bounds.

    Its log-probabilities are 0: what learns from such actions needs none.

    Args:
        space: with finite bounds.
        deviation: of the noise, in units of half the range of an action.
        at_random: (simulator ids [b], counts [b]) -> where actions are uniform within the bounds instead <bool>[b],
            or one for all.
    """
    low, high = np.array(space.low), np.array(space.high)
    scale = deviation * (high - low) / 2.0

    def draw(mean: np.ndarray, seed: int, simulators: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        uniform = several_uniforms(seed, simulators, counts, 2 * len(low))
        anywhere = np.broadcast_to(at_random(simulators, counts), len(mean))[:, None]
        actions = np.where(anywhere, low + uniform[:, : len(low)] * (high - low), mean + scale * normals(uniform))
        return np.clip(actions, low, high).astype(np.float32), np.zeros(len(mean), np.float32)

    return draw
