"""No rank waits for ever: ranks that hang, that never come, that come late, and disks that are full."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from cluster.launch import find_mpirun, inspect_mpirun, mpirun_command, rank_environment
from ddrl import checkpoint, rundir
from tests.parallel.support import CATCH, Job, bare_train, events, faulty_game, lines, needs_mpirun, newest, result
from tests.parallel.support import forked_light_train as train

pytestmark = [needs_mpirun, pytest.mark.timeout(300)]
STALL = 6.0
LONG = (*CATCH, "--max-updates", "100000", "--no-evaluator", "--stall-seconds", str(STALL))
CHIEF, WORKER, SERVER = 0, 1, 2
END_SECONDS = 180.0  # of a machine that its neighbors slow; without a watchdog none of these jobs would end


def fault(name):
    """Options of `train` for ranks that go wrong by themselves."""
    return {"program": "ranks_faulty.py", "environment": {"TEST_FAULT": name}}


@contextlib.contextmanager
def at_once(directory, commands):
    """Name -> job, of the flags and other options of each: as every one of these jobs waits more than it works."""
    with contextlib.ExitStack() as stack:
        jobs = {}
        for name, (flags, options) in commands.items():
            (directory / name).mkdir()
            jobs[name] = stack.enter_context(train(directory / name / "run", *flags, **options))
        yield jobs


HUNG = {
    "worker": (WORKER, ()), "server": (SERVER, ()),
    "chief-asynchronous": (CHIEF, ("--updates", "asynchronous")),
    "chief-central-store": (CHIEF, ("--exchange", "central_store")),
}  # fmt: skip
"""Name -> the rank that hangs, and options of its job."""


@pytest.fixture(scope="module")
def hung(tmp_path_factory):
    """Name -> run directory of a job in which a rank was stopped (SIGSTOP), and what was said."""
    commands = {name: ((*LONG, *options), {}) for name, (_, options) in HUNG.items()}
    with at_once(tmp_path_factory.mktemp("hung"), commands) as jobs:
        for name, job in jobs.items():
            job.wait_for_update(10)
            os.kill(job.fork(HUNG[name][0]), signal.SIGSTOP)
        for job in jobs.values():
            assert job.wait(END_SECONDS) == 1, job.output
    said = {name: job.output.split("\n---")[0] for name, job in jobs.items()}
    assert all(each.count("no progress") == 1 for each in said.values()), said
    return {name: (job.run_dir, said[name]) for name, job in jobs.items()}


def reports(run):
    """The first lines of the files of stacks, by rank; each holds stacks, too."""
    texts = {int(path.stem.removeprefix("stacks-")): path.read_text() for path in run.glob("stacks-*.txt")}
    assert all("most recent call first" in text for text in texts.values())
    return {rank: json.loads(text.splitlines()[0]) for rank, text in texts.items()}


def test_a_worker_that_hangs_is_named_with_who_waits_for_what(hung):
    run, said = hung["worker"]
    assert "worker 1 (rank 1) does not answer; parameter server 0 (rank 2) has waited" in said
    assert "s for gradients of step" in said and "stacks-*.txt" in said
    found = reports(run)
    assert set(found) == {0, SERVER}, "the rank that hangs cannot write its stacks, and the others must"
    assert found[SERVER]["peers"] == [WORKER] and found[0]["peers"] == [SERVER]
    assert result(run)["status"] == "failed" and events(run, "restarted") == []


HANGS = 'if self.steps > 200 and os.environ.get("OMPI_COMM_WORLD_RANK") in (None, "1"): time.sleep(1000)'
ALONE = ("a2c", "--preset", "smoke", "--minutes", "0", "--no-evaluator", "--simulators", "4", "--batch-size", "0")
TWO_WORKERS = ("--workers", "2", "--parameter-servers", "1")
START_SECONDS = 30  # in which all ranks but one come to MPI on a busy machine, too: else they would be named as well
LAST_GAMES = ("--max-updates", "150", "--eval-every-updates", "50", "--evaluation-minutes", "0.05")


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Name -> a job that has ended by itself."""
    directory = tmp_path_factory.mktemp("ended")
    # The simulators of rank 1, or of the only process, hang after some updates.
    hanging = (*ALONE, *faulty_game(directory, "hangs", HANGS), "--max-updates", "1000", "--stall-seconds", str(STALL))
    slow = ("--unroll-length", "20", "--step-time-mean-ms", "250", "--max-updates", "3", "--stall-seconds", "3")
    commands = {
        "hanging-alone": (hanging, {}), "hanging-worker": ((*hanging, *TWO_WORKERS), {}),
        "slow": ((*ALONE, *slow), {}), "no-mpi": ((*LONG, "--start-seconds", str(START_SECONDS)), fault("no_mpi")),
        "no-first-word": (LONG, fault("first_word")), "last-games": ((*CATCH, *LAST_GAMES), fault("silent_evaluator")),
    }  # fmt: skip
    with at_once(directory, commands) as jobs:
        statuses = {name: job.wait(END_SECONDS) for name, job in jobs.items()}
    fine = ("slow", "last-games")
    assert statuses == {name: 0 if name in fine else 1 for name in jobs}, [job.output for job in jobs.values()]
    return jobs


