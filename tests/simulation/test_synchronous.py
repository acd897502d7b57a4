"""Synchronous steps against closed forms."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ddrl.errors import UsageError
from ddrl.simulation.predict import COMPUTE, limits, simulate
from ddrl.simulation.system import System, Times

BYTES = 4_000_000
NETWORK = {"parameters": BYTES // 4, "worker_bandwidth": 1e9, "server_bandwidth": 1e9, "latency": 1e-4}


def step_seconds(updates=50, **settings):
    return 1.0 / simulate(System(**settings), updates).updates_per_s


def test_one_worker_takes_the_sum_of_its_parts():
    """Gradient there, report, decision, commit, parameters back: four latencies, two transfers, updates meanwhile."""
    found = step_seconds(workers=1, compute=Times(0.1), decision_seconds=0.002, apply_seconds_per_byte=1e-9, **NETWORK)
    assert found == pytest.approx(0.1 + 2 * BYTES / 1e9 + max(2 * 1e-4 + 0.002, BYTES * 1e-9) + 2 * 1e-4)


def test_equal_workers_wait_for_one_card():
    """The parameters go out one after the other; so the gradients come one after the other, and the last one alone."""
    found = step_seconds(workers=8, compute=Times(0.1), **NETWORK)
    assert found == pytest.approx(0.1 + (8 + 1) * BYTES / 1e9 + 4 * 1e-4)


def test_servers_share_the_bytes():
    """With as many servers as workers every card carries one gradient, but for the slices that servers wait for."""
    found = step_seconds(workers=8, servers=8, compute=Times(0.1), **NETWORK)
    first_slices = 2 * (8 - 1) * BYTES / 8 / 1e9
    assert found <= 0.1 + 2 * BYTES / 1e9 + first_slices + 4 * 1e-4 + 1e-9
    assert found >= 0.1 + 2 * BYTES / 1e9 + 4 * 1e-4


def test_on_one_host_servers_share_the_card():
    one = {"workers_per_host": 0, "servers_per_host": 0}
    found = step_seconds(workers=8, servers=4, compute=Times(0.1), **NETWORK, **one)
    assert found == pytest.approx(step_seconds(workers=8, servers=1, compute=Times(0.1), **NETWORK, **one), rel=0.1)


def test_workers_of_one_host_share_its_card():
    """8 workers on 2 hosts, a server so fast that it does not matter."""
    found = step_seconds(workers=8, compute=Times(0.1), parameters=BYTES // 4, worker_bandwidth=1e9, workers_per_host=4)
    assert found == pytest.approx(0.1 + (4 + 1) * BYTES / 1e9)


def test_the_slowest_of_exponential_times_is_the_harmonic_number():
    """E[max of n exponentials] = mean (1 + 1/2 + ... + 1/n)."""
    found = step_seconds(updates=4000, workers=16, compute=Times(0.1, 0.1))
    assert found == pytest.approx(0.1 * sum(1 / k for k in range(1, 17)), rel=0.02)


def test_a_quorum_of_one_waits_for_the_fastest():
    """A gradient counts if no update came while it was computed. With exponential times whoever is done next is any of
    the n, so updates are apart as birthdays: sum over k of (1 - 1/n)(1 - 2/n)...(1 - k/n) gradients."""
    found = simulate(System(workers=16, compute=Times(0.1, 0.1), quorum=1), 8000)
    apart = sum(np.prod([1 - i / 16 for i in range(1, k + 1)]) for k in range(16))
    assert found.updates_per_s == pytest.approx(16 / 0.1 / apart, rel=0.03)
    assert found.dropped_share == pytest.approx(1 - 1 / apart, rel=0.03)
    assert found.datapoints_per_s == pytest.approx(found.updates_per_s * 32)


def test_efficiency_is_of_workers_that_never_wait():
    found = simulate(System(workers=4, compute=Times(0.2), batch=10), 10)
    assert found.efficiency == pytest.approx(1.0)
    assert found.datapoints_per_s == pytest.approx(4 * 10 / 0.2)
    assert found.staleness_mean == found.dropped_share == 0.0


def test_a_slow_worker_sets_the_pace_of_all_but_not_of_a_quorum():
    system = System(workers=8, compute=Times(0.1), slow_workers=1, slow_factor=3.0)
    assert simulate(system, 20).updates_per_s == pytest.approx(1 / 0.3)
    backup = simulate(dataclasses.replace(system, quorum=7), 40)
    assert backup.updates_per_s == pytest.approx(1 / 0.1)
    assert backup.dropped_share == pytest.approx(1 / 22, abs=0.01)  # it computes one while the others compute 21


def test_a_deadline_ends_the_wait():
    system = System(workers=8, compute=Times(0.1), slow_workers=1, slow_factor=3.0, deadline_seconds=0.05)
    assert simulate(system, 40).updates_per_s == pytest.approx(1 / 0.15)


@pytest.mark.parametrize("workers", [4, 32])
@pytest.mark.parametrize("deviation", [0.02, 0.1])
def test_a_quorum_is_never_slower_than_all(workers, deviation):
    system = System(workers=workers, compute=Times(0.1, deviation), decision_seconds=0.001, **NETWORK)
    rates = [
        simulate(dataclasses.replace(system, quorum=quorum), 300).updates_per_s
        for quorum in (workers, 3 * workers // 4, workers // 2)
    ]
    assert rates == sorted(rates)


@pytest.mark.parametrize(
    "change",
    [
        {"latency": 0.01},
        {"server_bandwidth": 2e8},
        {"worker_bandwidth": 2e8},
        {"decision_seconds": 0.01},
        {"average_seconds_per_byte": 1e-8},
        {"message_seconds": 0.01},
        {"parameters": BYTES},
        {"slow_workers": 1, "slow_factor": 2.0},
    ],
)
def test_whatever_costs_more_makes_it_slower(change):
    system = System(workers=8, servers=2, compute=Times(0.1, 0.01), decision_seconds=0.001, **NETWORK)
    assert simulate(dataclasses.replace(system, **change)).updates_per_s < simulate(system).updates_per_s


def test_a_seed_gives_one_result():
    system = System(workers=16, compute=Times(0.1, 0.03), quorum=12, **NETWORK)
    assert simulate(system, 30, seed=3) == simulate(system, 30, seed=3)
    assert simulate(system, 30, seed=3) != simulate(system, 30, seed=4)


@pytest.mark.parametrize(
    "name, change",
    [
        ("server card", {"server_bandwidth": 1e5}),
        ("worker card", {"worker_bandwidth": 1e5}),
        ("server work", {"apply_seconds_per_byte": 1e-4}),
        ("latency", {"latency": 1.0}),
        ("stragglers", {"slow_workers": 1, "slow_factor": 20.0}),
        (COMPUTE, {}),
    ],
)
def test_the_part_that_costs_most_is_named(name, change):
    system = System(workers=4, servers=2, compute=Times(0.1, 0.001), parameters=10_000, worker_bandwidth=1e9)
    found = limits(dataclasses.replace(system, **change), 20)
    assert found.name == name
    assert set(found.cost) == {"stragglers", "server card", "server work", "worker card", "latency"}


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"servers": 0}, {"quorum": 5}, {"asynchronous": True, "quorum": 2}])
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(UsageError, match="simulation: "):
        System(**({"workers": 4} | wrong))
