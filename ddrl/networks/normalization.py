"""Observations and rewards in units of their running deviations, which are tensors of the network.

`ddrl.exchange.statistics` says how these blocks look, and how they come to be.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ddrl.exchange.statistics import PREFIX, unpacked
from ddrl.lazy import tf

OBSERVATION, RETURN = PREFIX + "observation", PREFIX + "return"
MEAN, SCALE = "/mean", "/scale"  # of a block, as `prepared` has it
EPSILON = 1e-8
LIMIT = 10.0  # of normalized observations and rewards, as in Stable-Baselines3 and Gymnasium


class Normalization(NamedTuple):
    """What a network normalizes.

    Attributes:
        observations: whether observations are.
        rewards: whether rewards are.
        size: float32 values of all statistics, which are the last of the flat vector; those of the rewards at its end.
    """

    observations: bool = False
    rewards: bool = False
    size: int = 0


def prepared_blocks(tensors: dict[str, Any]) -> dict[str, Any]:
    """The named tensors with mean and scale <float32>[D] of each block in its place; no gradient passes.

    As long as nothing was seen the mean is 0 and the scale 1.
    """
    prepared = dict(tensors)
    for name in (name for name in tensors if name.startswith(PREFIX)):
        block = tf.stop_gradient(prepared.pop(name))
        mean, variance = tf.unstack(tf.reduce_sum(tf.reshape(block[2:], [2, 2, -1]), axis=1))
        scale = 1.0 / tf.sqrt(variance + EPSILON)
        prepared[name + MEAN], prepared[name + SCALE] = mean, tf.where(block[0] > 0.0, scale, tf.ones_like(scale))
    return prepared


def normalized(prepared: dict[str, Any], observations: Any, start: int = 0, stop: int | None = None) -> Any:
    """(x - mean) / deviation of observations <float32>[B, ...], clipped to +-LIMIT.

    Args:
        prepared: with the scales.
        observations: as the environment gave them, or a field of them.
        start, stop: which of all components these are (None: to the last).
    """
    shape = observations.shape[1:]
    mean, scale = (tf.reshape(prepared[OBSERVATION + part][start:stop], shape) for part in (MEAN, SCALE))
    return tf.clip_by_value((observations - mean) * scale, -LIMIT, LIMIT)


def scaled_rewards(prepared: dict[str, Any], rewards: Any, steps: int) -> Any:
    """Sums of rewards of at most `steps` steps <float32>[M], over the deviation of the returns, within steps LIMIT.

    Args:
        prepared: with the scales.
        rewards: sums, each of one simulator's rewards.
        steps: that a sum may have.
    """
    return tf.clip_by_value(rewards * prepared[RETURN + SCALE][0], -steps * LIMIT, steps * LIMIT)


def reward_scale(block: np.ndarray) -> np.float32:
    """What rewards are multiplied with, by the block of the returns."""
    moments = unpacked(block)
    return np.float32(1.0 / np.sqrt(moments.variance[0] + EPSILON) if moments.count else 1.0)
