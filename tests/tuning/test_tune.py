"""`ddrl tune`: trials one after the other and at once, stopped early, interrupted and gone on with; its report."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import re
import signal
import stat
import sys
import threading
import time
import types
from pathlib import Path

import pytest

from ddrl import cli, run_lock, rundir
from ddrl.commands import tune as command
from ddrl.errors import UsageError
from ddrl.options import train_options
from ddrl.placement.resources import this_machine
from ddrl.slurm.site import VARIABLE
from ddrl.studies.points import state_of
from ddrl.tuning import engine, journal, report
from ddrl.tuning import plan as plans
from ddrl.tuning.journal import JOURNAL, open_study
from ddrl.types import Machine
from tests.tuning.fake_trial import LINES, PACE

pytest.importorskip("optuna")

SPACE = ("--space", "adam-epsilon=log(1e-9,1e-2)", "batch-size=choice(32,128)")
BASE = ("--preset", "smoke", "--agent-steps", "1e4")


@pytest.fixture
def fake(monkeypatch):
    """Trials that learn nothing."""
    monkeypatch.setattr(engine, "TRIAL_PROGRAM", [sys.executable, str(Path(__file__).with_name("fake_trial.py"))])
    monkeypatch.setattr(engine, "POLL_SECONDS", 0.02)


@pytest.fixture
def pace(fake, tmp_path_factory, monkeypatch):
    """A directory whose files say how many lines these trials may write: see `tests.tuning.fake_trial`."""
    directory = tmp_path_factory.mktemp("pace")
    monkeypatch.setenv(PACE, str(directory))
    return directory


@pytest.fixture
def second_waits(pace, monkeypatch):
    """The second trial writes one line and then waits to be stopped, until this is called."""
    (pace / "0000").write_text(str(LINES))
    return lambda: monkeypatch.delenv(PACE)


def tune(directory: Path, *words: str) -> int:
    return cli.main(["tune", *words, "--dir", str(directory)])


def begin(directory: Path, *words: str) -> int:
    return tune(directory, "ba3c", *BASE, *SPACE, *words)


def trials(directory: Path):
    plan = plans.load(directory)
    assert plan is not None
    return open_study(plan).get_trials()


def states(directory: Path) -> list[str]:
    return [trial.state.name for trial in trials(directory)]


def test_a_search_and_its_report(fake, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(report, "ENOUGH", 8)
    (tmp_path / "own").write_text("kept")
    (tmp_path / report.BEST).symlink_to(tmp_path / "own")  # by somebody else, where several users work
    assert begin(tmp_path, "--trials", "8") == 0
    ended = trials(tmp_path)
    assert states(tmp_path) == ["COMPLETE"] * 8 and (tmp_path / "own").read_text() == "kept"
    best = max(ended, key=lambda trial: trial.value)
    for trial in ended:
        run = rundir.load_config(tmp_path / "trials" / f"{trial.number:04d}")
        assert run.optimizer.adam_epsilon == trial.params["adam-epsilon"]
        assert str(run.optimizer.batch_size) == trial.params["batch-size"]
        assert not run.evaluation.evaluator and not run.run.video
    assert f"best {best.value:.4g} (trial {best.number})" in capsys.readouterr().out
    config = train_options.parse(["--config", str(tmp_path / "best.yaml")], this_machine()).config
    wanted = train_options.parse(["ba3c", *BASE], this_machine()).config.changed(
        optimizer={"adam_epsilon": best.params["adam-epsilon"], "batch_size": int(best.params["batch-size"])}
    )
    assert config == wanted, "the evaluator and the video of the preset are those of the best run, too"
    page = (tmp_path / "report.html").read_text()
    assert (
        page.count("<img") == 5  # two settings have a picture each
        and "Importance" in page
        and "adam-epsilon" in page
        and "http" not in page.split("<body>")[1]
    )
    assert len((tmp_path / "trials.csv").read_text().splitlines()) == 9


def test_equal_seeds_look_at_equal_settings(fake, tmp_path):
    for name in ("one", "two"):
        assert begin(tmp_path / name, "--trials", "3") == 0
    one, two = ([trial.params for trial in trials(tmp_path / name)] for name in ("one", "two"))
    assert one == two and len({trial["adam-epsilon"] for trial in one}) == 3
    assert begin(tmp_path / "three", "--trials", "1", "--seed", "2") == 0
    assert trials(tmp_path / "three")[0].params != one[0]


def test_several_at_once_and_some_stopped_early(pace, tmp_path, monkeypatch, capsys):
    """A trial writes a line when the one before it was reported, so that none has ended before it can be stopped."""
    follow = engine.Running.follow

    def follow_and_let_go_on(running):
        follow(running)
        if not running.pruned:
            (pace / running.path.name).write_text(str(len(running._records) + 1))

    monkeypatch.setattr(engine.Running, "follow", follow_and_let_go_on)
    assert begin(tmp_path, "--trials", "14", "--prune", "--at-once", str(min(2, this_machine().cores))) == 0
    ended = trials(tmp_path)
    pruned = [trial for trial in ended if trial.state.name == "PRUNED"]
    whole = [trial for trial in ended if trial.state.name == "COMPLETE"]
    assert pruned and len(pruned) + len(whole) == 14
    for trial in pruned:
        assert state_of(tmp_path / "trials" / f"{trial.number:04d}").status in ("interrupted", "finished")
        assert max(trial.intermediate_values) < engine.RUNGS
    assert "stopped early" in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text()
    assert f"{len(pruned)} stopped early" in page and page.count("<img") == 4, "too few to say something of importance"


def stop_soon(directory: Path) -> threading.Thread:
    """Asks this process to stop once the second trial has metrics."""

    def wait() -> None:
        end = time.monotonic() + 100
        while not (directory / "trials/0001" / rundir.METRICS).exists():
            if time.monotonic() > end:
                return  # there is no trial, and nobody who takes the signal
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_interrupted_and_gone_on_with(second_waits, tmp_path, capsys):
    thread = stop_soon(tmp_path)
    assert begin(tmp_path, "--trials", "4") == 130
    thread.join()
    second_waits()
    assert states(tmp_path) == ["COMPLETE", "RUNNING"]
    before = trials(tmp_path)[1].params
    assert "stopping" in capsys.readouterr().out
    assert tune(tmp_path) == 0
    assert "trial 1 goes on with" in capsys.readouterr().out
    assert states(tmp_path) == ["COMPLETE"] * 4
    assert trials(tmp_path)[1].params == before
    assert (tmp_path / "trials/0001" / rundir.METRICS).read_bytes().count(b"\n") == 20, "it went on where it was"
    assert tune(tmp_path, "--trials", "5") == 0
    assert len(trials(tmp_path)) == 5


def test_a_trial_that_another_process_runs_is_left_alone(second_waits, tmp_path):
    thread = stop_soon(tmp_path)
    begin(tmp_path, "--trials", "2")
    thread.join()
    second_waits()
    plan = plans.load(tmp_path)
    with engine.locked(plan, "0001") as had:
        assert had
        assert tune(tmp_path) == 0
        assert states(tmp_path) == ["COMPLETE", "RUNNING"]
    assert tune(tmp_path, "--task", "7") == 0
    assert states(tmp_path) == ["COMPLETE", "COMPLETE"]


def test_a_requeued_job_waits_for_a_trial_that_a_lost_node_seems_to_run(second_waits, tmp_path, monkeypatch):
    """Without that its task of the array would end well, and nobody would run the trial."""
    thread = stop_soon(tmp_path)
    begin(tmp_path, "--trials", "2")
    thread.join()
    second_waits()
    claim, told = os.open(tmp_path / "claims" / "0001", os.O_RDWR), []
    fcntl.flock(claim, fcntl.LOCK_EX)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    monkeypatch.setattr(run_lock, "STARTED", time.monotonic())
    monkeypatch.setattr(run_lock, "tell_of_wait", lambda path: (told.append(path), os.close(claim)))
    assert tune(tmp_path, "--task", "1") == 0
    assert states(tmp_path) == ["COMPLETE", "COMPLETE"] and told == [tmp_path / "trials" / "0001"]


def test_a_process_that_stands_still_while_it_takes_a_trial_is_not_waited_for_for_ever(
    fake, tmp_path, capsys, monkeypatch
):
    assert begin(tmp_path, "--trials", "1") == 0
    monkeypatch.setattr(journal, "WAIT_SECONDS", 0.2)
    capsys.readouterr()
    with engine.locked(plans.load(tmp_path), "ask") as had:
        assert had
        assert tune(tmp_path, "--trials", "2") == 2
    error = capsys.readouterr().err
    assert "claims/ask: another process has held this lock for 0.2 s" in error and error.count("\n") == 1
    assert tune(tmp_path) == 0 and states(tmp_path) == ["COMPLETE"] * 2


def test_what_a_killed_process_left_at_the_journal_is_not_waited_for(fake, tmp_path, monkeypatch):
    assert begin(tmp_path / "search", "--trials", "1") == 0
    monkeypatch.chdir(tmp_path)
    os.symlink(f"search/{JOURNAL}", f"search/{JOURNAL}.lock")  # Optuna's own lock of a relative path
    assert states(Path("search")) == ["COMPLETE"]


def test_a_process_that_stands_still_while_it_writes_the_journal_is_not_waited_for_for_ever(
    fake, tmp_path, monkeypatch
):
    assert begin(tmp_path, "--trials", "1") == 0
    monkeypatch.setattr(journal, "WAIT_SECONDS", 0.2)
    with journal.locked(plans.load(tmp_path), journal.WRITING) as had:
        assert had
        with pytest.raises(UsageError, match="claims/journal: another process has held this lock for 0.2 s"):
            trials(tmp_path)
    assert states(tmp_path) == ["COMPLETE"]


def test_the_journal_is_written_where_the_file_system_has_no_locks(fake, tmp_path, monkeypatch):
    assert begin(tmp_path, "--trials", "1") == 0

    def no_locks(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(run_lock.fcntl, "flock", no_locks)
    size = (tmp_path / JOURNAL).stat().st_size
    assert states(tmp_path) == ["COMPLETE"]
    assert (tmp_path / JOURNAL).stat().st_size > size
    assert not (tmp_path / "claims" / "journal.lock").exists(), "it was released"


def test_half_a_line_at_the_end_of_the_journal_costs_no_more_than_itself(fake, tmp_path):
    """A full disk or a killed process leaves it. The next line would continue it, and none behind it could be read."""
    assert begin(tmp_path, "--trials", "1") == 0
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(b'{"op_code":4,"worker_id":"x","study')
    assert tune(tmp_path, "--trials", "2") == 0 and states(tmp_path) == ["COMPLETE"] * 2
    for line in (tmp_path / JOURNAL).read_bytes().splitlines():
        json.loads(line)


def test_a_trial_whose_process_ended_while_it_was_drawn_is_gone_on_with(fake, tmp_path):
    assert begin(tmp_path, "--trials", "1") == 0
    open_study(plans.load(tmp_path)).ask()  # it has no settings yet
    assert tune(tmp_path, "--trials", "2") == 0 and states(tmp_path) == ["COMPLETE"] * 2
    assert trials(tmp_path)[1].params.keys() == trials(tmp_path)[0].params.keys()


@pytest.mark.filterwarnings("error:The reported value is ignored")
def test_what_was_reported_of_an_interrupted_trial_is_not_reported_again(fake, tmp_path):
    assert begin(tmp_path, "--trials", "1") == 0
    plan = plans.load(tmp_path)
    open_study(plan).ask(journal.distributions(plan.space)).report(0.25, 2)
    assert tune(tmp_path, "--trials", "2") == 0 and states(tmp_path) == ["COMPLETE"] * 2
    scores = trials(tmp_path)[1].intermediate_values
    assert scores[2] == 0.25 and len(scores) == engine.RUNGS - 1, "the first line is no score of the first rung"


def test_failed_trials_are_told_and_count(fake, tmp_path, capsys):
    assert tune(tmp_path, "ba3c", *BASE, "--space", "batch-size=choice(32,64)", "--trials", "6") == 0
    failed = [trial for trial in trials(tmp_path) if trial.state.name == "FAIL"]
    assert failed and all(trial.user_attrs["why"] == "it broke" for trial in failed)
    assert f"trial {failed[0].number} failed: it broke" in (tmp_path / "report.html").read_text()


def test_each_setting_of_the_report_has_its_own_range(fake, tmp_path):
    """Though the name of one is a part of the other's."""
    space = ("--space", "entropy-cost-start=choice(0.5,0.6)", "entropy-cost=choice(0.01,0.02)")
    assert tune(tmp_path, "ba3c", *BASE, *space, "--trials", "1") == 0
    page = (tmp_path / "report.html").read_text()
    assert page.count("choice(0.5,0.6)") == page.count("choice(0.01,0.02)")