def test_a_simulator_that_hangs_in_one_process_is_not_taken_for_a_server(ended):
    said = result(ended["hanging-alone"].run_dir)["message"]
    named = r"no progress: worker 0, the chief \(rank 0\) has waited \d+ s for the gradient of step \d+ from its own "
    assert re.match(named + "trainer thread", said), said
    assert "server" not in said and "slow" not in said


def test_a_worker_whose_simulators_hang_says_that_it_waits_for_its_own_thread(ended):
    run = ended["hanging-worker"].run_dir
    said = result(run)["message"]
    named = (
        r"no progress: worker 1 \(rank 1\) has waited \d+ s for the gradient of step \d+ from its own trainer thread"
    )
    assert re.match(named, said), said
    assert set(reports(run)) == {0, WORKER, SERVER} and reports(run)[SERVER]["peers"] == [WORKER]
    assert events(run, "restarted") == []


def test_rollouts_of_one_process_may_take_longer_than_any_wait(ended):
    run = ended["slow"].run_dir
    assert result(run)["status"] == "finished"
    assert lines(run)[-1]["wall_seconds"] > 9.0, "each of the three rollouts took longer than 3 s"


def test_a_server_that_hangs_is_named(hung):
    run, said = hung["server"]
    assert "parameter server 0 (rank 2) does not answer" in said
    assert set(reports(run)) == {0, WORKER}


@pytest.mark.parametrize("name", ["chief-asynchronous", "chief-central-store"])
def test_a_chief_that_hangs_is_named_though_asynchronous_updates_go_on_without_it(hung, name):
    run, said = hung[name]
    assert "worker 0, the chief (rank 0) does not answer" in said and "s for word" in said
    assert CHIEF not in reports(run)


def test_a_worker_that_hangs_does_not_hold_a_quorum_or_a_deadline_up_and_joins_again_when_it_wakes(tmp_path):
    options = {"quorum": ("--quorum", "1"), "deadline": ("--quorum-deadline-seconds", "0.2")}
    with at_once(tmp_path, {name: ((*LONG, *more), {}) for name, more in options.items()}) as jobs:
        for job in jobs.values():
            job.wait_for_update(10)
            os.kill(job.fork(WORKER), signal.SIGSTOP)
        before = {name: lines(job.run_dir)[-1] for name, job in jobs.items()}
        for name, job in jobs.items():
            run, seconds = job.run_dir, before[name]["wall_seconds"] + 2 * STALL
            job.wait_for(lambda: lines(run)[-1]["wall_seconds"] > seconds, "more lines")
            job.wait_for_update(before[name]["update"] + 11)
            assert "worker-1" not in lines(run)[-1].get("resident_mb", {})
            os.kill(job.fork(WORKER), signal.SIGCONT)
            job.wait_for(lambda: "worker-1" in lines(run)[-1].get("resident_mb", {}), "word of the worker that woke")
            job.process.send_signal(signal.SIGTERM)
            assert job.wait() == 0, job.output
            assert result(run)["status"] == "stopped" and not list(run.glob("stacks-*"))


@pytest.mark.parametrize("when", ["before_note", "before_mpi"])
def test_a_rank_that_dies_before_mpi_is_named(tmp_path, when):
    run = tmp_path / "run"
    with train(run, *LONG, **fault(when)) as job:
        assert job.wait(END_SECONDS) == 1, job.output
    assert "the run failed: rank 1 died before the job began" in job.output


