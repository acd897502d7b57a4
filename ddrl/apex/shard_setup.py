"""What the learner tells a replay shard at the start: what transitions look like, so that it needs no environment."""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np

from ddrl.apex.segment import SegmentFormat
from ddrl.structured import space_facts, space_from


class ShardSetup(NamedTuple):
    """Number of this start of the job, from 1 on, and the format of the segments."""

    run: int
    format: SegmentFormat

    def encode(self) -> np.ndarray:
        """The setup as JSON in <uint8>[bytes]."""
        format = self.format
        facts = {
            "run": self.run,
            "observation_shape": list(map(int, format.observation_shape)),
            "observation_type": format.observation_type,
            "actions": space_facts(format.action_space),
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
        return cls(run, SegmentFormat(shape, facts.pop("observation_type"), space_from(actions), **facts))
