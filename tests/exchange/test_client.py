"""Assembling versions in place."""

from __future__ import annotations

import numpy as np

from ddrl.exchange.client import Assembler


class Landing:
    """Receives that are posted in an assembler; a payload may land long before the assembler is told."""

    def __init__(self, assembler):
        self.assembler = assembler
        self.posted = [assembler.destination(shard) for shard in range(len(assembler.ranges))]

    def land(self, shard, value):
        self.posted[shard][:] = value

    def tell(self, shard, version):
        vector = self.assembler.add((version,), shard, self.posted[shard])
        self.posted[shard] = self.assembler.destination(shard)
        return vector


def test_versions_in_step_are_not_copied():
    receive = Landing(Assembler([(0, 2), (2, 4)]))
    for version in range(6):
        posted = list(receive.posted)
        for shard in (version % 2, 1 - version % 2):
            receive.land(shard, version)
            vector = receive.tell(shard, version)
        np.testing.assert_array_equal(vector, [version] * 4)
        assert all(np.shares_memory(vector, view) for view in posted)
        assert not any(np.shares_memory(vector, view) for view in receive.posted)


def test_slice_that_has_landed_early_is_not_overwritten_when_a_shard_skips_versions():
    receive = Landing(Assembler([(0, 2), (2, 4)]))
    for version in (2, 3):
        receive.land(0, version)
        assert receive.tell(0, version) is None
    receive.land(0, 4)
    receive.land(1, 3)
    third = receive.tell(1, 3)
    np.testing.assert_array_equal(third, [3] * 4)
    assert not any(np.shares_memory(third, view) for view in receive.posted)
    assert receive.tell(0, 4) is None
    receive.land(1, 4)
    np.testing.assert_array_equal(receive.tell(1, 4), [4] * 4)
    np.testing.assert_array_equal(third, [3] * 4)


def test_what_a_server_of_this_process_sends_is_not_copied():
    vector = np.arange(4, dtype=np.float32)
    assert Assembler([(0, 4)]).add((1,), 0, vector) is not vector
    vector.flags.writeable = False
    assert Assembler([(0, 4)]).add((1,), 0, vector) is vector
