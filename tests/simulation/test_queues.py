"""Queues in arrays against one message after the other."""

from __future__ import annotations

import numpy as np
import pytest

from ddrl.simulation.synchronous import by_host, starts


def one_by_one(arrival, seconds, free):
    begun, end = [0.0] * len(arrival), free
    for index in sorted(range(len(arrival)), key=lambda i: arrival[i]):
        begun[index] = max(arrival[index], end)
        end = begun[index] + seconds
    return begun


@pytest.mark.parametrize("free", [0.0, 0.7])
def test_starts_equal_serving_one_by_one(free):
    arrival = np.random.default_rng(1).exponential(1.0, (3, 50)).cumsum(axis=1)[:, ::-1]
    found = starts(arrival, 0.9, np.full((3, 1), free))
    for row in range(3):
        assert found[row] == pytest.approx(one_by_one(list(arrival[row]), 0.9, free))


def test_what_never_comes_hinders_nobody():
    assert starts(np.array([np.inf, 1.0, 1.0]), 0.5).tolist() == [np.inf, 1.0, 1.5]


def test_ranks_are_put_on_hosts():
    assert by_host(np.arange(5.0), 2).tolist() == [[0, 1], [2, 3], [4, np.inf]]
    assert by_host(np.arange(5.0), 0).tolist() == [[0, 1, 2, 3, 4]]
    assert by_host(np.ones((3, 4)), 2).shape == (2, 2, 4)
