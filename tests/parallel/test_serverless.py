"""Whole jobs on Catch whose workers exchange without servers: all-reduce and central store."""

from __future__ import annotations

import os
import signal

import pytest

from tests.parallel.support import CATCH, events, forked_train, kill, lines, needs_mpirun, newest, result

pytestmark = [needs_mpirun, pytest.mark.timeout(300)]
RATE = ("--learning-rate-schedule", "linear", "--learning-rate-updates", "900", "--max-updates", "600")


def test_all_reduce_learns_survives_a_death_and_refuses_what_is_not_finite(tmp_path):
    run = tmp_path / "run"
    bad = {"TEST_BAD_WORKER": "1", "TEST_BAD_GRADIENTS": "5,6"}
    # Lines come often, so that the death comes well before the last update.
    flags = ("--exchange", "allreduce", "--workers", "3", "--no-evaluator", "--log-every-seconds", "0.2")
    with forked_train(run, *CATCH, *RATE, *flags, program="ranks_bad_gradient.py", environment=bad) as job:
        job.wait_for_update(50)
        kill(job.rank(2))
        assert job.wait() == 0, job.output
    (lost,) = events(run, "worker_lost")
    assert lost["text"] == "worker 2 (rank 2) died; training goes on with 2 workers"
    assert [event["workers"] for event in events(run, "gradient_refused")] == [[1], [1]]
    assert result(run)["status"] == "finished"
    assert (newest(run).version, newest(run).step, newest(run).optimizer_count) == (600, 602, 600)
    assert lines(run)[-1]["live_workers"] == 2 and set(newest(run).worker_states) == {0, 1}
    assert lines(run)[-1]["online_score_mean"] > 0.5  # chance: -0.6


def test_a_central_store_learns_survives_a_death_and_stops_on_request(tmp_path):
    run = tmp_path / "run"
    flags = ("--exchange", "central_store", "--workers", "3", "--no-evaluator", "--max-updates", "100000")
    # As in test_learning.py: with asynchronous updates at 1e-3, some runs get stuck.
    rate = ("--clip-global-norm", "0", "--learning-rate", "3e-4", "--checkpoint-every-updates", "500")
    with forked_train(run, *CATCH, *flags, *rate) as job:
        job.wait_for_update(300)
        kill(job.rank(2))
        job.wait_for(lambda: events(run, "worker_lost"), "loss of a worker")
        job.wait_for(lambda: max(line.get("online_score_mean", -1.0) for line in lines(run)) > 0.5, "learning")
        os.kill(job.rank(1), signal.SIGUSR1)  # SIGTERM is in test_faults.py
        assert job.wait() == 0, job.output
    assert result(run)["status"] == "stopped" and set(newest(run).worker_states) == {0, 1}
    assert newest(run).version == result(run)["update"] > 300
    assert any("staleness_mean" in line for line in lines(run))
    assert [line["torn_updates"] for line in lines(run) if "torn_updates" in line][-1] in (0, 1, 2, 3)
