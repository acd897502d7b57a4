"""A system from metrics: records that a known system would have written."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ddrl.errors import UsageError
from ddrl.simulation.calibration import ServerTimes, at_size, calibrate
from ddrl.simulation.predict import simulate
from ddrl.simulation.system import System
from ddrl.simulation.times import Gamma

SERVER = ServerTimes(1e-9, 2e-9)


def records(compute, exchange, count=12, gradients=50, seed=0, deviation=0.0):
    """Intervals of two workers, the second of which is a tenth slower and waits that much less."""
    generator, lines, now = np.random.default_rng(seed), [], 0.0
    for index in range(count):
        took = compute + generator.normal(0.0, deviation / np.sqrt(gradients)) if deviation else compute
        cycle = 1.1 * took + exchange
        now += gradients * cycle
        lines.append(
            {"kind": "train", "update": gradients * (index + 1), "updates_per_s": 1 / cycle, "wall_seconds": now,
             "time_split": {"parameter_server": {"receive": 0.002, "apply": 0.1, "send": 0.002}},
             "exchange_ms_by_worker": {"worker-0": 1000 * (cycle - took), "worker-1": 1000 * exchange}}
        )  # fmt: skip
    return lines


def of(lines, **changes):
    settings = {"workers": 2, "servers": 1, "parameters": 250_000, "batch": 32, "server": SERVER} | changes
    return calibrate(lines, **settings)


def test_compute_is_an_update_without_the_exchange():
    found = of(records(0.1, 0.02))
    assert found.system.compute.mean == pytest.approx(0.105)
    assert found.measured_updates_per_s == pytest.approx(1 / 0.13)
    assert len(found.samples) == 20  # the first and the last interval do not count


def test_the_slowest_workers_exchange_is_divided_without_rest():
    system = of(records(0.1, 0.02)).system
    handled = 0.004 * 0.13
    assert system.message_seconds == pytest.approx(handled / 4)
    assert system.decision_seconds == pytest.approx(0.02 - 2 * 3 * handled / 4)
    work = 1e6 * (2 * SERVER.average + SERVER.apply)  # with a quorum the update waits for the decision
    assert of(records(0.1, 0.02), quorum=1).system.decision_seconds == pytest.approx(system.decision_seconds - work)


def test_the_deviation_of_single_gradients_comes_from_interval_means():
    found = of(records(0.1, 0.02, count=400, deviation=0.02))
    assert isinstance(found.system.compute, Gamma)
    assert found.system.compute.deviation == pytest.approx(0.02, rel=0.2)


def test_a_system_calibrated_on_its_own_metrics_predicts_itself():
    lines = [line | {"exchange_ms_by_worker": {"worker-0": 20.0}} for line in records(0.1, 0.02)]
    found = of(lines, workers=1)
    assert simulate(found.system).updates_per_s == pytest.approx(found.measured_updates_per_s, rel=0.02)


def test_an_asynchronous_update_is_one_gradient_of_one_worker():
    exchange = {"worker-0": 5.0, "worker-1": 5.0}
    lines = [
        line | {"updates_per_s": 20.0, "wall_seconds": line["update"] / 20.0, "exchange_ms_by_worker": exchange}
        for line in records(0.1, 0.02)
    ]
    found = of(lines, asynchronous=True)
    assert found.system.compute.mean == pytest.approx(2 / 20.0 - 0.005)
    assert simulate(found.system).updates_per_s == pytest.approx(20.0, rel=0.1)


def test_runs_that_are_too_short_are_refused():
    with pytest.raises(UsageError, match="--calibrate: 2 intervals"):
        of(records(0.1, 0.02, count=4))
    with pytest.raises(UsageError, match="--calibrate: 0 intervals"):
        of([])


def test_a_quorum_keeps_its_share():
    assert at_size(System(workers=8, quorum=6), 64).quorum == 48
    assert at_size(dataclasses.replace(System(workers=8), servers=2), 64, latency=1e-3).quorum == 0


def test_runs_that_stalled_are_refused():
    lines = [line | {"update": 7} for line in records(0.1, 0.02)]
    with pytest.raises(UsageError, match="--calibrate: no updates"):
        of(lines)
    with pytest.raises(UsageError, match="--calibrate: the exchange took longer"):
        of([line | {"exchange_ms_by_worker": {"worker-0": 500.0}} for line in records(0.1, 0.02)])


def test_an_interval_that_stalled_does_not_count():
    lines = records(0.1, 0.02)
    stalled = {"updates_per_s": 0.5, "exchange_ms_by_worker": {"worker-0": 1900.0, "worker-1": 1800.0}}
    found = of([*lines[:5], lines[5] | stalled, *lines[6:]])
    assert found.system == of(lines).system
    assert found.measured_updates_per_s == of(lines).measured_updates_per_s
