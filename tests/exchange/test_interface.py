"""What every coordinator does: it hands out the state to start from."""

from __future__ import annotations

import numpy as np
import pytest

from ddrl.exchange.messages import Kind
from ddrl.exchange.parameter_server.coordinator import Quorum, QuorumCoordinator

SIZE = 7


@pytest.mark.parametrize("servers", [1, 2, 3, SIZE])
def test_slices_of_any_number_of_servers_make_the_whole(servers):
    coordinator = QuorumCoordinator(range(servers), [0], Quorum(), lambda version: 0.5, step=4, version=3)
    rows = np.arange(3 * SIZE, dtype=np.float32).reshape(3, SIZE)
    messages = coordinator.begin(rows[0], list(rows[1:]), 2)
    loads = [message for message in messages if message.header.kind == Kind.LOAD]
    assert [message.peer for message in loads] == list(range(servers))
    assert {(m.header.step, m.header.version, m.header.count, m.header.value) for m in loads} == {(4, 3, 2, 0.5)}
    whole = np.concatenate([message.payload.reshape(3, -1) for message in loads], axis=1)
    np.testing.assert_array_equal(whole, rows)
    loads[0].payload[:] = -1.0
    assert rows.min() == 0.0, "the state of the checkpoint is not the servers' to change"
    floats = [channel.floats for channel in coordinator.channels(SIZE, 2) if channel.kind == Kind.SNAPSHOT]
    assert floats == [message.payload.size for message in loads]
