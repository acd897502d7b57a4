"""Ends that nobody asked for: an environment that ends its rank, and an mpirun that is killed. None is silent."""

from __future__ import annotations

import os
import signal

import pytest

from tests.parallel.ranks_exiting import REFUSED, WORDS
from tests.parallel.support import CATCH, events, faulty_game, lines, marked, needs_mpirun, newest, result
from tests.parallel.support import forked_light_train as train

pytestmark = [needs_mpirun, pytest.mark.timeout(300)]
LONG = (*CATCH, "--max-updates", "100000", "--eval-every-updates", "10", "--checkpoint-every-updates", "20")
WORKER, EVALUATOR = 1, 3
SAID = {
    "_exit": "called os._exit(0)",
    "SystemExit": f"SystemExit: {WORDS}",
    "KeyboardInterrupt": f"KeyboardInterrupt: {WORDS}",
}
END_SECONDS = 100.0  # of a busy machine; a stall is seen after 300


@pytest.mark.parametrize("how, rank", [("_exit", WORKER), ("SystemExit", EVALUATOR), ("KeyboardInterrupt", WORKER)])
def test_an_environment_that_ends_its_rank_is_named_with_its_words(tmp_path, how, rank):
    run = tmp_path / "run"
    environment = {"TEST_EXIT": f"{how}:{rank}"}
    with train(run, *LONG, program="ranks_exiting.py", environment=environment) as job:
        assert job.wait(END_SECONDS) == 1, job.output
    who = {WORKER: "worker 1 (rank 1)", EVALUATOR: "the evaluator (rank 3)"}[rank]
    assert f"the run failed: {who} failed:" in job.output and SAID[how] in job.output
    (event,) = events(run, "rank_failed")
    assert SAID[how] in event["text"] and "ranks_exiting.py" in event["traceback"], "where in the environment"
    found = result(run)
    assert found["status"] == "failed" and newest(run).version == found["update"] > 0, "nothing is lost"
    assert events(run, "restarted") == []


def test_what_one_rank_alone_finds_wrong_with_what_was_asked_for_is_one_line(tmp_path):
    environment = {"TEST_EXIT": f"{REFUSED}:{WORKER}"}
    with train(tmp_path / "run", *LONG, program="ranks_exiting.py", environment=environment) as job:
        assert job.wait(END_SECONDS) == 2, job.output
    assert f"ddrl: {WORDS}: install it" in job.output and "Traceback" not in job.output


def test_an_observation_of_another_shape_ends_the_run_with_a_checkpoint(tmp_path):
    run = tmp_path / "run"
    game = faulty_game(tmp_path, "misshapen", "if self.steps >= 200: observation = numpy.zeros((), numpy.float32)")
    flags = ("a2c", "--preset", "smoke", "--minutes", "0", "--max-updates", "100000", "--no-evaluator")
    with train(run, *flags, *game) as job:
        assert job.wait(END_SECONDS) == 1, job.output
    said = "misshapen gave an observation of shape (), and its observation space has (2,): fix the environment"
    (event,) = events(run, "rank_failed")
    assert said in event["text"] and said in job.output.split("\n---")[0]
    assert newest(run).version == result(run)["update"] > 0, "nothing is lost"


def test_a_single_process_too(tmp_path):
    run = tmp_path / "run"
    sizes = ("--workers", "1", "--parameter-servers", "0")
    environment = {"TEST_EXIT": "_exit:0"}
    with train(run, *LONG, *sizes, program="ranks_exiting.py", environment=environment) as job:
        assert job.wait(END_SECONDS) == 1, job.output
    assert "the run failed" in job.output and SAID["_exit"] in job.output
    assert newest(run).version == result(run)["update"] > 0


def test_a_worker_that_a_library_ends_behind_pythons_back_is_lost_like_a_killed_one(tmp_path):
    run = tmp_path / "run"
    environment = {"TEST_EXIT": f"library:{WORKER}"}
    with train(run, *LONG, program="ranks_exiting.py", environment=environment) as job:
        job.wait_for(lambda: events(run, "worker_lost"), "worker_lost", END_SECONDS)
        job.wait_for_update(lines(run)[-1]["update"] + 20)
        job.process.send_signal(signal.SIGINT)
        assert job.wait() == 0, job.output


def mpirun_of(job) -> int:
    """Process id of a job's mpirun: the parent of its ranks."""
    pid = job.rank(0)
    return int(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[1])


def test_a_run_whose_mpirun_was_killed_starts_again(tmp_path):
    run = tmp_path / "run"
    with train(run, *LONG) as job:
        job.wait_for_update(25)
        job.wait_for(lambda: events(run, "checkpoint"), "checkpoint")  # without one there is no new start
        os.kill(mpirun_of(job), signal.SIGKILL)
        job.wait_for(lambda: events(run, "resumed"), "new start")
        (event,) = events(run, "restarted")
        assert "was killed (SIGKILL)" in event["text"]
        job.process.send_signal(signal.SIGINT)
        assert job.wait() == 0, job.output
    assert not list(marked(job.mark))
    assert result(run)["status"] == "stopped"
