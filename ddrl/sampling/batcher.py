"""Gathering data-points into batches of one fixed size."""

from __future__ import annotations

import threading

import numpy as np

from ddrl.types import DataPoints


class Batcher:
    """Fills batches of exactly `batch_size` data-points, whoever adds them and however many at a time.

    Args:
        batch_size: data-points.
        observation_shape: of one observation.
        observation_dtype: of one.
        action_shape: of one action.

    Attributes:
        empty: a batch of these shapes, whose values mean nothing.
    """

    def __init__(
        self,
        batch_size: int,
        observation_shape: tuple[int, ...],
        observation_dtype: np.dtype,
        action_shape: tuple[int, ...] = (),
    ):
        self._lock = threading.Lock()
        self.empty = DataPoints(
            np.empty((batch_size, *observation_shape), observation_dtype),
            np.empty((batch_size, *action_shape), np.int32),
            np.empty(batch_size, np.float32),
            np.empty(batch_size, np.float32),
            np.empty(batch_size, np.int64),
        )
        self._batch = self._fresh()
        self._filled = 0

    def add(self, points: DataPoints) -> list[DataPoints]:
        """Adds data-points; returns the batches that became full."""
        full, start, count = [], 0, len(points.action)
        with self._lock:
            while start < count:
                room = len(self._batch.action) - self._filled
                stop = min(count, start + room)
                end = self._filled + stop - start
                for target, source in zip(self._batch, points, strict=True):
                    target[self._filled : end] = source[start:stop]
                self._filled, start = end, stop
                if self._filled == len(self._batch.action):
                    full.append(self._batch)
                    self._batch, self._filled = self._fresh(), 0
        return full

    def clear(self) -> None:
        """Forgets the data-points of the batch that is not full yet."""
        with self._lock:
            self._filled = 0

    def get_state(self) -> dict[str, np.ndarray]:
        """The data-points of the batch that is not full yet."""
        with self._lock:
            return {name: getattr(self._batch, name)[: self._filled].copy() for name in DataPoints._fields}

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """The inverse of `get_state`."""
        self.clear()
        self.add(DataPoints(**state))

    def _fresh(self) -> DataPoints:
        return DataPoints(*(np.empty_like(array) for array in self.empty))
