"""The benchmark of idle roles, on made-up lines."""

from __future__ import annotations

import pytest

from ddrl.bench import idle
from ddrl.errors import UsageError

TOLD = {"cpu_cores": {"parameter_server-0": 0.02, "evaluator-0": 0.01, "worker-0": 1.0}}


def lines_of(monkeypatch, *measured):
    warm_up = [TOLD] * idle.WARM_UP_LINES
    monkeypatch.setattr(idle, "run_for", lambda config, seconds: [*warm_up, *measured, TOLD])


def test_lines_in_which_a_role_told_nothing_are_passed_over(monkeypatch):
    both, one = {"parameter_server-0": 0.04, "evaluator-0": 0.03}, {"evaluator-0": 0.01}
    lines_of(monkeypatch, {"cpu_cores": both}, {"cpu_cores": one}, {})
    found = idle.measure(10.0)
    assert found["parameter_server"] == pytest.approx(4.0) and found["evaluator"] == pytest.approx(2.0)


def test_a_run_that_is_too_short_is_refused(monkeypatch):
    lines_of(monkeypatch, {"cpu_cores": {"evaluator-0": 0.01}})
    with pytest.raises(UsageError, match="--seconds 10: too short for the parameter server to tell"):
        idle.measure(10.0)
    lines_of(monkeypatch)
    with pytest.raises(UsageError, match="too short"):
        idle.measure(10.0)
