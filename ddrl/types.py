"""Records that pass between the four concerns (algorithm, schedule, exchange, placement).

Arrays are NumPy on the host; nothing here imports TensorFlow. Shapes use B for a batch of
data-points, N for the length of the flat parameter vector.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Snapshot(NamedTuple):
    """One immutable version of the parameters.

    Attributes:
        version: number of optimizer updates behind `vector`.
        step: the slot that the next gradient belongs to (a refused step advances `step` only).
        vector: <float32>[N], read-only. A TensorFlow tensor may stand in its place once a process
            has put it on its device.
    """

    version: int
    step: int
    vector: Any


class DataPoints(NamedTuple):
    """What a learner trains on: B independent (state, action, n-step return) triples.

    Attributes:
        observation: <uint8 or float32>[B, ...] as the environment gave it.
        action: <int32>[B].
        return_: <float32>[B] n-step return of the transformed (clipped) rewards, bootstrapped.
        behaviour_log_prob: <float32>[B] log-probability of `action` when it was taken.
        behaviour_version: <int64>[B] version of the parameters that chose `action`.
    """

    observation: np.ndarray
    action: np.ndarray
    return_: np.ndarray
    behaviour_log_prob: np.ndarray
    behaviour_version: np.ndarray


class PolicyValue(NamedTuple):
    """Output of an actor-critic network: logits <float32>[B, A] and value <float32>[B]."""

    logits: Any
    value: Any


class LossOutput(NamedTuple):
    """Scalar loss to minimise, the scalars to log (name -> scalar), and per-sample priorities or None."""

    loss: Any
    metrics: dict[str, Any]
    priorities: Any = None


class EpisodeEnd(NamedTuple):
    """One finished episode: raw (unclipped) score, length in agent steps, environment index."""

    score: float
    agent_steps: int
    env_id: int
