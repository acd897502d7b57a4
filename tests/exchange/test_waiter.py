"""How long a role that waits sleeps."""

from __future__ import annotations

import pytest

from ddrl.exchange import transport
from ddrl.exchange.transport import Waiter


@pytest.fixture
def clock(monkeypatch):
    """A clock that only sleeps move."""
    monkeypatch.setattr(transport.random, "uniform", lambda low, high: 1.0)
    now = [100.0]
    monkeypatch.setattr(transport.time, "monotonic", lambda: now[0])
    return now


def sleeps(clock, seconds, due=True, **settings):
    """Of a waiter that waits so long for nothing."""
    taken: list[float] = []

    def sleep(pause):
        taken.append(pause)
        clock[0] += pause

    waiter = Waiter(yield_seconds=0.0, sleep=sleep, **settings)
    for _ in range(100_000):
        if clock[0] >= 100.0 + seconds:
            return taken
        waiter.wait(False, due)
    raise AssertionError("it does not sleep")


def test_a_sleep_is_a_share_of_the_wait_and_bounded(clock):
    taken = sleeps(clock, 0.2, ranks_per_core=2.0)
    assert taken[0] == 60e-6 and max(taken) == 0.004 == taken[-1]
    assert all(pause <= max(60e-6, 1.001 * sum(taken[:i]) / 8) for i, pause in enumerate(taken))


@pytest.mark.parametrize("ranks, times", [(8.0, 1.0), (16.0, 2.0), (34.0, 4.0), (500.0, 4.0)])
def test_ranks_that_crowd_a_core_wake_up_less_often(clock, ranks, times):
    taken = sleeps(clock, 0.5, ranks_per_core=ranks)
    assert max(taken) == pytest.approx(0.004 * times)
    clock[0] = 100.0
    assert max(sleeps(clock, 1.0, due=False, ranks_per_core=ranks)) == 0.02


def test_progress_begins_the_wait_anew(clock):
    waiter = Waiter(yield_seconds=0.0, sleep=lambda pause: taken.append(pause), ranks_per_core=1.0)
    taken: list[float] = []
    clock[0] += 0.016
    waiter.wait(False, True)
    waiter.wait(True, True)
    waiter.wait(False, True)
    assert taken == [pytest.approx(0.002), 60e-6]


def test_where_nothing_is_due_no_sleep_is_short(clock):
    """Each costs whoever computes in the same process or on the same core."""
    assert min(sleeps(clock, 0.2, due=False)) == transport.IDLE_LEAST_SECONDS
