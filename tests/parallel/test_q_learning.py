"""Whole jobs that learn from a replay, on Catch and Pendulum: one process, and each exchange with two workers."""

from __future__ import annotations

import json
import signal

import pytest

from tests.parallel.support import (
    differences,
    evaluations,
    events,
    finish,
    forked_train,
    hashes,
    kill,
    lines,
    needs_mpirun,
    newest,
    program,
    result,
)

pytestmark = pytest.mark.timeout(300)

SMOKE = ("--preset", "smoke", "--minutes", "3")
# Without minutes: on a busy machine, two workers may take more for so many updates.
QUICK = ("--preset", "smoke", "--minutes", "0", "--learning-rate", "3e-3", "--target-period", "80")
TWO = ("--workers", "2", "--parameter-servers", "1")


@needs_mpirun
def test_two_workers_with_replays_of_their_own_learn_catch_together(tmp_path):
    run = tmp_path / "run"
    evaluation = (
        "--eval-games",
        "50",
        "--eval-epsilon",
        "0",
        "--eval-every-updates",
        "800",
        "--evaluation-minutes",
        "1",
    )
    rate = ("--learning-rate-schedule", "linear", "--learning-rate-updates", "3200")
    finish(run, "dqn", *QUICK, *TWO, *rate, *evaluation, "--max-updates", "2400")
    assert result(run)["status"] == "finished" and newest(run).version == 2400
    assert evaluations(run)[-1] >= 0.8  # chance: -0.6
    assert {line["effective_batch"] for line in lines(run) if "effective_batch" in line} == {64}
    assert sorted(path.name for path in (run / "replay").iterdir()) == ["worker-0", "worker-1"]


@needs_mpirun
def test_an_allreduce_of_rainbow_keeps_its_workers_equal_and_their_replays_apart(tmp_path):
    run = tmp_path / "run"
    finish(
        run, "rainbow", *QUICK, "--workers", "2", "--exchange", "allreduce", "--no-evaluator", "--max-updates", "200"
    )
    assert result(run)["status"] == "finished" and newest(run).version == 200
    states = newest(run).worker_states
    assert set(states) == {0, 1}
    replays = [sorted((run / "replay" / f"worker-{i}").glob("*rows*")) for i in (0, 1)]
    assert replays[0] and replays[0][-1].read_bytes() != replays[1][-1].read_bytes()


@needs_mpirun
def test_asynchronous_dqn_learns_catch_and_keeps_its_replays(tmp_path):
    run = tmp_path / "run"
    finish(run, "dqn", *QUICK, *TWO, "--updates", "asynchronous", "--no-evaluator", "--max-updates", "3200")
    train = lines(run)
    assert max(line.get("online_score_mean", -1.0) for line in train) > 0.5
    assert any(line.get("staleness_max", 0) >= 1 for line in train)
    states = newest(run).worker_states.values()
    assert len(states) == 2 and all("replay" in state and "target.vector" in state for state in states)


@needs_mpirun
def test_asynchronous_dqn_whose_server_is_killed_goes_on_with_its_replays(tmp_path):
    run = tmp_path / "run"
    often = ("--checkpoint-every-updates", "200", "--log-every-seconds", "0.5", "--max-updates", "1000000")
    often += ("--minutes", "30")  # the test ends it long before
    with forked_train(run, "dqn", *QUICK, *TWO, "--updates", "asynchronous", "--no-evaluator", *often) as job:
        job.wait_for(lambda: len(events(run, "checkpoint")) >= 2, "checkpoints")
        kill(job.rank(2))
        job.wait_for(lambda: events(run, "resumed"), "new start")
        (resumed,) = events(run, "resumed")
        job.wait_for(lambda: newest(run).version > resumed["update"], "checkpoint after the new start")
        job.process.send_signal(signal.SIGTERM)
        assert job.wait() == 0, job.output
    states = newest(run).worker_states.values()
    assert len(states) == 2 and all("replay" in state and int(state["period"]) > 1 for state in states)
    assert not events(run, "state_not_saved") and not events(run, "rank_failed")
    after = [line for line in lines(run) if line["update"] >= resumed["update"] and "replay_size" in line]
    assert after[0]["replay_size"] > 2 * 200, "more than what a start fills before it learns"


