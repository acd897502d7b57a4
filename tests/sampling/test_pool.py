from __future__ import annotations

import numpy as np
import pytest

from ddrl.sampling.batcher import Batcher
from ddrl.sampling.pool import DataPointPool, slots_of
from tests.sampling.test_batcher import check, numbers_from_threads, points


def pool(batch_size=8, epochs=4, pool_batches=3, seed=0):
    return DataPointPool(Batcher(batch_size, (3,), np.uint8).empty, epochs, pool_batches, (seed,))


def fill(pool, count, chunk=5):
    """Adds so many data-points in chunks; the numbers in each batch."""
    batches = []
    for start in range(0, count, chunk):
        for batch in pool.add(points(np.arange(start, min(start + chunk, count)))):
            check(batch)
            batches.append(batch.action)
    return batches


@pytest.mark.parametrize("batch_size, epochs, pool_batches", [(8, 4, 3), (1, 2, 2), (16, 3, 2), (5, 10, 8)])
@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_every_point_is_used_epochs_times_and_never_twice_in_a_batch(batch_size, epochs, pool_batches, chunk):
    batches = fill(pool(batch_size, epochs, pool_batches), 3_000, chunk)
    assert all(len(np.unique(batch)) == len(batch) == batch_size for batch in batches)
    uses = np.bincount(np.concatenate(batches), minlength=3_000)
    assert uses.max() == epochs
    # Those that came long ago have all their uses behind them, but for a few that no draw fell on.
    assert (uses[:1_500] == epochs).mean() > 0.9
    waits = 3_000 * epochs - uses.sum()
    assert waits < slots_of(batch_size, epochs, pool_batches)


def test_about_pool_batches_of_them_wait_in_the_long_run():
    batches = fill(pool(batch_size=16, epochs=4, pool_batches=6), 20_000)
    uses = np.bincount(np.concatenate(batches), minlength=20_000)
    assert np.count_nonzero(uses < 4) == pytest.approx(6 * 16, rel=0.25)


def test_batches_are_mixed():
    """Neighbors of a stream come apart: a batch of 16 of a pool of 8 batches has few of one segment."""
    batches = fill(pool(batch_size=16, epochs=4, pool_batches=8), 20_000)[50:]
    spread = np.mean([batch.max() - batch.min() for batch in batches])
    assert spread > 8 * 16  # as far apart as the pool is large, where batches as they come would have 15


def test_draws_follow_the_seed():
    first, again, other = (fill(pool(seed=seed), 500) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_batches_are_not_written_to_again():
    one = pool(batch_size=2, epochs=2, pool_batches=2)
    batch = next(iter(one.add(points(np.arange(10)))))
    before = [array.copy() for array in batch]
    fill(one, 200)
    for kept, now in zip(before, batch, strict=True):
        np.testing.assert_array_equal(kept, now)


def test_several_threads_may_add():
    uses = np.bincount(numbers_from_threads(pool(batch_size=20, epochs=3, pool_batches=4)), minlength=8_000)
    assert uses.max() == 3
    assert 8_000 * 3 - uses.sum() < slots_of(20, 3, 4)
