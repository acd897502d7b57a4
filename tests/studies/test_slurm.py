"""A study as a Slurm array: what sbatch is told, and what is said where it is not, or says no."""

from __future__ import annotations

import shlex
import stat
import subprocess
from pathlib import Path

import pytest

from ddrl.errors import UsageError
from ddrl.slurm.records import noted
from ddrl.slurm.site import HERE, VARIABLE
from ddrl.studies import plan as plans
from ddrl.studies import slurm
from ddrl.studies.points import note_failure
from ddrl.studies.settings import base_config
from ddrl.studies.slurm import Asked, cores_of, submit_study
from tests.studies.support import MACHINE, FakeSettings, points, write_run


@pytest.fixture
def plan(tmp_path):
    plan = plans.Plan(tmp_path / "study", "fake", {}, tuple(points(FakeSettings(minutes=10.0), MACHINE)))
    plans.write(plan)
    return plan


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """An sbatch that notes its arguments and says what it is told to; the path of its note."""

    def install(answer="42;cluster", status=0):
        program, note = tmp_path / "bin" / "sbatch", tmp_path / "arguments"
        program.parent.mkdir(exist_ok=True)
        says = f'echo "{answer}"' + (" >&2" if status else "")
        program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> "{note}"\n{says}\nexit {status}\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(program.parent), prepend=":")
        monkeypatch.setenv(VARIABLE, "")  # no site file
        return note

    return install


def submit(plan, options=""):
    submit_study(plan, Asked(options, "", False, "ddrl study fake --submit"))


def options_of(script: Path) -> list[str]:
    """What a script asks of sbatch."""
    lines = script.read_text().splitlines()
    return [
        word for line in lines if line.startswith("#SBATCH ") for word in shlex.split(line.removeprefix("#SBATCH "))
    ]


def test_the_array_has_a_task_for_each_point_that_has_not_finished(plan, sbatch, capsys):
    note = sbatch()
    write_run(plan.path(plan.points[0]))
    note_failure(plan.path(plan.points[2]), "broke")
    submit(plan, "--partition=cpu --time=60")
    told = note.read_text().splitlines()
    assert told[:4] == ["--parsable", "--partition=cpu", "--time=60", str(plan.directory / "job.sbatch")]
    options = options_of(plan.directory / "job.sbatch")
    assert "--array=1,2,3" in options and options.index("--time=27") < options.index("--time=60")
    task = f'task ddrl study fake --dir {plan.directory} --point "$SLURM_ARRAY_TASK_ID"'
    assert (plan.directory / "job.sbatch").read_text().splitlines()[-1] == task
    said = capsys.readouterr().out
    assert said.startswith("job 42: an array with 3 points") and "job 42: the report" in said
    outputs = [str(record.output.name) for record in noted(plan.directory)]
    assert outputs == ["slurm-42-%a.out", "report-42.out"]


@pytest.mark.parametrize("line", ["42;cluster", "Submitted batch job 42"])
def test_the_number_of_a_job_is_found_among_the_lines_of_a_sites_sbatch(plan, sbatch, capsys, line):
    sbatch(f"Welcome\n 1,200 hours are left\n{line}\nGood luck")
    submit(plan)
    assert capsys.readouterr().out.startswith("job 42: an array with ")
    assert [record.job for record in noted(plan.directory)] == ["42", "42"]
    sbatch("the job would start at noon")  # as with --test-only
    with pytest.raises(UsageError, match="sbatch gives no number of a job: it does not say why"):
        submit(plan)


def test_failures_of_earlier_arrays_are_not_told_of_points_that_are_submitted_again(plan, sbatch):
    sbatch()
    note_failure(plan.path(plan.points[2]), "broke")
    submit_study(plan, Asked("", "", True, "ddrl study fake --submit --dry-run"))
    assert plan.state(plan.points[2]).why == "broke"
    submit(plan)
    assert plan.state(plan.points[2]).status == "interrupted"


def test_a_task_that_fails_while_its_array_is_submitted_is_told_of(plan, sbatch, monkeypatch):
    sbatch()
    path = plan.path(plan.points[2])
    note_failure(path, "broke")
    submit_array = slurm.submit_array

    def at_once(*arguments):
        number = submit_array(*arguments)
        note_failure(path, "broke again")
        return number

    monkeypatch.setattr(slurm, "submit_array", at_once)
    submit(plan)
    assert plan.state(plan.points[2]).why == "broke again"


def test_failures_stay_where_sbatch_refuses(plan, sbatch):
    sbatch("Invalid partition", 1)
    note_failure(plan.path(plan.points[2]), "broke")
    with pytest.raises(UsageError, match="Invalid partition"):
        submit(plan)
    assert plan.state(plan.points[2]).why == "broke"


