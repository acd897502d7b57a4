"""What kills, stops and poisons a running job, with real ranks: the job ends as promised, or goes on."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ddrl import checkpoint, rundir
from ddrl.placement import start
from tests.launch.support import Terminal
from tests.parallel.light import EVERYWHERE
from tests.parallel.support import (
    CATCH,
    bare_train,
    events,
    finish,
    forked_light_train,
    kill,
    lines,
    marked,
    needs_mpirun,
    newest,
    result,
)

pytestmark = [needs_mpirun, pytest.mark.timeout(300)]
END_SECONDS = 60.0  # within which every rank ends after the loss of the chief or a server
LONG = (*CATCH, "--max-updates", "100000", "--checkpoint-every-updates", "20")
CHIEF, WORKER, SERVER, EVALUATOR = 0, 1, 2, 3


def test_a_killed_worker_leaves_the_rest_training(tmp_path):
    run = tmp_path / "run"
    many = ("--max-updates", "300", "--log-every-seconds", "0.2")  # so that the death comes well before the last update
    with forked_light_train(run, *CATCH, *many, "--no-evaluator", "--workers", "3", "--quorum", "3") as job:
        job.wait_for_update(20)
        kill(job.rank(WORKER))
        assert job.wait() == 0, job.output
    (lost,) = events(run, "worker_lost")
    assert lost["text"].startswith("worker 1 (rank 1) died")
    assert result(run)["status"] == "finished" and newest(run).version == 300
    assert set(newest(run).worker_states) == {0, 2}
    assert lines(run)[-1]["live_workers"] == 2


@pytest.mark.parametrize("number, name", [(CHIEF, "worker 0, the chief (rank 0)"), (2, "parameter server 0 (rank 2)")])
def test_a_killed_chief_or_server_starts_all_again_from_the_last_checkpoint(tmp_path, number, name):
    run = tmp_path / "run"
    with forked_light_train(run, *LONG, "--no-evaluator", "--log-every-seconds", "0.5") as job:
        job.wait_for(lambda: checkpoint.list_checkpoints(run), "checkpoint")
        job.wait_for_update(50)
        saved = newest(run).version
        kill(job.rank(number))
        job.wait_for(lambda: events(run, "resumed"), "new start")
        (again,), (resumed,) = events(run, "restarted"), events(run, "resumed")
        assert again["text"].startswith(f"{name} died: the run starts again from update {resumed['update']}")
        assert resumed["update"] >= saved
        job.wait_for(lambda: newest(run).version > resumed["update"], "checkpoint after the new start")
        job.process.send_signal(signal.SIGTERM)
        assert job.wait() == 0, job.output
    assert "restarted: " in job.output and result(run)["status"] == "stopped"


def test_a_death_during_a_restart_is_one_more_restart(tmp_path):
    run, number = tmp_path / "run", 2
    with forked_light_train(run, *LONG, "--no-evaluator", "--log-every-seconds", "0.5") as job:
        job.wait_for(lambda: checkpoint.list_checkpoints(run), "checkpoint")
        first = job.fork(number)
        kill(first)
        begun = lambda: [note.pid for rank, note in start.notes(run).items() if rank == number and note.pid != first]
        job.wait_for(begun, "server of the new start")
        kill(*begun())
        job.wait_for(lambda: len(events(run, "restarted")) == 2, "another new start")
        job.wait_for(lambda: events(run, "resumed"), "update after it")
        resumed = events(run, "resumed")[-1]
        job.wait_for(lambda: newest(run).version > resumed["update"], "checkpoint after it")
        job.process.send_signal(signal.SIGTERM)
        assert job.wait() == 0, job.output
    assert result(run)["status"] == "stopped"


def test_ranks_whose_launcher_is_killed_save_and_end(tmp_path):
    run = tmp_path / "run"
    with forked_light_train(run, *LONG, "--no-evaluator") as job:
        job.wait_for_update(30)
        job.process.send_signal(signal.SIGUSR1)  # which ends it at once, as a SIGKILL would
        assert job.wait() == -signal.SIGUSR1
        end = time.monotonic() + END_SECONDS
        while marked(job.mark):
            assert time.monotonic() < end, "the ranks did not notice"
            time.sleep(0.1)
    assert result(run)["status"] == "stopped"
    assert newest(run).version == result(run)["update"] >= 30


def test_a_message_that_cannot_be_read_ends_the_run_and_names_its_sender(tmp_path):
    run = tmp_path / "run"
    fault = {"program": "ranks_faulty.py", "environment": {"TEST_FAULT": "garbled"}}
    with forked_light_train(run, *LONG, "--no-evaluator", **fault) as job:
        assert job.wait() == 1, job.output
    said = job.output.split("\n---")[0]
    assert said.count("the run failed: rank 1 sent an unreadable message") == 1 and "Traceback" not in said, said
    assert result(run)["status"] == "failed" and events(run, "restarted") == []


def test_without_ulfm_mpi_ends_the_job_at_any_death_and_all_start_again(tmp_path):
    run = tmp_path / "run"
    with forked_light_train(run, *LONG, "--no-evaluator", environment={"TEST_NO_ULFM": "1"}) as job:
        job.wait_for(lambda: checkpoint.list_checkpoints(run), "checkpoint")
        for starts, number in ((1, WORKER), (2, 2)):
            kill(job.rank(number))
            job.wait_for(lambda: len(events(run, "resumed")) == starts, "new start")
            again, resumed = events(run, "restarted")[-1], events(run, "resumed")[-1]
            assert again["text"].startswith(f"a rank died: the run starts again from update {resumed['update']}")
            job.wait_for(lambda: newest(run).version > resumed["update"], "new checkpoint")
        job.process.send_signal(signal.SIGTERM)
        assert job.wait() == 0, job.output
    assert "has no ULFM: the loss of a worker ends the job" in job.output
    assert result(run)["status"] == "stopped" and not events(run, "worker_lost")


def end_of_a_lost_rank(run, job, number):
    """Kills a rank that the job cannot do without; returns what was said."""
    job.wait_for(lambda: checkpoint.list_checkpoints(run), "checkpoint")
    kill(job.rank(number))
    assert job.wait(END_SECONDS) == 1, job.output
    said = job.output.split("\n---")[0]
    assert said.count("the run failed") == 1 and said.count("--resume") == 1, said
    return said


def test_a_killed_server_ends_all_and_resume_goes_on(tmp_path):
    run = tmp_path / "run"
    stop = ("--on-server-loss", "stop")
    with forked_light_train(run, *LONG, *stop, "--no-evaluator", "--parameter-servers", "2") as job:
        said = end_of_a_lost_rank(run, job, 3)
    assert "parameter server 1 (rank 3) died" in said and f"ddrl train --resume {run}" in said
    version = newest(run).version
    finish(run, "--resume", str(run), "--max-updates", str(version + 20), start=forked_light_train)
    assert newest(run).version == version + 20 and result(run)["status"] == "finished"


@pytest.mark.parametrize("ulfm, statuses", [(True, (0, 1)), (False, (128 + signal.SIGKILL,))])
def test_a_killed_server_of_a_bare_job_ends_all_and_resume_goes_on(tmp_path, ulfm, statuses):
    """With ULFM, mpirun may take the loss for one that was survived: the status is then 0, and the result tells."""
    run = tmp_path / "run"
    with bare_train(run, *LONG, "--no-evaluator", ranks=3, ulfm=ulfm) as job:
        job.wait_for(lambda: checkpoint.list_checkpoints(run), "checkpoint")
        kill(job.rank(SERVER))
        assert job.wait() in statuses, job.output
    if ulfm:
        assert f"parameter server 0 (rank 2) died; resume with `ddrl train --resume {run}`" in job.output
        assert result(run)["status"] == "failed"
    assert events(run, "restarted") == [] and len(events(run, "started")) == 1
    version = newest(run).version
    finish(run, "--resume", str(run), "--max-updates", str(version + 20), start=forked_light_train)
    assert newest(run).version == version + 20 and result(run)["status"] == "finished"


def test_a_killed_evaluator_leaves_training_going_and_sigterm_to_a_rank_stops_all(tmp_path):
    run = tmp_path / "run"
    with forked_light_train(run, *LONG, "--eval-every-updates", "50") as job:
        job.wait_for_update(20)
        kill(job.rank(EVALUATOR))
        job.wait_for(lambda: events(run, "evaluator_lost"), "loss of the evaluator")
        job.wait_for_update(lines(run)[-1]["update"] + 100)
        os.kill(job.rank(SERVER), signal.SIGTERM)
        assert job.wait() == 0, job.output
    assert result(run)["status"] == "stopped"
    assert newest(run).version == result(run)["update"]


def test_control_c_in_a_terminal_with_real_ranks(tmp_path, monkeypatch):
    for name, value in EVERYWHERE.items():
        monkeypatch.setenv(name, value)
    run = tmp_path / "run"
    ddrl = os.path.join(os.path.dirname(sys.executable), "ddrl")
    terminal = Terminal([ddrl, "train", *LONG, "--run-dir", str(run)])
    end = time.monotonic() + 120.0
    while not (run / rundir.METRICS).exists() or not any(line["update"] > 10 for line in lines(run)):
        if time.monotonic() > end:
            os.kill(terminal.pid, signal.SIGKILL)  # else it trains on beside all other tests
            pytest.fail(terminal.read())
        terminal.read()
        time.sleep(0.1)
    ranks = [note.pid for note in start.notes(run).values()]
    heavy = [pid for pid in ranks if "libtensorflow" in Path(f"/proc/{pid}/maps").read_text()]
    terminal.control_c()
    assert len(ranks) == 4 and not heavy  # of EVERYWHERE, which the tests of Slurm use, too
    assert terminal.wait(150.0) == 0, terminal.output  # of a busy machine, on which the curve is still to be drawn
    assert result(run)["status"] == "stopped" and newest(run).version == result(run)["update"]
    assert (run / "learning_curve.png").exists()
    assert "ddrl train --resume" in terminal.output


def test_a_gradient_that_is_not_finite_is_refused_named_and_counted(tmp_path):
    run = tmp_path / "run"
    bad = {"TEST_BAD_WORKER": "1", "TEST_BAD_GRADIENTS": "5,6"}
    finish(
        run,
        *CATCH,
        "--max-updates",
        "20",
        "--no-evaluator",
        "--clip-global-norm",
        "0",
        program="ranks_bad_gradient.py",
        environment=bad,
        start=forked_light_train,
    )
    refused = events(run, "gradient_refused")
    assert [event["workers"] for event in refused] == [[1], [1]]
    assert all("worker 1" in event["text"] for event in refused)
    (told,) = events(run, "gradient_not_finite")
    assert told["text"].startswith("the gradient of worker 1 at update ") and "is not finite: 1 of " in told["text"]
    assert lines(run)[-1]["steps_refused"] == 2
    assert newest(run).version == 20 and newest(run).step == 22
    assert np.isfinite(newest(run).parameters).all()


def test_too_many_refused_steps_end_the_run_with_a_good_checkpoint(tmp_path):
    run = tmp_path / "run"
    bad = {"TEST_BAD_WORKER": "0", "TEST_BAD_GRADIENTS": ",".join(map(str, range(10, 1000)))}
    job = finish(
        run,
        *CATCH,
        "--max-updates",
        "500",
        "--no-evaluator",
        "--max-refused-steps",
        "4",
        program="ranks_bad_gradient.py",
        environment=bad,
        status=1,
        start=forked_light_train,
    )
    assert len(events(run, "gradient_refused")) in (4, 5)  # the one that ended the run may be one of them
    assert "4 steps were refused" in job.output and "worker 0" in job.output
    assert f"with `ddrl train --resume {run} ...`, or begin a new run" in job.output
    assert f"resume with `ddrl train --resume {run}`" not in job.output
    assert newest(run).version == 10
    assert all(np.isfinite(array).all() for array in (newest(run).parameters, *newest(run).slots.values()))


@pytest.mark.parametrize("updates", ["synchronous", "asynchronous"])
def test_the_last_worker_of_a_dedicated_chief(tmp_path, updates):
    run = tmp_path / "run"
    roles = ("--workers", "1", "--chief", "dedicated", "--no-evaluator", "--updates", updates)
    with forked_light_train(run, *CATCH, "--max-updates", "100000", *roles) as job:
        job.wait_for_update(20)
        kill(job.rank(1))
        assert job.wait(END_SECONDS) == 1, job.output
    assert "it was the last worker" in job.output
    assert newest(run).version >= 20


def test_more_servers_than_parameters(tmp_path):
    job = finish(tmp_path / "run", *CATCH, "--no-evaluator", program="ranks_tiny_network.py", status=2)
    said = [line for line in job.output.split("\n---")[0].splitlines() if line.startswith("ddrl: ")]
    assert said == ["ddrl: --parameter-servers 1: the network has 0 parameters; use at most that many"]
