"""Drawing batches at random from the newest data-points, so that each is learned from several times."""

from __future__ import annotations

import threading

import numpy as np

from ddrl.types import DataPoints


class DrawnPoints(DataPoints):
    """A batch from a pool.

    Attributes:
        first: <bool>[B] which of its data-points are in no batch before it.
    """

    first: np.ndarray


class DataPointPool:
    """Makes batches of different data-points, drawn at random, and uses each data-point exactly `epochs` times.

    A batch leaves as soon as the uses that are left make up `pool_batches` (epochs + 1) / 2 batches. In the long run a
    waiting data-point has (epochs + 1) / 2 uses left on average, so that about `pool_batches` batches' worth of them
    wait, and `epochs` batches leave for each batch of new ones.

    Args:
        empty: a batch of the shapes and types to come, as `Batcher.empty`.
        epochs: uses of each data-point.
        pool_batches: at least 2, or there may be too few different ones for a batch.
        seed: of the draws.
    """

    def __init__(self, empty: DataPoints, epochs: int, pool_batches: int, seed: tuple[int, ...]):
        self._lock = threading.Lock()
        self._batch_size, self._epochs = len(empty.action), epochs
        self._enough = uses_to_wait(self._batch_size, epochs, pool_batches)
        slots = slots_of(self._batch_size, epochs, pool_batches)
        self._points = DataPoints(*(np.empty((slots, *array.shape[1:]), array.dtype) for array in empty))
        self._uses_left = np.zeros(slots, np.int64)
        self._random = np.random.default_rng(seed)

    def add(self, points: DataPoints) -> list[DataPoints]:
        """Adds data-points; returns the batches that leave."""
        batches: list[DataPoints] = []
        with self._lock:
            for start in range(0, len(points.action), self._batch_size):
                self._put(DataPoints(*(array[start : start + self._batch_size] for array in points)))
                while self._uses_left.sum() >= self._enough:
                    batches.append(self._draw())
        return batches

    def _put(self, points: DataPoints) -> None:
        free = np.flatnonzero(self._uses_left == 0)[: len(points.action)]
        for target, source in zip(self._points, points, strict=True):
            target[free] = source
        self._uses_left[free] = self._epochs

    def _draw(self) -> DrawnPoints:
        drawn = self._random.choice(np.flatnonzero(self._uses_left), self._batch_size, replace=False)
        first = self._uses_left[drawn] == self._epochs
        self._uses_left[drawn] -= 1
        batch = DrawnPoints(*(array.take(drawn, axis=0) for array in self._points))
        batch.first = first
        return batch


def uses_to_wait(batch_size: int, epochs: int, pool_batches: int) -> int:
    """The uses left, of all data-points of a pool together, that are needed to draw a batch."""
    return batch_size * pool_batches * (epochs + 1) // 2


def slots_of(batch_size: int, epochs: int, pool_batches: int) -> int:
    """Data-points that a pool has room for; 0 if each is used only once, since there is no pool then.

    There are most when each has only its last use left: as many as `uses_to_wait`. A batch of new ones comes on top.
    """
    return uses_to_wait(batch_size, epochs, pool_batches) + batch_size if epochs > 1 else 0
