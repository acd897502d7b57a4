from __future__ import annotations

import threading

import numpy as np
import pytest

from ddrl.sampling.batcher import Batcher
from ddrl.types import DataPoints


def points(numbers):
    numbers = np.asarray(numbers)
    return DataPoints(
        np.repeat(numbers[:, None] % 256, 3, axis=1).astype(np.uint8),
        numbers.astype(np.int32),
        (numbers * 0.5).astype(np.float32),
        (-numbers).astype(np.float32),
        numbers.astype(np.int64) * 10,
    )


def check(batch):
    """Every row is one data-point, not parts of several."""
    for ours, theirs in zip(batch, points(batch.action), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype


@pytest.mark.parametrize("batch_size", [1, 7, 32])
def test_every_point_once_whatever_the_chunks(batch_size):
    batcher, random = Batcher(batch_size, (3,), np.uint8), np.random.default_rng(batch_size)
    start, batches = 0, []
    for _ in range(60):
        stop = start + random.integers(0, 3 * batch_size + 2)
        batches += batcher.add(points(np.arange(start, stop)))
        start = stop
    for batch in batches:
        check(batch)
    given = np.concatenate([batch.action for batch in batches] + [batcher.get_state()["action"]])
    np.testing.assert_array_equal(given, np.arange(start))
    assert all(len(batch.action) == batch_size for batch in batches)


def numbers_from_threads(batcher):
    """Four threads add 2,000 data-points each, in 300 chunks; the numbers of all batches that became full."""
    batches = []

    def add(thread):
        for chunk in np.array_split(np.arange(thread * 2000, (thread + 1) * 2000), 300):
            batches.extend(batcher.add(points(chunk)))

    threads = [threading.Thread(target=add, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    for batch in batches:
        check(batch)
    return np.concatenate([batch.action for batch in batches])


def test_every_point_once_from_several_threads():
    assert sorted(numbers_from_threads(Batcher(50, (3,), np.uint8))) == list(range(8000))


def test_batches_are_not_written_to_again():
    batcher = Batcher(4, (3,), np.uint8)
    (first,) = batcher.add(points(np.arange(4)))
    batcher.add(points(np.arange(100, 104)))
    check(first)
    assert first.action.tolist() == [0, 1, 2, 3]


def test_state_round_trip_and_clear():
    first, other = Batcher(8, (3,), np.uint8), Batcher(8, (3,), np.uint8)
    first.add(points(np.arange(5)))
    other.add(points(np.arange(50, 53)))
    other.set_state(first.get_state())
    (batch,) = other.add(points(np.arange(5, 8)))
    assert batch.action.tolist() == list(range(8))
    first.clear()
    assert len(first.get_state()["action"]) == 0
