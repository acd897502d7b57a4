"""A drawn batch in one buffer of float32 words, as a message carries it: nothing is copied to send or to receive it."""

from __future__ import annotations

import math

import numpy as np

from ddrl.apex.segment import SegmentFormat
from ddrl.exchange.vectors import ALIGNMENT, empty_vector
from ddrl.types import Replayed

WORD = 4  # bytes


class BatchFormat:
    """The places in a buffer of the arrays of a batch of M transitions.

    Args:
        format: of the segments.
        batch_size: M.

    Attributes:
        floats: words of a buffer.
    """

    def __init__(self, format: SegmentFormat, batch_size: int):
        m, observation = (batch_size,), (batch_size, *format.observation_shape)
        layout = Replayed(
            observation=(observation, format.observation_dtype),
            action=((*m, *format.action_space.action_shape), format.action_type),
            reward=(m, np.dtype(np.float32)),
            discount=(m, np.dtype(np.float32)),
            next_observation=(observation, format.observation_dtype),
            weight=(m, np.dtype(np.float32)),
            behaviour_version=(m, np.dtype(np.int64)),
            key=(m, np.dtype(np.int64)),
        )
        self.batch_size = batch_size
        self._places, start = [], 0
        for shape, dtype in layout[:-1]:  # the last are targets, which the learner computes
            size = math.prod(shape) * dtype.itemsize
            self._places.append((start, size, shape, dtype))
            start += -(-size // ALIGNMENT) * ALIGNMENT
        self.floats = start // WORD

    def buffer(self) -> np.ndarray:
        """A new buffer <float32>[floats], aligned."""
        return empty_vector(self.floats)

    def views(self, buffer: np.ndarray) -> Replayed:
        """The arrays in a buffer <float32>[floats]."""
        data = buffer.view(np.uint8)
        return Replayed(
            *(data[start : start + size].view(dtype).reshape(shape) for start, size, shape, dtype in self._places)
        )


def pack_priorities(keys: np.ndarray, priorities: np.ndarray) -> np.ndarray:
    """Keys <int64>[M] and their new priorities <float32>[M] as a buffer <float32>[3 M]."""
    return np.concatenate([np.ascontiguousarray(keys, np.int64).view(np.float32), np.asarray(priorities, np.float32)])


def unpack_priorities(buffer: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The inverse of `pack_priorities`."""
    count = len(buffer) // 3
    return buffer[: 2 * count].copy().view(np.int64), buffer[2 * count :].copy()
