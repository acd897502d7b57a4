"""Whole jobs of Ape-X on Catch, in which everything dies."""

from __future__ import annotations

import os
import re
import signal

import pytest

from tests.parallel.light import EVERYWHERE
from tests.parallel.support import (
    Job,
    command_of,
    evaluations,
    events,
    forked_light_train,
    forked_train,
    kill,
    lines,
    marked,
    needs_mpirun,
    newest,
    result,
)

pytestmark = [pytest.mark.timeout(240), needs_mpirun]

SMOKE = ("apex-dqn", "--preset", "smoke", "--minutes", "0", "--actors", "2", "--replay-shards", "2")
LEARNER, AN_ACTOR, A_SHARD = 0, 1, 3  # ranks


def child(job: Job, actor: int) -> int | None:
    """Process id of an actor's child, if it lives."""
    for pid in marked(job.mark):
        words = command_of(pid)
        if "ddrl.apex.acting" in words and words[words.index("ddrl.apex.acting") + 2] == str(actor):
            return pid
    return None


@pytest.mark.timeout(600)
def test_catch_is_learned_though_actors_a_shard_and_the_learner_die(tmp_path):
    run = tmp_path / "run"
    pace = ("--samples-per-insert", "4", "--max-updates", "4800")
    # Falling to 0: at a constant rate one of ten last versions had lost its policy for a moment.
    rate = ("--learning-rate", "2e-3", "--learning-rate-schedule", "linear", "--learning-rate-updates", "4800")
    saving = ("--checkpoint-every-updates", "300", "--eval-games", "200", "--eval-every-updates", "1600")
    with forked_train(run, *SMOKE, *pace, *rate, *saving) as job:
        job.wait_for_update(50)
        for number, actor in enumerate((0, 1, 0), 1):
            job.wait_for(lambda: child(job, actor), "child of an actor")
            kill(child(job, actor))
            job.wait_for(lambda: len(events(run, "actor_restarted")) >= number, "word of a killed child")
        kill(job.rank(A_SHARD))
        job.wait_for(lambda: events(run, "replay_shard_lost"), "word of a lost shard")
        kill(job.rank(AN_ACTOR))
        job.wait_for(lambda: events(run, "actor_lost"), "word of a lost actor")
        job.wait_for(lambda: len(events(run, "checkpoint")) >= 2, "a checkpoint of one shard")
        kill(job.rank(LEARNER))
        assert job.wait(500.0) == 0, job.output
    assert result(run)["status"] == "finished" and newest(run).version == 4800
    (resumed,) = events(run, "resumed")
    assert resumed["update"] >= 300 and not events(run, "rank_failed") and not events(run, "segment_refused")
    after = [line for line in lines(run) if line["update"] >= resumed["update"] and "replay_size" in line]
    assert after[0]["replay_size"] >= 1_000, "the replay of the shard that was saved is there again"
    names = {"run", "actors", "ahead", "shard0", "shard1", "target.version", "target.vector"}
    assert set(newest(run).worker_states[0]) == names
    samples, inserts = (sum(line.get(f"{what}_per_s", 0.0) for line in after) for what in ("samples", "inserts"))
    assert 2.5 < samples / inserts < 6.0
    lag = [line["lag_mean"] for line in lines(run) if "lag_mean" in line][-1]
    assert lag < 2_200, "1,200 for the age of what is drawn, and 200 as actors renew their parameters every 400 updates"
    assert evaluations(run)[-1] >= 0.8  # chance: -0.6


@pytest.mark.parametrize(
    "fault, who", [("raising_actor", "actor 0 (rank 1)"), ("raising_shard", "replay shard 0 (rank 3)")]
)
def test_an_exception_in_the_rank_of_an_actor_or_in_a_shard_ends_the_run_with_a_checkpoint(tmp_path, fault, who):
    run = tmp_path / "run"
    flags = (*SMOKE, "--no-evaluator", "--max-updates", "1000000", "--checkpoint-every-updates", "50")
    environment = EVERYWHERE | {"TEST_FAULT": fault}
    with forked_light_train(run, *flags, program="ranks_faulty.py", environment=environment) as job:
        assert job.wait(200.0) == 1, job.output
    assert f"the run failed: {who} failed: ArithmeticError: the {fault.removeprefix('raising_')}'s fault" in job.output
    (event,) = events(run, "rank_failed")
    assert event["text"].startswith(who) and "ranks_faulty.py" in event["traceback"]
    assert newest(run).version == result(run)["update"] > 0, "nothing is lost"
    assert events(run, "restarted") == [], "a mistake that another start would make again"


@pytest.mark.timeout(600)
def test_a_silent_shard_holds_up_neither_checkpoints_nor_the_end(tmp_path):
    run = tmp_path / "run"
    patience = {"TEST_STOP_SECONDS": "3"}  # after the result, before the launcher kills the silent one
    slow = ("--step-time-mean-ms", "20")  # so that the actors do not keep both cores busy while all wait
    saving = ("--no-evaluator", "--checkpoint-every-updates", "200")
    with forked_light_train(run, *SMOKE, *slow, *saving, environment=EVERYWHERE | patience) as job:
        job.wait_for_update(50)
        os.kill(job.fork(A_SHARD), signal.SIGSTOP)
        # 10 s; SAVE_SECONDS where the signal met it while it wrote its part of a checkpoint
        job.wait_for(lambda: events(run, "replay_shard_silent"), "word of the silent shard", 300.0)
        saved = len(events(run, "checkpoint"))
        job.wait_for(lambda: len(events(run, "checkpoint")) > saved + 1, "checkpoints without the silent shard")
        job.process.send_signal(signal.SIGTERM)
        assert job.wait() == 0, job.output
    assert result(run)["status"] == "stopped" and newest(run).version > 200
    (event,) = events(run, "replay_shard_silent")
    assert re.match(r"replay shard 0 \(rank 3\) has been silent for \d+ s: ", event["text"])
    manifests = [name for name in newest(run).worker_states[0] if name.startswith("shard")]
    assert manifests == ["shard1"] and not events(run, "replay_shard_lost")


def test_a_learner_that_hangs_is_named_by_a_shard(tmp_path):
    run = tmp_path / "run"
    patience = ("--no-evaluator", "--max-updates", "1000000", "--stall-seconds", "10")
    with forked_light_train(run, *SMOKE, *patience, environment=EVERYWHERE) as job:
        job.wait_for_update(50)
        os.kill(job.fork(LEARNER), signal.SIGSTOP)
        assert job.wait(200.0) == 1, job.output
    said = result(run)["message"]
    named = r"no progress: the learner, the chief \(rank 0\) does not answer; replay shard \d \(rank \d\) has waited "
    assert re.match(named + r"\d+ s for word \d+ of the learner", said), said
    assert result(run)["status"] == "failed" and events(run, "restarted") == []
