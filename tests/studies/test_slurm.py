"""A study as a Slurm array: what sbatch is told, and what is said where it is not, or says no."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest

from ddrl.errors import UsageError
from ddrl.programs import python_command
from ddrl.studies import plan as plans
from ddrl.studies.points import note_failure
from ddrl.studies.settings import base_config
from ddrl.studies.slurm import SCRIPT, cores_of, sbatch_command, submit
from tests.studies.support import MACHINE, FakeSettings, points, write_run


@pytest.fixture
def plan(tmp_path):
    plan = plans.Plan(tmp_path / "study", "fake", {}, tuple(points(FakeSettings(minutes=10.0), MACHINE)))
    plans.write(plan)
    return plan


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """An sbatch that notes its arguments and says what it is told to."""

    def install(answer="42;cluster", status=0):
        program, note = tmp_path / "bin" / "sbatch", tmp_path / "arguments"
        program.parent.mkdir(exist_ok=True)
        says = f'echo "{answer}"' + (" >&2" if status else "")
        program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > "{note}"\n{says}\nexit {status}\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(program.parent), prepend=":")
        return note

    return install


def test_the_array_has_a_task_for_each_point_that_has_not_finished(plan, sbatch):
    note = sbatch()
    write_run(plan.path(plan.points[0]))
    note_failure(plan.path(plan.points[2]), "broke")
    assert submit(plan, "--partition=cpu --time=60") == "42"
    told = note.read_text().splitlines()
    assert told[0] == "--parsable" and "--array=1,2,3" in told and "--time=27" in told
    told, starts_ddrl = told[: told.index(sys.executable)], told[told.index(sys.executable) :]
    assert told[-3:] == ["--partition=cpu", "--time=60", str(SCRIPT)]
    assert starts_ddrl == [*python_command("ddrl.cli"), "study", "fake", "--dir", str(plan.directory), "--point"]


def test_the_script_is_there_and_runs_the_point_of_its_task():
    text = SCRIPT.read_text()
    assert '"$@" "$SLURM_ARRAY_TASK_ID"' in text and "scontrol requeue" in text
    done = subprocess.run(
        ["bash", str(SCRIPT), "printf", "<%s>", "study", "fake", "--dir", "a directory", "--point"],
        env=dict(os.environ) | {"SLURM_ARRAY_TASK_ID": "3"},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout == "<study><fake><--dir><a directory><--point><3>"


def test_no_time_is_asked_for_where_no_point_has_minutes(plan):
    open_ended = plan.points[0]._replace(config=plan.points[0].config.changed(run={"minutes": 0.0}))
    command = sbatch_command(plan._replace(points=(open_ended,)), [0], "")
    assert not [word for word in command if word.startswith("--time")]


def test_cores_of_a_point(plan):
    assert cores_of(plan.points[0]) == plan.points[0].config.ranks
    assert cores_of(plan.points[0]._replace(cores=7)) == 7


def test_refusals_are_one_line(plan, sbatch, monkeypatch, tmp_path):
    with pytest.raises(UsageError, match="--sbatch-options"):
        sbatch_command(plan, [0], "--comment='half")
    sbatch("sbatch: error:\ninvalid partition", 1)
    with pytest.raises(UsageError, match="--submit: sbatch: error: invalid partition"):
        submit(plan, "")
    for point in plan.points:
        write_run(plan.path(point))
    with pytest.raises(UsageError, match="has finished or runs"):
        submit(plan, "")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="there is no sbatch here"):
        submit(plan, "")


def test_a_replay_has_its_memory_and_q_learning_a_core_for_acting(plan):
    config = base_config(FakeSettings(minutes=10.0, preset="default"), "dqn", "pong", MACHINE)
    point = plan.points[0]._replace(config=config)
    with_replay = plan._replace(points=(point,))
    command = sbatch_command(with_replay, [0], "")
    assert "--cpus-per-task=2" in command and "--mem-per-cpu=5750M" in command  # half of 7.5 GB, and 2 GB
    asked = [word for word in sbatch_command(with_replay, [0], "--mem=50G") if word.startswith("--mem")]
    assert asked == ["--mem=50G"]
    assert not [word for word in sbatch_command(plan, [0], "") if word.startswith("--mem")]
