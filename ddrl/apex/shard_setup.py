"""What the learner tells a replay shard at the start: what transitions look like, so that it needs no environment."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np

from ddrl.apex.segment import SegmentFormat
from ddrl.types import ActionSpace, Continuous, Discrete


class ShardSetup(NamedTuple):
    """Number of this start of the job, from 1 on, and the format of the segments."""

    run: int
    format: SegmentFormat

    def encode(self) -> np.ndarray:
        """As JSON in <uint8>[bytes]."""
        format, space = self.format, self.format.action_space
        actions: dict[str, Any] = {"count": int(space.count)} if isinstance(space, Discrete) else _bounds(space)
        facts = {
            "run": self.run,
            "observation_shape": list(map(int, format.observation_shape)),
            "observation_type": format.observation_type,
            "actions": actions,
            "stack": format.stack,
            "n_step": format.n_step,
            "length": format.length,
        }
        return np.frombuffer(json.dumps(facts).encode(), np.uint8)

    @classmethod
    def decode(cls, data: np.ndarray) -> ShardSetup:
        """The inverse."""
        facts = json.loads(data.tobytes())
        run, shape, actions = facts.pop("run"), tuple(facts.pop("observation_shape")), facts.pop("actions")
        space: ActionSpace
        if "count" in actions:
            space = Discrete(actions["count"])
        else:
            space = Continuous(tuple(actions["low"]), tuple(actions["high"]))
        return cls(run, SegmentFormat(shape, facts.pop("observation_type"), space, **facts))


def _bounds(space: Continuous) -> dict[str, list[float]]:
    return {"low": list(map(float, space.low)), "high": list(map(float, space.high))}
