"""When a job is started again: decisions from what its ranks left behind."""

from __future__ import annotations

import dataclasses

import pytest

from ddrl import checkpoint as checkpoints
from ddrl import rundir
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import ExchangeConfig, RunConfig, TrainConfig
from ddrl.launch.restarts import Restarts
from ddrl.reporting.metrics import MetricsWriter, read_metrics
from ddrl.reporting.phases import EVALUATING
from tests.launch.support import checkpoint

LOST = {"status": "failed", "message": "x", "lost": "server 0 died"}


class Play:
    """A run directory whose ranks die as told."""

    def __init__(self, path, on_server_loss="restart", max_restarts=2):
        self.path = path
        self.config = TrainConfig(
            algorithm=BA3CConfig(),
            run=RunConfig(minutes=10.0, max_restarts=max_restarts),
            exchange=ExchangeConfig(on_server_loss=on_server_loss),
        )
        self.restarts = Restarts(self.config, path)

    def ends(self, result, begun=True, trouble="", phase=""):
        (self.path / rundir.RESULT).unlink(missing_ok=True)
        if result:
            rundir.write_json(self.path / rundir.RESULT, result)
        return self.restarts.decide(begun, trouble, phase)

    def checkpoint(self, version, wall_seconds=1.0):
        small = checkpoint(self.config, wall_seconds)
        return checkpoints.save(self.path, dataclasses.replace(small, version=version))

    def resumed(self, wall_seconds, **fields):
        writer = MetricsWriter(self.path)
        writer.event("resumed", "from a checkpoint", wall_seconds, **fields)
        writer.close()

    def trained(self, update):
        writer = MetricsWriter(self.path)
        writer.write({"kind": "train", "wall_seconds": 5.0, "update": update})
        writer.close()


@pytest.fixture
def play(tmp_path):
    return lambda **options: Play(tmp_path, **options)


def test_it_goes_on_from_the_newest_checkpoint_with_the_minutes_that_this_leaves(play):
    """What was trained after it is lost, and so is not spent."""
    job = play()
    job.checkpoint(40, wall_seconds=240.0)
    job.trained(55)
    again = job.ends(LOST)
    assert again.spent_seconds == pytest.approx(240.0)
    assert again.text.startswith("server 0 died: the run starts again from update 40")
    job.restarts.note(again)
    (event,) = [r for r in read_metrics(job.path) if r["kind"] == "event"]
    assert (event["name"], event["text"], event["wall_seconds"]) == ("restarted", again.text, 5.0)
    job.resumed(240.0, spent_seconds=240.0)
    assert job.ends(LOST).spent_seconds == pytest.approx(240.0)
    job.checkpoint(80, wall_seconds=600.5)
    assert job.ends(LOST).spent_seconds == pytest.approx(600.5), "a budget that was used up stays so"


@pytest.mark.parametrize(("before", "spent"), [({"spent_seconds": 400.0}, 500.0), ({}, 100.0)])
def test_minutes_count_from_a_resume_or_over_the_whole_run(play, before, spent):
    job = play()
    job.checkpoint(40, wall_seconds=400.0)
    job.resumed(400.0, **before)
    assert job.ends(LOST).spent_seconds == pytest.approx(before.get("spent_seconds", 0.0))
    job.checkpoint(80, wall_seconds=500.0)
    assert job.ends(LOST).spent_seconds == pytest.approx(spent)


def test_the_minutes_are_those_of_the_checkpoint_that_is_sound(play):
    job = play()
    job.checkpoint(40, wall_seconds=100.0)
    job.checkpoint(80, wall_seconds=200.0).write_bytes(b"")
    assert job.ends(LOST).spent_seconds == pytest.approx(100.0)
    job.checkpoint(40).write_bytes(b"")
    assert job.ends(LOST) is None
    assert job.restarts.refusal.startswith("server 0 died, and none of the 2 checkpoints is sound in ")


def test_only_a_start_that_was_in_its_final_evaluation_leaves_that_alone(play):
    """What the metrics end with may be that of an earlier part, after which the user wanted more."""
    job = play()
    job.checkpoint(40)
    writer = MetricsWriter(job.path)
    writer.event("checkpoint", "of update 40", 5.0)
    writer.event("phase", "the final evaluation", 5.0, phase=EVALUATING)
    writer.close()
    assert job.ends(LOST, phase=EVALUATING).evaluates_only and not job.ends(LOST).evaluates_only


def test_the_limit_counts_starts_without_a_new_checkpoint(play):
    job = play(max_restarts=2)
    job.checkpoint(40)
    assert job.ends(LOST) and job.ends(LOST)
    job.checkpoint(80)
    assert job.ends(LOST) and job.ends(LOST)
    assert job.ends(LOST) is None
    assert (
        job.restarts.refusal == "server 0 died, and --max-restarts 2 allows no more restarts without a new checkpoint"
    )


@pytest.mark.parametrize(("updates", "told"), [(1, "1 update"), (7, "7 updates")])
def test_without_a_checkpoint_it_begins_again_only_if_nothing_was_trained(play, updates, told):
    job = play()
    assert "from the beginning" in job.ends(LOST).text
    job.trained(updates)
    assert job.ends(LOST) is None
    assert job.restarts.refusal == f"server 0 died before the first checkpoint, and the run lost {told}"


@pytest.mark.parametrize("result", [{"status": "finished"}, {"status": "failed", "message": "no progress"}])
def test_other_ends_are_ends(play, result):
    job = play()
    job.checkpoint(1)
    assert job.ends(result) is None and job.restarts.refusal == ""


def test_a_job_without_a_result_starts_again_only_if_one_has_begun(play):
    job = play()
    job.checkpoint(1)
    assert job.ends(None, begun=False, trouble="rank 1 died before the job began") is None
    assert "a rank died" in job.ends(None).text
    assert "rank 1 died" in job.ends(None, begun=False, trouble="rank 1 died before the job began").text


def test_stop_stops(play):
    job = play(on_server_loss="stop")
    job.checkpoint(1)
    assert job.ends(LOST) is None