def test_a_worker_that_dies_as_soon_as_all_have_joined_mpi_leaves_the_rest_training(tmp_path):
    run = tmp_path / "run"
    with train(run, *CATCH, "--max-updates", "40", "--no-evaluator", **fault("after_mpi")) as job:
        assert job.wait(END_SECONDS) == 0, job.output
    (lost,) = events(run, "worker_lost")
    assert lost["text"].startswith("worker 1 (rank 1) died") and events(run, "restarted") == []
    assert result(run)["status"] == "finished" and newest(run).version == 40
    assert set(newest(run).worker_states) == {0}


def test_a_rank_that_does_not_come_to_mpi_is_named(ended):
    said = [line for line in ended["no-mpi"].output.split("\n---")[0].splitlines() if "the run failed" in line]
    reason = f"rank 1 did not begin within {START_SECONDS} s, and all were killed"
    assert said == [f"ddrl: the run failed: {reason} (raise --start-seconds on a slow or busy machine)"]


ABSENT = """
import os, runpy, sys, time
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    time.sleep(100)
sys.argv = ["ddrl", "train", "ba3c", "--preset", "smoke", "--start-seconds", "3", "--run-dir", sys.argv[1]]
runpy.run_module("ddrl.cli", run_name="__main__")
"""


def test_a_rank_of_a_bare_job_that_never_begins(tmp_path):
    program = [sys.executable, "-c", ABSENT, str(tmp_path / "run")]
    command = mpirun_command(4, program, False, inspect_mpirun(find_mpirun()))
    with Job(command, tmp_path / "none", rank_environment(as_root=True)) as job:
        assert job.wait(END_SECONDS) == 1, job.output
    assert "Timeout (0:00:03)!" in job.output and "in mpi_world" in job.output
    assert not (tmp_path / "run").exists()


def test_ranks_of_a_bare_job_give_up_a_rank_that_hangs_before_all_agree(tmp_path):
    with bare_train(tmp_path / "run", *LONG, ranks=3, ulfm=False, environment={"TEST_HANGS": "1"}) as job:
        assert job.wait(END_SECONDS) == 1, job.output
    assert "Timeout (0:00:05)!" in job.output and "in gather_json" in job.output
    assert not (tmp_path / "run" / rundir.METRICS).exists()


def test_a_rank_that_hangs_before_its_first_word_is_named(ended):
    run, said = ended["no-first-word"].run_dir, ended["no-first-word"].output.split("\n---")[0]
    told = re.search(r"no progress: parameter server 0 \(rank 2\) has waited (\d+) s for its own start", said)
    assert told and int(told[1]) >= 3, said  # the 3 s of its patience, and what its thread was late on a busy machine
    assert result(run)["status"] == "failed" and events(run, "restarted") == []


def test_an_evaluator_that_is_silent_at_the_end_does_not_keep_the_job(ended):
    run, job = ended["last-games"].run_dir, ended["last-games"]
    (failed,) = events(run, "evaluation_failed")
    assert failed["text"].startswith("the evaluator (rank 3) did not report the final evaluation in time")
    assert failed["text"] in job.output.split("\n---")[0]
    assert result(run)["status"] == "finished" and newest(run).version == 150


def test_an_evaluator_that_hangs_leaves_the_rest_training(tmp_path):
    run = tmp_path / "run"
    with train(run, *CATCH, "--eval-every-updates", "50", "--stall-seconds", "5", **fault("hanging_evaluator")) as job:
        job.wait_for(lambda: events(run, "evaluator_lost"), "loss of the evaluator")
        job.wait_for_update(lines(run)[-1]["update"] + 50)
        job.process.send_signal(signal.SIGTERM)
        assert job.wait() == 0, job.output
    assert (
        "the evaluator (rank 3) has waited" in job.output and "for its own loop, and is leaving the job" in job.output
    )
    assert result(run)["status"] == "stopped" and set(reports(run)) == {3}