@pytest.mark.parametrize("algorithm", [("rainbow", "--target-period", "80"), ("dpg", "--target-updates", "20")])
def test_a_deterministic_run_with_a_replay_resumes_to_the_bit(tmp_path, algorithm):
    """In the middle of a period (20 updates), and of the minibatches that are drawn at once."""
    flags = (*algorithm, *SMOKE, "--deterministic", "--no-evaluator", "--checkpoint-every-updates", "10")
    where = ("--run-dir", str(tmp_path / "parts"))
    runs = [
        [*flags, "--run-dir", str(tmp_path / "whole"), "--max-updates", "70"],
        [*flags, *where, "--max-updates", "33"],
        ["--resume", where[1], "--max-updates", "70", "--minutes", "3"],
    ]
    with program("single_runs.py", tmp_path, json.dumps(runs)) as job:
        assert job.wait() == 0, job.output
    assert hashes(tmp_path / "parts") == hashes(tmp_path / "whole") and len(hashes(tmp_path / "whole")) == 71
    assert not list(differences(newest(tmp_path / "parts"), newest(tmp_path / "whole")))


def test_a_replay_that_cannot_be_saved_ends_nothing(tmp_path):
    """A file is where its directory should be. The parameters are saved, the run goes on, and resumes."""
    run = tmp_path / "run"
    flags = ("dqn", *SMOKE, "--run-dir", str(run), "--no-evaluator", "--checkpoint-every-updates", "20")
    runs = [[*flags, "--max-updates", "20"], ["--resume", str(run), "--max-updates", "50", "--minutes", "3"]]
    with program("single_runs.py", tmp_path, json.dumps(runs), environment={"TEST_NO_REPLAY_DIRECTORY": "yes"}) as job:
        assert job.wait() == 0, job.output
    (state,) = newest(run).worker_states.values()
    assert newest(run).version == 50 and set(state) == {"actor0.draws"}
    assert state["actor0.draws"].min() > 50, "so that exploration goes on where it was"
    (first, *_) = events(run, "state_not_saved")
    assert "a resumed run will start worker 0 afresh: cannot save the replay in" in first["text"]


def test_checkpoints_that_cannot_be_written_take_no_replay_from_one_that_was(tmp_path):
    """Replays are saved before the checkpoints that name them: four that fail must leave the files of the good one."""
    run = tmp_path / "run"
    flags = ("dqn", *SMOKE, "--run-dir", str(run), "--no-evaluator", "--checkpoint-every-updates", "20")
    first = [[*flags, "--max-updates", "100"]]
    with program("single_runs.py", tmp_path, json.dumps(first), environment={"TEST_LAST_CHECKPOINT": "20"}) as job:
        assert job.wait() == 1, job.output
    assert newest(run).version == 20 and len(events(run, "checkpoint_failed")) == 4
    assert result(run)["status"] == "failed" and "the last checkpoint is not written" in result(run)["message"]
    with program("single_runs.py", tmp_path, json.dumps([["--resume", str(run), "--max-updates", "60"]])) as job:
        assert job.wait() == 0, job.output
    assert events(run, "resumed")[0]["update"] == 20 and newest(run).version == 60
    assert result(run)["status"] == "finished" and not events(run, "state_not_saved")


def test_a_damaged_replay_has_the_checkpoint_before_taken_and_named(tmp_path):
    run = tmp_path / "run"
    flags = ("dqn", *SMOKE, "--run-dir", str(run), "--no-evaluator", "--checkpoint-every-updates", "20")
    with program("single_runs.py", tmp_path, json.dumps([[*flags, "--max-updates", "60"]])) as job:
        assert job.wait() == 0, job.output
    damaged = max((run / "replay" / "worker-0").glob("*-weights.bin"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with program("single_runs.py", tmp_path, json.dumps([["--resume", str(run), "--max-updates", "70"]])) as job:
        assert job.wait() == 0, job.output
    assert events(run, "resumed")[0]["update"] == 40 and newest(run).version == 70
    assert (
        f"update-000000060.npz: replay file {damaged} has" in job.output and "trying the next older one" in job.output
    )


@pytest.mark.parametrize("algorithm", ["dqn", "rainbow"])
def test_rewards_that_are_no_numbers_do_not_end_a_run(tmp_path, algorithm):
    """They would be drawn again and again, until too many steps are refused, and be saved with the replay."""
    run = tmp_path / "run"
    flags = (algorithm, *SMOKE, "--run-dir", str(run), "--no-evaluator", "--max-updates", "200")
    with program("single_runs.py", tmp_path, json.dumps([flags]), environment={"TEST_NAN_REWARDS": "97"}) as job:
        assert job.wait() == 0, job.output
    assert result(run)["status"] == "finished" and newest(run).version == 200
    (event,) = events(run, "transitions_left_out")
    assert "the reward of simulator" in event["text"] and "is NaN or infinite" in event["text"]
    assert lines(run)[-1]["transitions_left_out"] > 5 and not events(run, "gradient_refused")