def test_a_search_that_fails_altogether_is_one_line(fake, tmp_path, capsys):
    words = ("ba3c", *BASE, "--space", "batch-size=choice(64)", "--trials", "2")
    assert tune(tmp_path, *words) == 2
    assert "no trial has ended with a score (it broke)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, message",
    [
        (("ba3c", *BASE), "--space: say what to search"),
        (("ba3c", *BASE, "--space", "lr=log(1e-5,1)"), "did you mean learning-rate?"),
        (("bac3", *BASE, *SPACE), "bac3: there is no such algorithm; did you mean ba3c?"),
        (("ba3c", "--game", "brakeout", *SPACE), "did you mean breakout?"),
        (("ba3c", *BASE, *SPACE, "--trials", "0"), "--trials 0: must be between 1 and"),
        (("ba3c", *BASE, *SPACE, "--trils", "3"), "--trils: there is no such option"),
        (("ba3c", *BASE, *SPACE, "--collect"), "no search has begun there"),
        (("ba3c", *BASE, *SPACE, "--collect", "--submit"), "--collect and --submit: give one of them"),
        (("ba3c", *BASE, *SPACE, "--minutes", "0", "--agent-steps", "0"), "a trial would never end"),
        (("ba3c", *BASE, *SPACE, "--at-once", "100000"), "use at most one trial per core"),
        (("ba3c", *BASE, *SPACE, "--run-dir", "x"), "a search has its trials in --dir"),
        (("ba3c", *BASE, *SPACE, "--target-score", "1"), "trials have one only with --score evaluation; use that, or"),
        (
            ("ba3c", *BASE, *SPACE, "--no-evaluator", "--score", "evaluation"),
            "--no-evaluator: trials with --score evaluation have one; leave it out",
        ),
        (("ba3c", *BASE, *SPACE, "--print-config"), "only `ddrl train` prints settings; leave it out of `ddrl tune`"),
        (("ba3c", *BASE, *SPACE, "--sbatch-options=-H"), "--sbatch-options goes with --submit: give both"),
        (("--trials", "5"), "no search has begun there; name one, or begin it with --space"),
        ((), "no search has begun|name an algorithm|--space"),
    ],
)
def test_refusals(tmp_path, words, message, capsys):
    assert tune(tmp_path / "search", *words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and re.search(message if "|" in message else re.escape(message), error), error
    assert plans.load(tmp_path / "search") is None, "what follows is not the continuation of a mistake"


def test_another_search_in_the_same_directory_is_refused(fake, tmp_path, capsys):
    assert begin(tmp_path, "--trials", "2") == 0
    for words, message in (
        (("--space", "adam-epsilon=log(1e-9,1e-2)"), "--space 'adam-epsilon=log(1e-9,1e-2)': the search in"),
        (("a2c",), "options of ddrl train a2c: the search in"),
        (("--score", "evaluation"), "--score evaluation: the search in"),
        (("--trials", "1"), f"--trials 1: the search in {tmp_path} has 2; leave this out, or give more"),
    ):
        assert tune(tmp_path, *words) == 2
        assert message in capsys.readouterr().err
    assert tune(tmp_path, "ba3c") == 0, "the same algorithm says nothing new"


def test_a_journal_of_another_study_is_refused(fake, tmp_path, capsys):
    for name in ("one", "two"):
        assert begin(tmp_path / name, "--trials", "1") == 0
    (tmp_path / "two" / JOURNAL).write_bytes((tmp_path / "one" / JOURNAL).read_bytes())
    capsys.readouterr()
    assert tune(tmp_path / "two", "--trials", "2") == 2
    error = capsys.readouterr().err
    assert "is the journal of another search, ba3c-" in error and error.count("\n") == 1
    (tmp_path / "two" / JOURNAL).write_bytes(b"what\nis this\n")
    assert tune(tmp_path / "two", "--trials", "2") == 2
    assert capsys.readouterr().err.count("\n") == 1
    (tmp_path / "one" / plans.FILE).write_text("{}")
    assert tune(tmp_path / "one") == 2
    assert "is damaged" in capsys.readouterr().err


def test_the_array_has_a_task_for_each_trial_that_is_left(fake, tmp_path, monkeypatch, capsys):
    for name in ("search", "done"):
        assert begin(tmp_path / name, "--trials", "2") == 0
    note, program = tmp_path / "arguments", tmp_path / "bin" / "sbatch"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > "{note}"\necho 42\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setenv(VARIABLE, "")  # no site file
    capsys.readouterr()
    assert tune(tmp_path / "search", "--trials", "7", "--submit", "--at-once", "2", "--dry-run") == 0
    dry = capsys.readouterr().out
    assert not note.exists() and plans.load(tmp_path / "search").trials == 2
    assert tune(tmp_path / "search", "--trials", "7", "--submit", "--at-once", "2") == 0
    script = tmp_path / "search" / "job.sbatch"
    assert note.read_text().splitlines() == ["--parsable", str(script)]
    told = script.read_text().splitlines()
    assert "#SBATCH --array=0-4%2" in told and "#SBATCH --job-name=tune-ba3c" in told
    assert told[-1] == f'task ddrl tune --dir {tmp_path / "search"} --task "$SLURM_ARRAY_TASK_ID"'
    assert told[2:] == dry.splitlines()[2:-1]
    assert plans.load(tmp_path / "search").trials == 7
    assert tune(tmp_path / "done", "--submit") == 2
    assert "has no trial left to run (--trials 2)" in capsys.readouterr().err


@pytest.mark.parametrize(("submit", "workers"), [(True, 8), (False, 2)])
def test_tasks_of_an_array_do_not_share_the_machine_from_which_it_is_submitted(tmp_path, monkeypatch, submit, workers):
    monkeypatch.setattr(command, "this_machine", lambda: Machine(8, 1 << 40))
    asked = command.TuneArguments(space=SPACE[1:2], at_once=4, submit=submit, dry_run=submit)
    train = ("ba3c", "--preset", "laptop", "--game", "CartPole-v1")
    assert command.begin(tmp_path / "search", asked, train, "").base.exchange.workers == workers


@pytest.mark.timeout(300)
def test_real_trials_on_catch(tmp_path, capfd):
    """Adam's epsilon for two batch sizes: what each run has learned with is what was suggested."""
    space = ("--space", "adam-epsilon=log(1e-9,1e-2)", "batch-size=choice(64,128)")
    single = ("--workers", "1", "--parameter-servers", "0")
    assert tune(tmp_path, "ba3c", "--preset", "smoke", "--agent-steps", "6000", *single, "--trials", "2", *space) == 0
    for trial in trials(tmp_path):
        path = tmp_path / "trials" / f"{trial.number:04d}"
        config = json.loads((path / rundir.CONFIG).read_text())
        assert config["optimizer"]["adam_epsilon"] == trial.params["adam-epsilon"]
        assert (path / "machine.json").exists() and -1.0 <= trial.value <= 1.0
    assert (tmp_path / "report.html").exists()


def test_of_two_searches_that_begin_at_once_in_one_directory_one_is_refused(fake, tmp_path, monkeypatch, capsys):
    """With the plan of the one and the journal of the other, neither could be gone on with."""
    check, names = command.check_game, []

    def meanwhile(*arguments, **options):
        monkeypatch.setattr(command, "check_game", check)
        assert begin(tmp_path, "--trials", "1") == 0
        names.append(plans.load(tmp_path).name)
        return check(*arguments, **options)

    monkeypatch.setattr(command, "check_game", meanwhile)
    assert begin(tmp_path, "--trials", "1") == 2
    assert "another `ddrl tune` has just begun a search there; give the same command" in capsys.readouterr().err
    assert plans.load(tmp_path).name == names[0] and states(tmp_path) == ["COMPLETE"]


def test_a_search_that_this_node_does_not_see_yet_is_not_replaced(fake, tmp_path, monkeypatch, capsys):
    """On a network file system, a node may remember for a minute that there was no plan."""
    assert begin(tmp_path, "--trials", "1") == 0
    plan = plans.load(tmp_path)
    with monkeypatch.context() as late:
        late.setattr(command.plans, "load", lambda directory: None)
        assert begin(tmp_path, "--trials", "1") == 2
    assert "another `ddrl tune` has just begun a search there; give the same" in capsys.readouterr().err
    assert plans.load(tmp_path) == plan
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / plans.TRIALS).touch()
    with pytest.raises(UsageError, match="new: File exists; choose one that can be written"):
        plans.begin(dataclasses.replace(plan, directory=tmp_path / "new"))


@pytest.mark.parametrize("name", [JOURNAL, f"{journal.CLAIMS}/ask"])
def test_links_in_the_directory_of_a_search_are_not_followed(fake, tmp_path, name, capsys):
    own = tmp_path / "own"
    own.write_text("one\nhalf")
    (tmp_path / "search" / journal.CLAIMS).mkdir(parents=True)
    (tmp_path / "search" / name).symlink_to(own if name == JOURNAL else tmp_path / "elsewhere")
    assert begin(tmp_path / "search", "--trials", "1") == 2
    assert f"{name}: it is a link, which is not followed" in capsys.readouterr().err
    assert own.read_text() == "one\nhalf" and not (tmp_path / "elsewhere").exists()


def test_a_trial_is_told_of_without_control_characters(capsys):
    search = types.SimpleNamespace(plan=types.SimpleNamespace(trials=2))
    engine.Engine._say(search, types.SimpleNamespace(number=0), "failed: broke\x1b[2J\x9bK")
    assert capsys.readouterr().out == "[1/2] trial 0 failed: broke?[2J?K\n"
