"""What a job agrees on before it begins: refusals of any rank, versions, time, the run directory and its lock."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from pathlib import Path

import pytest

from cluster.job import Job
from ddrl import checkpoint as checkpoints
from ddrl import rundir
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import ExchangeConfig, RunConfig, TrainConfig
from ddrl.errors import UsageError
from ddrl.launch import job, outcome
from ddrl.options.train_options import parse, settings_of
from ddrl.options.wanted import Wanted, checked
from ddrl.placement import start
from ddrl.reporting import machine
from ddrl.reporting.metrics import MetricsWriter
from ddrl.reporting.phases import EVALUATING
from ddrl.roles import __main__ as rank_program
from ddrl.roles import compute, main
from ddrl.types import Machine
from tests.launch.support import checkpoint

MACHINE = Machine(8, 1 << 40)
FINE = {"host": "n1", "version": "1.0"}


def test_the_first_rank_that_refuses_is_named_unless_it_is_rank_0():
    job._check_all([FINE, FINE])
    with pytest.raises(UsageError, match="^rank 2 on n3: it will not$"):
        job._check_all([FINE, FINE, {"host": "n3", "version": "1.0", "refused": "it will not"}])
    with pytest.raises(UsageError, match="^it will not$"):
        job._check_all([FINE | {"refused": "it will not"}, FINE | {"refused": "nor I"}])


def test_versions_are_one():
    with pytest.raises(UsageError, match="rank 1 on n2 has ddrl 0.9 and rank 0 on n1 has 1.0: install it once"):
        job._check_all([FINE, {"host": "n2", "version": "0.9"}])


def test_ranks_of_one_version_whose_source_differs_are_refused(monkeypatch):
    own = job._parse(lambda: Wanted(resume_or_start(Path("run")).config, None), rank=0)[1]
    monkeypatch.setattr(machine, "source_mark", lambda: "another")
    other = job._parse(lambda: Wanted(resume_or_start(Path("run")).config, None), rank=1)[1] | {"host": "n2"}
    with pytest.raises(UsageError, match=r"^rank 1 on n2 has ddrl [\d.]+, source another and rank 0 on"):
        job._check_all([own, other])


def test_a_rank_that_cannot_read_its_source_says_so_to_all(monkeypatch):
    """The others would wait for its word."""

    def unreadable():
        raise PermissionError(13, "Permission denied", "/site/ddrl/cli.py")

    monkeypatch.setattr(machine, "source_mark", unreadable)
    wanted, report = job._parse(lambda: Wanted(resume_or_start(Path("run")).config, None), rank=1)
    assert wanted is None
    with pytest.raises(UsageError, match="^rank 1 on n2: /site/ddrl/cli.py: Permission denied; fix"):
        job._check_all([FINE, report | {"host": "n2"}])


def test_machines_of_one_name_are_refused():
    """Placement would take them for one. A name that two machines have is no name."""
    n1, n2 = FINE | {"boot_id": "a"}, FINE | {"host": "n2", "boot_id": "b"}
    job._check_all([n1, n2, n1, n2])
    job._check_all([n1, n1 | {"boot_id": ""}, n1])  # a rank that may not look there
    job._check_all([n1 | {"boot_id": ""}, n1, n1])
    with pytest.raises(UsageError, match="^ranks 1 and 3 are on different machines that are both called n2: give each"):
        job._check_all([n1, n2, n1, n2 | {"boot_id": "c"}])


@pytest.mark.parametrize(
    "minutes, spent, checkpoints, updates, fine",
    [
        (0.0, 0.0, 5.0, 0, False),
        (2.0, 0.0, 5.0, 0, True),
        (4.0, 0.0, 5.0, 0, False),
        (4.0, 90.0, 5.0, 0, True),
        (4.0, 300.0, 5.0, 0, True),
        (0.0, 0.0, 2.0, 0, True),
        (0.0, 0.0, 5.0, 100, True),
    ],
)
def test_a_job_is_longer_than_its_checkpoint_interval(minutes, spent, checkpoints, updates, fine):
    """Or than what is left of its minutes."""
    run = RunConfig(minutes=minutes, checkpoint_every_minutes=checkpoints, checkpoint_every_updates=updates)
    environ = {job.JOB_END: "1180"}  # three minutes from 1000
    with contextlib.nullcontext() if fine else pytest.raises(UsageError, match="ends in 3.0 minutes, and the first"):
        job.check_time(TrainConfig(algorithm=BA3CConfig(), run=run), environ, 1000.0, spent)
    job.check_time(TrainConfig(algorithm=BA3CConfig(), run=run), {}, 1000.0)


def test_mistakes_of_all_ranks_are_said_once(tmp_path, capsys):
    def mistaken() -> Wanted:
        print("usage")
        raise SystemExit(2)

    assert job._parse(mistaken, rank=1)[1]["refused"] == ""
    assert capsys.readouterr().out == ""
    job._parse(mistaken, rank=0)
    assert capsys.readouterr().out == "usage\n"


@pytest.mark.parametrize(
    "error, why",
    [
        (
            OSError(28, "No space left on device", "run/config.json"),
            "run/config.json: No space left on device; free space",
        ),
        (MemoryError(), "not enough memory"),
    ],
)
def test_what_the_system_refuses_one_rank_is_told_to_all(error, why):
    """The others wait for its word, and would do so without end."""

    def refused(*_):
        raise error

    assert job._together(None, {}, refused)["refused"].startswith(why)
    assert job._parse(refused, rank=1)[1]["refused"].startswith(why)


@pytest.fixture
def second_rank(tmp_path, monkeypatch):
    """Calls `train_in_job` as the second of two ranks, without MPI."""
    monkeypatch.setattr(job, "mpi_world", lambda *_: object())
    return lambda: job.train_in_job(lambda: resume_or_start(tmp_path / "run"), Job(1, 2, "openmpi"), {})


def test_ranks_do_not_wait_without_end_for_what_they_agree_on(second_rank, monkeypatch):
    """The file system of one node may hang, and the others wait for that rank."""
    done = []

    @contextlib.contextmanager
    def bounded(seconds):
        done.append(seconds)
        yield
        done.append("free")

    def begin(*_):
        done.append("begun")
        return {"run_dir": "run", "note": None}

    def share(*_):
        done.append("shared")
        return {}

    monkeypatch.setattr(job, "bounded_start", bounded)
    monkeypatch.setattr(job, "_begin", begin)
    monkeypatch.setattr(job, "_share", share)
    with pytest.raises(KeyError, match="config"):  # nothing was agreed on
        second_rank()
    assert done == [RunConfig().start_seconds + job.AGREEMENT_SECONDS, "begun", "shared", "free"]


@pytest.mark.parametrize("rank, said", [(0, 1), (1, 0)])
def test_rank_0_says_how_to_look_for_the_cause_of_silence(capsys, monkeypatch, rank, said):
    monkeypatch.setattr(job, "bounded_start", contextlib.nullcontext)
    told = ""
    with job.bounded_agreement(rank, 0.01):
        end = time.monotonic() + (60.0 if said else 0.1)
        while not told and time.monotonic() < end:
            time.sleep(0.01)
            told = capsys.readouterr().err
    assert told.count("ddrl: the ranks have not agreed on the run within 0.01 s; start `ddrl doctor` as") == said


@pytest.mark.parametrize("error", [RuntimeError("MPI_ERR_PROC_FAILED"), ValueError("no JSON")])
def test_a_rank_that_dies_before_all_agree_ends_the_job_in_one_line(second_rank, monkeypatch, capsys, error):
    def gather(*_):
        raise error

    monkeypatch.setattr(job, "gather_json", gather)
    monkeypatch.setattr(job, "_begin", lambda world, *_: job._together(world, FINE, dict))
    monkeypatch.setattr(main, "abort", lambda status: status)
    with pytest.raises(SystemExit, match="1"):
        second_rank()
    assert capsys.readouterr().err == "ddrl: a rank died while the job began\n"


def test_a_directory_of_another_machine_with_the_same_name_is_not_the_run_directory(tmp_path, monkeypatch):
    """Checkpoints, replays, and the request to stop would be where only some of the ranks look."""
    used = []
    monkeypatch.setattr(job, "SHARE_SECONDS", 0.0)
    monkeypatch.setattr(job, "quieten", used.append)
    environ = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    start.leave_note(tmp_path, environ, start.BEGUN)
    note = list(start.notes(tmp_path)[0])  # as JSON has it
    assert job._share(None, tmp_path, note) == {} == job._share(None, tmp_path, None)
    assert used == [tmp_path, tmp_path]
    note[1] += 1  # of an earlier start, when the directory was copied
    refused = f"{tmp_path} is not the same directory as on rank 0; choose a --run-dir that all nodes share"
    assert job._share(None, tmp_path, note) == {"refused": refused}
    monkeypatch.chdir(tmp_path.parent)
    start.clear_notes(tmp_path)
    assert job._share(None, Path(tmp_path.name), note) == {"refused": refused}
    assert used == [tmp_path, tmp_path]


def resume_or_start(path, *options):
    return parse(["ba3c", "--preset", "smoke", "--resume-or-start", "--run-dir", str(path), *options], MACHINE)


def begun(tmp_path, seconds=420.0):
    """The directory of a run that has trained for so many of its 7 minutes."""
    path, config = rundir.create_run_dir(resume_or_start(tmp_path / "run", "--minutes", "7").config)
    checkpoints.save(path, checkpoint(config, seconds))
    return path


def test_resume_or_start_begins_a_run_and_goes_on_with_it(tmp_path):
    path = tmp_path / "run"
    first = resume_or_start(path, "--minutes", "7")
    assert first.resume == "" and first.config.run.minutes == 7.0
    rundir.create_run_dir(first.config)
    second = resume_or_start(path, "--workers", "3")
    assert second.resume == str(path)
    expected = dataclasses.replace(first.config.exchange, workers=3)
    assert second.config == dataclasses.replace(first.config, exchange=expected)


def test_resume_without_a_checkpoint_is_refused_at_once(tmp_path):
    rundir.create_run_dir(resume_or_start(tmp_path / "run").config)
    with pytest.raises(UsageError, match="as there is no checkpoint yet"):
        checked(["--resume", str(tmp_path / "run")], MACHINE)
    with pytest.raises(UsageError, match="--resume-or-start needs --run-dir"):
        parse(["ba3c", "--resume-or-start"], MACHINE)


def test_rank_0_locks_the_run_directory(tmp_path):
    wanted = Wanted(resume_or_start(tmp_path / "run").config, None)
    with contextlib.ExitStack() as stack:
        message = job.prepare(wanted, stack)
        assert message["resume"] is False and rundir.config_from_dict(message["config"]).run.run_dir == str(
            tmp_path / "run"
        )
        again = Wanted(wanted.config, tmp_path / "run")
        with pytest.raises(UsageError, match="is being trained by another process"), contextlib.ExitStack() as other:
            job.prepare(again, other)
    stale = [tmp_path / "run" / name for name in ("stop", "stalled", "result.json")]
    for path in stale:
        path.touch()
    with contextlib.ExitStack() as stack:
        assert job.prepare(again, stack)["resume"] is True
    assert not any(path.exists() for path in stale)


@pytest.mark.parametrize(
    ("result", "options", "alone"),
    [
        ({"status": "finished", "unevaluated": True}, (), True),
        ({"status": "finished", "unevaluated": True}, ("--minutes", "7"), True),
        ({"status": "finished", "unevaluated": True}, ("--minutes", "8"), False),
        ({"status": "finished", "unevaluated": True}, ("--max-updates", "100000"), False),
        ({"status": "finished"}, (), False),
        ({"status": "stopped"}, (), False),
    ],
)
def test_what_a_run_that_goes_on_still_lacks(tmp_path, result, options, alone):
    path = begun(tmp_path)
    rundir.write_json(path / rundir.RESULT, result)
    with contextlib.ExitStack() as stack:
        agreed = job.prepare(Wanted(resume_or_start(path, *options).config, path), stack)
        assert agreed["evaluates_only"] is alone and not (path / rundir.RESULT).exists()


@pytest.mark.parametrize("killed", [False, True])
def test_a_finished_run_keeps_its_result_if_the_ranks_of_a_job_do_not_begin(tmp_path, monkeypatch, killed):
    """As where a node cannot write in its directory. The job before may have been killed as early as that."""
    path, file = begun(tmp_path), tmp_path / "run" / rundir.RESULT
    rundir.write_json(file, {"status": "finished", "unevaluated": True})
    os.utime(file, (9, 9))
    wanted = Wanted(resume_or_start(path, "--workers", "1", "--parameter-servers", "0").config, path)
    if killed:
        file.rename(path / rundir.RESULT_BEFORE)
        rundir.write_json(file, {"status": "failed"})
    seen = []
    monkeypatch.setattr(job, "prepare", lambda *given, own=job.prepare: seen.append(own(*given)) or seen[0])
    monkeypatch.setattr(job, "_share", lambda *_: {"refused": "cannot write there"})
    with pytest.raises(UsageError, match="cannot write there"):
        job.train_in_job(lambda: wanted, Job(0, 1, "slurm"), {})
    assert seen[0]["evaluates_only"] and rundir.read_json(file)["status"] == "finished"
    assert file.stat().st_mtime == 9 and not (path / rundir.RESULT_BEFORE).exists()


LOST = {"status": "failed", "message": "server 0 died", "lost": "server 0 died"}


@pytest.mark.parametrize(
    ("result", "told", "alone"),
    [
        (None, ("checkpoint", "final"), True),
        (LOST, ("checkpoint", "final"), True),
        ({"status": "failed"}, ("checkpoint", "final"), False),
        ({"status": "stopped"}, ("checkpoint", "final"), False),
        (None, ("checkpoint",), False),
        (None, ("checkpoint", "checkpoint_failed", "final"), False),
        (None, ("checkpoint", "final", "resumed"), False),
        (None, ("checkpoint", "final", "resumed", "final"), True),
    ],
)
def test_a_run_that_died_in_its_final_evaluation_lacks_that_alone(tmp_path, result, told, alone):
    """But training too if the last checkpoint could not be saved, or a further start has begun to train."""
    path = begun(tmp_path)
    config = rundir.load_config(path)
    writer = MetricsWriter(path)
    for name in told:
        phase = {"phase": EVALUATING} if name == "final" else {}
        writer.event("phase" if name == "final" else name, "", 5.0, **phase)
    writer.close()
    if result:
        rundir.write_json(path / rundir.RESULT, result)
    assert outcome.lacks_evaluation_only(path, config) is alone
    longer = config.changed(run={"minutes": 8.0})
    rundir.update_run_dir(path, longer)  # as by a start that died before it trained
    assert not outcome.lacks_evaluation_only(path, longer)


def test_the_minutes_of_a_job_are_those_of_the_whole_run(tmp_path):
    """All starts of a job have one command. Those that a user gives with --resume count from now."""
    path = begun(tmp_path, 240.0)
    again = ["--resume-or-start", "--run-dir", str(path), "--minutes", "7"]
    for words, spent in ((again, 240.0), (["--resume", str(path)], 0.0), ([*again, "--minutes", "0"], 0.0)):
        with contextlib.ExitStack() as stack:
            agreed = job.prepare(checked(words, MACHINE, with_game=False), stack)
        assert (agreed["spent_seconds"], agreed["resume"]) == (spent, True)


def test_a_job_needs_time_for_the_minutes_that_are_left(tmp_path):
    """Not for all of them, most of which an earlier job may have trained."""
    path = begun(tmp_path, 240.0)
    words = ["--resume-or-start", "--run-dir", str(path), "--workers", "1", "--parameter-servers", "0"]
    words += ["--checkpoint-every-minutes", "20"]
    environ = {job.JOB_END: str(int(time.time()) + 300)}
    for minutes, refused in (("7", False), ("30", True)):
        with contextlib.ExitStack() as stack:
            wanted = checked([*words, "--minutes", minutes], MACHINE, with_game=False)
            agreed = job._begin(None, wanted, FINE, stack, environ)
        assert ("this job ends in " in agreed.get("refused", "")) == refused, agreed


def test_a_resume_that_names_minutes_wants_them(tmp_path):
    path = begun(tmp_path)
    rundir.write_json(path / rundir.RESULT, {"status": "finished", "unevaluated": True})
    assert not parse(["--resume", str(path)], MACHINE).trains_more
    assert not resume_or_start(path, "--minutes", "7").trains_more, "it may be the same command again"
    more = parse(["--resume", str(path), "--minutes", "7"], MACHINE)
    assert settings_of(None, None, MACHINE, resume=path, minutes=7).trains_more
    with contextlib.ExitStack() as stack:
        agreed = job.prepare(Wanted(more.config, path, more.trains_more), stack)
    assert more.trains_more and agreed["resume"] and not agreed["evaluates_only"]


@pytest.mark.parametrize(
    ("result", "asked", "drawn"),
    [
        ({"status": "finished"}, False, True),
        ({"status": "finished"}, True, False),
        ({"status": "finished", "unevaluated": True}, True, False),
        ({"status": "stopped"}, True, False),
    ],
)
def test_a_job_that_was_asked_to_end_draws_nothing(tmp_path, monkeypatch, capsys, result, asked, drawn):
    """It is short of time, and curve and video can be made later."""
    path, config = rundir.create_run_dir(resume_or_start(tmp_path / "run").config)
    rundir.write_json(path / rundir.RESULT, {"message": "the end"} | result)
    if asked:
        (path / rundir.STOP).touch()
    done = []
    monkeypatch.setattr(job.launch, "finish", lambda *_: done.append("drawn"))
    monkeypatch.setattr(job.launch, "summarize", lambda *_: done.append("summary"))
    with job.Reporter(config, path) as reporter:
        reporter.conclude()
    assert done == ["drawn"] * drawn + ["summary"]
    remedy = f"`python -m ddrl.launch.finish {path}` makes them"
    assert (remedy in capsys.readouterr().out) == (asked and result == {"status": "finished"})


def test_an_error_of_an_earlier_part_of_a_run_is_not_why_a_job_has_no_result(tmp_path, capsys):
    path, config = rundir.create_run_dir(resume_or_start(tmp_path / "run").config)
    (path / rundir.LOG).write_text("Traceback (most recent call last):\n  File 'a.py'\nValueError: of yesterday\n")
    with job.Reporter(config, path) as reporter:
        with (path / rundir.LOG).open("a") as log:
            log.write("the disk is full\n")
        reporter.conclude()
    said = capsys.readouterr().out
    assert "ddrl: the run failed: no result; the log ends with: the disk is full\n" in said and "yesterday" not in said


def test_what_follows_a_run_of_one_process_is_no_stall(tmp_path, monkeypatch):
    """Curve and video may take longer than --stall-seconds, and the process is not to be ended for that."""
    done = []

    class Noting:
        """Stands in for the watchdog and the roles: notes what is called."""

        result = {"status": "finished"}

        def __init__(self, *_):
            pass

        def __getattr__(self, name):
            return lambda *_: done.append(name) or self

    for name in ("expose_gpu", "import_tensorflow", "refuse_exits", "phase_ended"):
        monkeypatch.setattr(main, name, lambda *_: None)
    monkeypatch.setattr(main, "run_roles", lambda *_: done.append("run"))
    monkeypatch.setattr(main, "Watchdog", Noting)
    monkeypatch.setattr(compute, "ComputeRoles", Noting)
    one = ExchangeConfig(workers=1, parameter_servers=0)
    config = TrainConfig(algorithm=BA3CConfig(), exchange=one, run=RunConfig(run_dir=str(tmp_path)))
    assert main._run_single(config, tmp_path, False, lambda: done.append("drawn"), False, 0.0) == 0
    assert done == ["evaluator", "worker", "chief", "start", "run", "left", "drawn"]


def test_a_rank_of_a_new_start_keeps_the_users_budget_and_knows_what_is_spent(tmp_path, monkeypatch):
    path, config = rundir.create_run_dir(resume_or_start(tmp_path / "run", "--minutes", "7").config)
    got = {}
    monkeypatch.setattr(main, "run", lambda config, path, **options: got.update(options, config=config) or 0)
    monkeypatch.setattr(sys, "argv", ["ddrl.roles", str(path), "--evaluates-only", "--resume", "--spent", "240.0"])
    assert rank_program._rank() == 0
    assert got == {"config": config, "resume": True, "evaluates_only": True, "spent_seconds": 240.0}


def test_a_job_says_what_may_not_be_meant(tmp_path, capsys):
    config = parse(["rainbow", "--value-max", "0.5", "--run-dir", str(tmp_path)], MACHINE).config
    with job.Reporter(config, tmp_path):
        pass
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("warning: the support of the distributions is -10 to 0.5") and "run directory" in said[1]
