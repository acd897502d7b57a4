"""Drawing actions from logits with counter-based random numbers.

The number for (seed, environment, step) is a hash of the three, so a draw depends on nothing else: not on
which thread makes it, nor on which other environments are in the batch; and the whole state of the stream is
one counter per environment.
"""

from __future__ import annotations

import numpy as np

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def _mix(values: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64 (Steele, Lea, Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return values ^ (values >> np.uint64(31))


def uniforms(seed: int, environments: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """One number in [0, 1) per environment: <float64>[b], from environment ids and counters <integer>[b]."""
    with np.errstate(over="ignore"):
        stream = _mix(np.uint64(seed) * _GAMMA + environments.astype(np.uint64) + np.uint64(1))
        bits = _mix(stream + counters.astype(np.uint64) * _GAMMA)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def draw_actions(logits: np.ndarray, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Samples one action per row of a categorical distribution by inverting its cumulative distribution.

    Args:
        logits: <float32>[b, A].
        uniform: <float64>[b] in [0, 1).

    Returns:
        Actions <int32>[b] and their log-probabilities <float32>[b].
    """
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    cumulative = np.cumsum(np.exp(shifted), axis=1)
    total = cumulative[:, -1]
    actions = (cumulative[:, :-1] <= (uniform * total)[:, None]).sum(axis=1)
    log_prob = shifted[np.arange(len(actions)), actions] - np.log(total)
    return actions.astype(np.int32), log_prob.astype(np.float32)