@pytest.mark.parametrize("name, who", [
    ("server", ""), ("raising_worker", "worker 1 (rank 1) failed: "),
    ("raising_evaluator", "the evaluator (rank 3) failed: "), ("raising_chief", ""),
])  # fmt: skip
def test_an_exception_in_a_role_ends_all_at_once_and_says_so(tmp_path, name, who):
    """Before the stall that the ranks that wait for it would see."""
    run = tmp_path / "run"
    patience = ("--max-updates", "100000", "--eval-every-updates", "20", "--stall-seconds", str(END_SECONDS))
    with train(run, *CATCH, *patience, **fault(name)) as job:
        assert job.wait(END_SECONDS / 2) == 1, job.output
    assert f"the run failed: {who}ArithmeticError: the {name.removeprefix('raising_')}'s fault" in job.output
    assert "Traceback" in (run / rundir.LOG).read_text()
    assert events(run, "restarted") == [], "a mistake that another start would make again"
    if who:
        found = result(run)
        assert newest(run).version == found["update"] > 0, "nothing is lost"


def test_a_worker_that_comes_late_is_not_waited_for_by_a_quorum_and_joins(tmp_path):
    run = tmp_path / "run"
    with train(run, *LONG, "--quorum", "1", **fault("late")) as job:
        job.wait_for_update(1)
        first = next(line for line in lines(run) if line["update"] > 0)
        assert "worker-1" not in first["resident_mb"], "the late worker was not late"
        job.wait_for(lambda: "worker-1" in lines(run)[-1].get("resident_mb", {}), "word of the late worker")
        steps = lines(run)[-1]["agent_steps"]
        job.wait_for(lambda: lines(run)[-1]["agent_steps"] > steps, "more steps")
        job.process.send_signal(signal.SIGTERM)
        assert job.wait() == 0, job.output


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(disk)], check=False).returncode:
        pytest.skip("no tmpfs can be mounted here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk, leave):
    """Takes all space but so many bytes; returns the file that does."""
    ballast = disk / "ballast"
    state = os.statvfs(disk)
    with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:  # the run takes of the space, too
        file.write(b"\0" * max(0, state.f_bavail * state.f_frsize - leave))
    return ballast


def test_a_disk_that_is_full_at_a_checkpoint_and_then_at_all(small_disk):
    run = small_disk / "run"
    with train(run, *LONG, "--checkpoint-every-updates", "20") as job:
        job.wait_for(lambda: checkpoint.list_checkpoints(run), "checkpoint")
        size = checkpoint.list_checkpoints(run)[-1].stat().st_size
        ballast = small_disk / "ballast"
        # Again and again: a checkpoint that was just being written takes the place of an old one, which frees space.
        failed = lambda: fill(small_disk, leave=size // 2) and events(run, "checkpoint_failed")
        job.wait_for(failed, "failed checkpoint")
        ballast.unlink()
        good = len(events(run, "checkpoint"))
        job.wait_for(lambda: len(events(run, "checkpoint")) > good, "checkpoint after space was freed")
        end = time.monotonic() + END_SECONDS
        while job.process.poll() is None and time.monotonic() < end:
            fill(small_disk, leave=0)
            time.sleep(0.05)
        assert job.wait(1.0) in (1, 2), job.output
    assert "No space left" in job.output and "free space" in job.output
    for path in checkpoint.list_checkpoints(run):
        checkpoint.load(path)


def test_a_last_checkpoint_that_finds_no_room_is_tried_again(small_disk):
    run = small_disk / "run"
    with train(run, *LONG, "--checkpoint-every-updates", "1000000") as job:
        job.wait_for(lambda: events(run, "started"), "first update")
        ballast = fill(small_disk, leave=100_000)
        job.process.send_signal(signal.SIGTERM)
        job.wait_for(lambda: events(run, "checkpoint_failed"), "failed last checkpoint")
        assert checkpoint.list_checkpoints(run) == []
        ballast.unlink()
        assert job.wait(END_SECONDS) == 0, job.output
    assert result(run)["status"] == "stopped" and newest(run).version > 0
    assert len(events(run, "checkpoint")) == 1


def test_a_rank_that_cannot_leave_mpi_does_not_keep_the_job(tmp_path):
    run, short = tmp_path / "run", ("--max-updates", "20", "--no-evaluator", "--on-worker-loss", "restart")
    with train(run, *CATCH, *short, **fault("no_end")) as job:
        assert job.wait(END_SECONDS) == 0, job.output
    assert result(run)["status"] == "finished" and newest(run).version == 20
