"""The benchmark of idle roles, on made-up lines."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from cluster.launch import find_mpirun
from ddrl import programs
from ddrl.bench import idle
from ddrl.errors import UsageError
from tests.parallel.light import EVERYWHERE

TOLD = {"cpu_cores": {"parameter_server-0": 0.02, "evaluator-0": 0.01, "worker-0": 1.0}}


def lines_of(monkeypatch, *measured):
    warm_up = [TOLD] * idle.WARM_UP_LINES
    monkeypatch.setattr(idle, "run_for", lambda config, seconds: [*warm_up, *measured, TOLD])


def test_lines_in_which_a_role_told_nothing_are_passed_over(monkeypatch):
    both, one = {"parameter_server-0": 0.04, "evaluator-0": 0.03}, {"evaluator-0": 0.01}
    lines_of(monkeypatch, {"cpu_cores": both}, {"cpu_cores": one}, {})
    found = idle.measure(10.0)
    assert found["parameter_server"] == pytest.approx(4.0) and found["evaluator"] == pytest.approx(2.0)


def test_lines_from_the_first_update_on_do_not_count(monkeypatch):
    lines_of(monkeypatch, TOLD | {"update": 0}, {"update": 1, "cpu_cores": {"parameter_server-0": 0.9}})
    found = idle.measure(300.0)
    assert found["parameter_server"] == pytest.approx(2.0) and found["seconds_measured"] == idle.LINE_SECONDS


def test_a_run_that_is_too_short_is_refused(monkeypatch):
    lines_of(monkeypatch, {"cpu_cores": {"evaluator-0": 0.01}})
    with pytest.raises(UsageError, match="--seconds 10: too short for the parameter server to report"):
        idle.measure(10.0)
    lines_of(monkeypatch)
    with pytest.raises(UsageError, match="too short"):
        idle.measure(10.0)


@pytest.mark.timeout(300)
@pytest.mark.skipif(find_mpirun() is None, reason="no mpirun on this machine")
def test_control_c_ends_it(tmp_path):
    command = [*programs.python_command("ddrl.cli"), "bench", "idle", "--seconds", "100"]
    environment = os.environ | EVERYWHERE | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True) as bench:
        end = time.monotonic() + 120.0
        while not list(Path(tmp_path).glob("*/run/metrics.jsonl")) and time.monotonic() < end:
            time.sleep(0.1)
        bench.send_signal(signal.SIGINT)
        _, errors = bench.communicate(timeout=120)
    assert (bench.returncode, errors.splitlines()[-1]) == (130, "ddrl: interrupted")
