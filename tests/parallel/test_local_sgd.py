"""Whole jobs on Catch whose workers take steps of their own between two averages."""

from __future__ import annotations

import pytest

from tests.parallel.support import (
    CATCH,
    EXACT,
    differences,
    events,
    finish,
    forked_light_train,
    forked_train,
    kill,
    lines,
    needs_mpirun,
    newest,
    result,
)

pytestmark = [needs_mpirun, pytest.mark.timeout(300)]
LOCAL = ("--exchange", "local_sgd", "--local-steps")
RATE = ("--learning-rate-schedule", "linear", "--learning-rate-updates", "1500")


def test_it_learns_survives_a_death_refuses_what_is_not_finite_and_starts_again_without_its_chief(tmp_path):
    run = tmp_path / "run"
    bad = {"TEST_BAD_WORKER": "1", "TEST_BAD_GRADIENTS": "5,6"}
    flags = ("--workers", "3", "--no-evaluator", "--checkpoint-every-updates", "100", "--max-updates", "1000")
    often = ("--log-every-seconds", "0.2")  # so that both deaths come well before the last update
    command = (*CATCH, *RATE, *LOCAL, "4", *flags, *often)
    with forked_train(run, *command, program="ranks_bad_gradient.py", environment=bad) as job:
        job.wait_for_update(50)
        kill(job.rank(2))
        job.wait_for(lambda: events(run, "worker_lost"), "loss of a worker")
        job.wait_for_update(250)
        job.wait_for(lambda: any(event["update"] >= 200 for event in events(run, "checkpoint")), "checkpoint")
        kill(job.rank(0))
        assert job.wait() == 0, job.output
    (lost,), (resumed,) = events(run, "worker_lost"), events(run, "resumed")
    assert lost["text"] == "worker 2 (rank 2) died; training goes on with 2 workers"
    refused = [event["workers"] for event in events(run, "gradient_refused")]
    assert refused and all(workers == [1] for workers in refused)
    assert resumed["update"] % 4 == 0 and resumed["update"] >= 200
    last = newest(run)
    assert result(run)["status"] == "finished" and (last.version, last.optimizer_count) == (1000, 1000)
    assert last.step % 4 == 0 and last.step > 1000, "refused rounds are steps, too"
    assert lines(run)[-1]["live_workers"] == 3 and set(last.worker_states) == {0, 1, 2}
    assert lines(run)[-1]["online_score_mean"] > 0.5  # chance: -0.6


def test_one_step_of_sgd_equals_a_parameter_server_to_the_bit(tmp_path):
    sgd = (*EXACT, "--max-updates", "20", "--optimizer", "sgd")
    finish(tmp_path / "servers", *sgd, start=forked_light_train)
    finish(tmp_path / "local", *sgd, *LOCAL, "1", start=forked_light_train)
    assert list(differences(newest(tmp_path / "servers"), newest(tmp_path / "local"))) == []


def test_it_resumes_to_the_bit(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    finish(whole, *EXACT, *LOCAL, "4", start=forked_light_train)
    finish(parts, *EXACT, *LOCAL, "4", "--max-updates", "20", start=forked_light_train)
    finish(parts, "--resume", str(parts), "--max-updates", "40", start=forked_light_train)
    assert events(parts, "resumed")[0]["update"] == 20 and newest(whole).version == 40
    assert list(differences(newest(parts), newest(whole))) == []
