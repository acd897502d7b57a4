from __future__ import annotations

import numpy as np
import pytest

from ddrl.apex.packing import BatchFormat, pack_priorities, unpack_priorities
from ddrl.apex.shard_replay import ShardReplay
from ddrl.exchange.vectors import ALIGNMENT
from tests.apex.segments import FEATURES, IMAGES, noise


@pytest.mark.parametrize("format", [IMAGES, FEATURES])
def test_what_a_shard_draws_into_a_buffer_is_what_comes_out_of_it(format):
    random = np.random.default_rng(0)
    shard = ShardReplay(format, 100)
    shard.insert(noise(format, random))
    batches = BatchFormat(format, 5)
    buffer = batches.buffer()
    views = batches.views(buffer)
    assert buffer.dtype == np.float32 and buffer.shape == (batches.floats,) and buffer.ctypes.data % ALIGNMENT == 0
    drawn = shard.sample(np.random.default_rng(1), 5, 0.4, into=(views.observation, views.next_observation))
    for view, array in zip(views[:-1], drawn[:-1], strict=True):
        assert view.shape == array.shape and view.dtype == array.dtype and np.may_share_memory(view, buffer)
        view[...] = array
    expected = shard.sample(np.random.default_rng(1), 5, 0.4)
    for view, array in zip(batches.views(buffer.copy())[:-1], expected[:-1], strict=True):
        np.testing.assert_array_equal(view, array)


def test_arrays_of_a_buffer_do_not_overlap():
    batches = BatchFormat(IMAGES, 7)
    buffer = batches.buffer()
    buffer[:] = 0
    views = batches.views(buffer)[:-1]
    for i, view in enumerate(views, 1):
        view[...] = i
    assert [int(view.min()) == int(view.max()) == i for i, view in enumerate(views, 1)] == [True] * len(views)


def test_keys_and_priorities_come_back():
    keys, priorities = np.array([3, 2**62, 0], np.int64), np.array([0.5, 1e30, 0.0], np.float32)
    buffer = pack_priorities(keys, priorities)
    assert buffer.dtype == np.float32 and buffer.shape == (9,)
    for mine, theirs in zip(unpack_priorities(buffer), (keys, priorities), strict=True):
        np.testing.assert_array_equal(mine, theirs)
