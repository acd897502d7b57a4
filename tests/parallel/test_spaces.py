"""Whole runs on observations of several entries with masks: learned, resumed to the bit, over ranks and processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.parallel.support import differences, evaluations, events, finish, needs_mpirun, newest, program, result

pytestmark = pytest.mark.timeout(300)

GAME = ("--game", "tests.envs.doors:ddrl-test/Doors-v0")  # which raises where a closed door is tried
SMOKE = ("--preset", "smoke", "--minutes", "3", "--evaluation-minutes", "1")
PATH = {"PYTHONPATH": str(Path(__file__).parents[2])}
CHANCE = 3.6  # of 8, at random among open doors


@pytest.mark.parametrize(
    "flags, least",
    [
        (("ppo", *SMOKE, *GAME, "--learning-rate", "4e-3", "--max-updates", "800"), 4.8),
        (("dqn", *SMOKE, *GAME, "--target-period", "80", "--max-updates", "500"), 6.0),
    ],
)
def test_doors_are_learned(tmp_path, flags, least):
    run = tmp_path / "run"
    runs = [[*flags, "--run-dir", str(run)]]
    with program("single_runs.py", tmp_path, json.dumps(runs), environment=PATH) as job:
        assert job.wait() == 0, job.output
    assert result(run)["status"] == "finished"
    assert evaluations(run)[-1] >= least > CHANCE


def test_a_resumed_replay_of_entries_goes_on_to_the_bit(tmp_path):
    flags = ("dqn", *SMOKE, *GAME, "--schedule", "standard", "--no-evaluator", "--priority-exponent", "0.6")
    parts, whole = tmp_path / "parts", tmp_path / "whole"
    runs = [
        [*flags, "--run-dir", str(parts), "--max-updates", "30"],
        ["--resume", str(parts), "--max-updates", "60", "--minutes", "3"],
        [*flags, "--run-dir", str(whole), "--max-updates", "60"],
    ]
    with program("single_runs.py", tmp_path, json.dumps(runs), environment=PATH) as job:
        assert job.wait() == 0, job.output
    assert not list(differences(newest(parts), newest(whole)))


@needs_mpirun
@pytest.mark.parametrize(
    "flags",
    [
        ("ppo", "--workers", "2", "--parameter-servers", "1", "--simulator-processes", "2"),
        ("apex-dqn", "--actors", "1", "--replay-shards", "1", "--samples-per-insert", "4"),
    ],
)
def test_ranks_and_processes(tmp_path, flags):
    run = tmp_path / "run"
    finish(run, *flags, *SMOKE, *GAME, "--no-evaluator", "--max-updates", "60", environment=PATH)
    assert result(run)["status"] == "finished" and newest(run).version == 60
    assert not events(run, "segment_refused") and not events(run, "rank_failed")
