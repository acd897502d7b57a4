"""Acting in Ape-X: steps become segments with initial priorities (Horgan et al. 2018, algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ddrl.apex.segment import Segment
from ddrl.apex.segment_builder import SegmentBuilder
from ddrl.sampling.rollouts import RolloutActor, empty_unroll
from ddrl.types import Snapshot, Unroll

STEPS = 10  # of each simulator between two looks for newer parameters

PriorityValues = Callable[[Any, Unroll, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""(parameters <float32>[N], unroll [T, B], outputs of the policy [T, B, P]) -> the largest value of each state
<float32>[T+1, B], or that of the policy's own action, and the value of each action taken <float32>[T, B]."""


class OutputActor(RolloutActor):
    """A rollout actor that keeps the outputs of the policy.

    Attributes:
        outputs: <float32>[T, B, P] of the last rollout.
    """

    outputs: np.ndarray = np.zeros((0, 0, 0), np.float32)

    def _write_action(self, out: Unroll, t: int) -> None:
        super()._write_action(out, t)
        shape = (*out.reward.shape, self._policy.shape[-1])
        if self.outputs.shape != shape:
            self.outputs = np.zeros(shape, np.float32)
        self.outputs[t, self.step.env_id] = self._policy


class SegmentMaker:
    """Acts, and returns segments.

    Args:
        actor: with all simulators of one process; it needs no value of the last observation.
        builder: of the same simulators.
        values: gives the values from which initial priorities are computed.
    """

    def __init__(self, actor: OutputActor, builder: SegmentBuilder, values: PriorityValues):
        environment, self.actor, self.builder, self._values = actor.environment, actor, builder, values
        self._unroll = empty_unroll(
            STEPS,
            environment.num_envs,
            environment.observation_shape,
            environment.observation_dtype,
            environment.action_space,
        )

    def act(self, snapshot: Snapshot) -> list[Segment]:
        """Acts for `STEPS` agent steps of each simulator with these parameters; returns segments that became full."""
        self.actor.fill(self._unroll, lambda: snapshot)
        largest, taken = self._values(snapshot.parameters, self._unroll, self.actor.outputs)
        return self.builder.add(self._unroll._replace(value=largest), taken)