def test_a_job_after_the_array_reports(plan, sbatch):
    note = sbatch()
    submit(plan, "--dependency=afterok:7 --hold --comment='two words'")
    told = note.read_text().splitlines()[5:]
    options = ["--parsable", "--dependency=afterok:7", "--comment=two words", "--dependency=afterany:42"]
    assert told == [*options, str(plan.directory / "report.sbatch")], "not held, and after the array whatever else"
    text = (plan.directory / "report.sbatch").read_text()
    assert text.splitlines()[-1] == f"task ddrl study fake --dir {plan.directory} --collect"
    assert "--array" not in text


def test_a_plugin_that_has_moved_is_named_to_every_task_and_to_the_report(plan, sbatch):
    sbatch()
    submit_study(plan, Asked("", "", False, "ddrl study fake --submit"), ["/new place/mine.py"])
    named = f"ddrl study fake --dir {plan.directory} --plugin '/new place/mine.py'"
    array, report = ((plan.directory / name).read_text() for name in ("job.sbatch", "report.sbatch"))
    assert array.splitlines()[-1] == f'task {named} --point "$SLURM_ARRAY_TASK_ID"'
    assert report.splitlines()[-1] == f"task {named} --collect"


def test_a_report_that_is_refused_is_told_with_the_array_that_was_not(plan, sbatch, tmp_path):
    sbatch()
    program = tmp_path / "bin" / "sbatch"
    text = program.read_text().replace(
        "echo", 'case "$*" in *report.sbatch*) echo too many jobs >&2; exit 1 ;; esac; echo'
    )
    program.write_text(text)
    with pytest.raises(
        UsageError, match=r"job 42 was submitted .* too many jobs\): report them with `ddrl study fake --dir"
    ):
        submit(plan)


def test_the_words_of_a_task_stay_words(tmp_path):
    """job.sh hands them on as they are, and a signal too; its status is that of the command."""
    program = f'words=("$@"); set --; source "{HERE / "job.sh"}"; task "${{words[@]}}"'
    done = subprocess.run(
        ["bash", "-c", program, "job", "printf", "<%s>", "a directory", "$(touch owned)", "3"],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SLURM_JOB_ID": "1", "SLURM_NTASKS": "1",
             "SLURM_JOB_END_TIME": "1", VARIABLE: "", "LAUNCHER": "srun"},
        cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "<a directory><$(touch owned)><3>"), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_no_time_is_asked_for_where_no_point_has_minutes(plan, sbatch):
    sbatch()
    open_ended = plan.points[0]._replace(config=plan.points[0].config.changed(run={"minutes": 0.0}))
    submit(plan._replace(points=(open_ended,)))
    assert not [word for word in options_of(plan.directory / "job.sbatch") if word.startswith("--time")]


def test_cores_of_a_point(plan):
    assert cores_of(plan.points[0]) == plan.points[0].config.ranks
    assert cores_of(plan.points[0]._replace(cores=7)) == 7


def test_refusals_are_one_line(plan, sbatch, monkeypatch, tmp_path):
    with pytest.raises(UsageError, match="--sbatch-options"):
        submit(plan, "--comment='half")
    sbatch("sbatch: error: invalid partition\nsbatch: error: Batch job submission failed", 1)
    with pytest.raises(UsageError, match="sbatch refuses the job: invalid partition; Batch job submission failed"):
        submit(plan)
    for point in plan.points:
        write_run(plan.path(point))
    with pytest.raises(UsageError, match="has finished or is running"):
        submit(plan)
    plan = plan._replace(directory=tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="there is no sbatch here"):
        submit(plan)


def test_a_study_with_a_replay_is_warned_early_enough_to_save_it(plan, sbatch):
    sbatch()
    config = base_config(FakeSettings(preset="default"), "dqn", "pong", MACHINE).changed(run={"minutes": 10.0})
    submit(plan._replace(points=(plan.points[0], plan.points[1]._replace(config=config))))
    options = options_of(plan.directory / "job.sbatch")
    assert "--signal=B:USR1@420" in options and "--time=32" in options
    assert "--signal=B:USR1@120" in options_of(plan.directory / "report.sbatch")
    submit(plan)
    options = options_of(plan.directory / "job.sbatch")
    assert "--signal=B:USR1@120" in options and "--time=27" in options


def test_a_replay_has_its_memory_and_q_learning_a_core_for_acting(plan, sbatch):
    sbatch()
    config = base_config(FakeSettings(minutes=10.0, preset="default"), "dqn", "pong", MACHINE)
    with_replay = plan._replace(points=(plan.points[0]._replace(config=config),))
    submit(with_replay)
    options = options_of(plan.directory / "job.sbatch")
    assert "--cpus-per-task=2" in options and "--mem-per-cpu=5750M" in options  # half of 7.5 GB, and 2 GB
    submit(with_replay, "--mem=50G")
    for script in ("job.sbatch", "report.sbatch"):
        assert [word for word in options_of(plan.directory / script) if word.startswith("--mem")] == ["--mem=50G"]
    submit(plan)
    assert "--mem-per-cpu=2000M" in options_of(plan.directory / "job.sbatch")
