"""A system from metrics: records that a known system would have written."""

from __future__ import annotations

import pytest

from ddrl.errors import UsageError
from ddrl.simulation.calibration import calibrate
from ddrl.simulation.predict import simulate
from ddrl.simulation.system import System, Times

RUN = {"workers": 2, "servers": 1, "parameters": 250_000, "batch": 32}
SERVER = {"average_seconds_per_byte": 1e-9, "apply_seconds_per_byte": 2e-9}


def records(compute, rate, count=12, gradients=50, deviation=0.0):
    """Intervals of a run whose servers take 0.4% of the time for messages."""
    return [
        {
            "kind": "train",
            "update": gradients * i,
            "updates_per_s": rate,
            "wall_seconds": gradients * i / rate,
            "time_split": {"parameter_server": {"receive": 0.002, "apply": 0.1, "send": 0.002}},
            "compute_ms": 1000 * compute,
            "compute_ms_deviation": 1000 * deviation,
        }
        for i in range(1, count + 1)
    ]


def of(lines, **changes):
    return calibrate(lines, System(**RUN | SERVER | changes))


def test_gradients_take_what_the_run_measured():
    compute = of(records(0.1, 5.0, deviation=0.02)).system.compute
    assert compute == Times(pytest.approx(0.1), pytest.approx(0.02))
    assert of(records(0.1, 5.0)).system.compute == Times(pytest.approx(0.1))


def test_what_is_missing_to_the_runs_own_rate_is_the_decision():
    system = of(records(0.1, 5.0)).system
    handled = 0.004 / 5.0
    assert system.message_seconds == pytest.approx(handled / 4)
    messages = 2 + 1 + 2  # the gradients at the server; the decision; the parameters to both workers, and their words
    assert system.decision_seconds == pytest.approx(0.1 - messages * handled / 4, abs=1e-5)


@pytest.mark.parametrize("changes", [{}, {"workers": 4}, {"workers": 4, "quorum": 3}, {"asynchronous": True}])
def test_a_system_calibrated_on_its_own_metrics_predicts_itself(changes):
    rate = 7.0 * (2 if changes.get("asynchronous") else 1)
    found = of(records(0.1, rate, deviation=0.02), **changes)
    assert found.system.decision_seconds > 0.001
    assert simulate(found.system, 500).updates_per_s == pytest.approx(rate, rel=0.02)


def test_a_run_that_was_faster_than_its_parts_has_no_decision():
    assert of(records(0.1, 20.0)).system.decision_seconds == 0.0


def test_runs_that_are_too_short_are_refused():
    with pytest.raises(UsageError, match="--calibrate: 2 intervals"):
        of(records(0.1, 5.0, count=4))
    with pytest.raises(UsageError, match="--calibrate: 0 intervals"):
        of([])


def test_runs_that_stalled_are_refused():
    with pytest.raises(UsageError, match="--calibrate: no updates"):
        of([line | {"update": 7} for line in records(0.1, 5.0)])


def test_an_interval_that_stalled_does_not_count():
    lines = records(0.1, 5.0)
    stalled = {
        "updates_per_s": 0.5,
        "compute_ms": 1900.0,
        "compute_ms_deviation": 800.0,
        "time_split": {"parameter_server": {"receive": 0.0002, "send": 0.0002}},
    }
    found = of([*lines[:5], lines[5] | stalled, *lines[6:]])
    assert found.measured_updates_per_s == of(lines).measured_updates_per_s
    assert found.system.compute == of(lines).system.compute
    assert found.system.message_seconds == pytest.approx(of(lines).system.message_seconds, rel=1e-9)


def test_a_run_of_a_ddrl_that_did_not_time_gradients_is_refused():
    old = [{name: value for name, value in line.items() if "compute" not in name} for line in records(0.1, 5.0)]
    with pytest.raises(UsageError, match="--calibrate: 0 intervals with the time of a gradient"):
        of(old)
