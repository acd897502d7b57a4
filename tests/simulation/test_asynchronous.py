"""Asynchronous updates against closed forms of queues."""

from __future__ import annotations

import pytest

from ddrl.simulation.predict import limits, simulate
from ddrl.simulation.system import System, Times

SERVICE = 0.001  # of an update on the server
SLICE = {"parameters": 1000, "apply_seconds_per_byte": SERVICE / 4000}


def test_one_worker_takes_the_sum_of_its_parts():
    """No report, no commit: two latencies."""
    found = simulate(
        System(
            workers=1,
            compute=Times(0.1),
            asynchronous=True,
            latency=1e-3,
            decision_seconds=0.002,
            worker_bandwidth=1e6,
            server_bandwidth=1e6,
            **SLICE,
        )
    )
    assert found.updates_per_s == pytest.approx(1 / (0.1 + 2 * 1e-3 + 2 * 4000 / 1e6 + SERVICE + 0.002))
    assert found.staleness_mean == 0.0


def test_many_slow_workers_wait_as_in_an_m_d_1_queue():
    """Mean wait = rho service / (2 (1 - rho)) of Poisson arrivals, which many independent workers nearly are."""
    workers, load = 1000, 0.6
    compute = workers * SERVICE / load
    found = simulate(System(workers=workers, compute=Times(compute, compute), asynchronous=True, **SLICE), 100)
    assert found.updates_per_s == pytest.approx(load / SERVICE, rel=0.02)
    assert found.server_wait_seconds == pytest.approx(load * SERVICE / (2 * (1 - load)), rel=0.06)


def test_a_full_server_sets_the_pace():
    found = simulate(System(workers=50, compute=Times(0.01), asynchronous=True, **SLICE))
    assert found.updates_per_s == pytest.approx(1 / SERVICE, rel=0.01)
    assert limits(System(workers=50, compute=Times(0.01), asynchronous=True, **SLICE)).name == "server work"


@pytest.mark.parametrize("workers", [2, 16, 100])
def test_a_gradient_is_as_stale_as_there_are_other_workers(workers):
    """In the time of one gradient every other worker brings one, in the mean."""
    found = simulate(System(workers=workers, compute=Times(0.1, 0.03), asynchronous=True, **SLICE), 300)
    assert found.staleness_mean == pytest.approx(workers - 1, rel=0.02)
    assert found.dropped_share == 0.0


def test_a_slow_worker_does_not_hinder_the_others():
    system = System(workers=8, compute=Times(0.1), asynchronous=True, slow_workers=1, slow_factor=4.0)
    assert simulate(system, 200).updates_per_s == pytest.approx((7 + 1 / 4) / 0.1, rel=0.01)


def test_workers_of_one_host_share_its_card():
    """4 workers with nothing to compute: the card of their host carries one gradient after the other."""
    system = System(
        workers=4, compute=Times(1e-6), asynchronous=True, parameters=1000, worker_bandwidth=1e6, workers_per_host=4
    )
    assert simulate(system).updates_per_s == pytest.approx(1e6 / 4000, rel=0.01)


def test_a_seed_gives_one_result():
    system = System(workers=16, compute=Times(0.1, 0.03), asynchronous=True, **SLICE)
    assert simulate(system, 30, seed=3) == simulate(system, 30, seed=3)
    assert simulate(system, 30, seed=3) != simulate(system, 30, seed=4)
