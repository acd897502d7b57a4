"""`ddrl logs`: what jobs have printed, and what they print while they are followed."""

from __future__ import annotations

import pytest

from ddrl import rundir
from ddrl.commands import logs
from ddrl.errors import UsageError
from ddrl.slurm import queue as queues
from ddrl.slurm.records import JobRecord, note
from tests.submit.support import ESCAPE, a_run


def test_logs_show_the_newest_job_and_follow_it_to_its_end(here, ddrl, monkeypatch):
    run = a_run(here / "run")
    for job in ("12", "13"):
        note(run, JobRecord(job, run / f"slurm-{job}.out"))
        (run / f"slurm-{job}.out").write_text(f"one of {job}\ntwo {ESCAPE}\nthree")
    assert ddrl("logs", "run")[1].splitlines()[1:] == ["one of 13", "two ?]0;owned?", "three"]
    assert ddrl("logs", "run", "--lines", "1")[1].splitlines()[1:] == ["three"]
    assert ddrl("logs", "run", "--lines=2")[1].splitlines()[1:] == ["two ?]0;owned?", "three"]
    asked = []

    def queue():
        asked.append(len(asked))
        if len(asked) == 2:
            with (run / "slurm-13.out").open("a") as file:
                file.write(" and more\nfour\n")
        there = queues.QueuedJob("13", "RUNNING", "0:00", "2:00", "None", "/x.sh")
        return [there] if len(asked) < 3 else []

    monkeypatch.setattr("ddrl.commands.logs.queue", queue)
    monkeypatch.setattr("ddrl.commands.logs.QUEUE_SECONDS", 0.0)
    monkeypatch.setattr("ddrl.commands.logs.READ_SECONDS", 0.01)
    status, out, err = ddrl("logs", "run", "-f")
    assert status == 0 and out.splitlines()[1:] == ["one of 13", "two ?]0;owned?", "three and more", "four"]
    assert err == "ddrl: job 13 has left the queue\n"


def test_an_array_and_the_job_after_it_leave_the_queue(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("ddrl.commands.logs.queue", list)
    assert logs.follow([JobRecord(number, tmp_path / f"slurm-{number}.out") for number in ("9", "10")], None) == 0
    assert capsys.readouterr().err == "ddrl: jobs 9 and 10 have left the queue\n"


@pytest.mark.parametrize(
    "answers, status", [([True, *[False] * 3, True, *[False] * 3], 0), ([True, *[False] * 4], 2), ([False], 2)]
)
def test_logs_are_followed_while_slurm_fails_to_answer_now_and_then(here, ddrl, monkeypatch, answers, status):
    run = a_run(here / "run")
    note(run, JobRecord("13", run / "slurm-13.out"))
    left = iter(answers)

    def queue():
        answer = next(left, None)
        if answer is False:
            raise UsageError("squeue did not answer; try again")
        return [queues.QueuedJob("13", "RUNNING", "0:00", "2:00", "None", "/x.sh")] if answer else []

    monkeypatch.setattr("ddrl.commands.logs.queue", queue)
    for name, value in {"QUEUE_SECONDS": 0.0, "READ_SECONDS": 0.001, "UNANSWERED": 3}.items():
        monkeypatch.setattr(f"ddrl.commands.logs.{name}", value)
    found, _, err = ddrl("logs", "run", "-f")
    assert (found, err.count("has left the queue")) == (status, status == 0), err


@pytest.mark.parametrize("begun", [False, True])
def test_of_an_output_that_begins_while_it_is_followed_every_line_is_shown(here, ddrl, monkeypatch, begun):
    run = a_run(here / "run")
    output = run / "slurm-13.out"
    note(run, JobRecord("13", output))
    if begun:
        output.touch()
    asked = []

    def queue():
        asked.append(len(asked))
        if len(asked) == 2:
            output.write_text("one\ntwo\nthree\n")
        return [queues.QueuedJob("13", "RUNNING", "0:00", "2:00", "None", "/x.sh")] if len(asked) < 3 else []

    monkeypatch.setattr("ddrl.commands.logs.queue", queue)
    monkeypatch.setattr("ddrl.commands.logs.QUEUE_SECONDS", 0.0)
    monkeypatch.setattr("ddrl.commands.logs.READ_SECONDS", 0.01)
    status, out, _ = ddrl("logs", "run", "-f", "--lines", "1")
    assert status == 0 and out.splitlines()[1:] == ["one", "two", "three"]


def test_logs_of_a_study_are_those_of_all_tasks(here, ddrl):
    study = here / "study"
    study.mkdir()
    rundir.write_json(study / "study.json", {"points": []})
    for job, name in (("9", "slurm-9-%a.out"), ("12", "slurm-12-%a.out"), ("13", "report-13.out")):
        note(study, JobRecord(job, study / name))
    for name in ("slurm-9-0", "slurm-12-10", "slurm-12-2", "report-13"):
        (study / f"{name}.out").write_text(f"of {name}\n")
    lines = [line for line in ddrl("logs", "study")[1].splitlines() if not line.startswith("==>")]
    assert lines == ["of slurm-12-2", "of slurm-12-10", "of report-13"]
