"""When a job is started again: decisions from what its ranks left behind."""

from __future__ import annotations

import pytest

from ddrl import rundir
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import ExchangeConfig, RunConfig, TrainConfig
from ddrl.launch.restarts import LEAST_MINUTES, Restarts
from ddrl.reporting.metrics import MetricsWriter, read_metrics
from ddrl.reporting.phases import EVALUATING

LOST = {"status": "failed", "message": "x", "lost": "server 0 died"}


class Play:
    """A run directory whose ranks die as told."""

    def __init__(self, path, on_server_loss="restart", max_restarts=2, spent_seconds=0.0):
        self.path = path
        (path / "checkpoints").mkdir()
        config = TrainConfig(
            algorithm=BA3CConfig(),
            run=RunConfig(minutes=10.0, max_restarts=max_restarts),
            exchange=ExchangeConfig(on_server_loss=on_server_loss),
        )
        self.restarts = Restarts(config, path, spent_seconds)

    def ends(self, result, minutes=1.0, trouble="", phase=""):
        (self.path / rundir.RESULT).unlink(missing_ok=True)
        if result:
            rundir.write_json(self.path / rundir.RESULT, result)
        return self.restarts.decide(minutes, trouble, phase)

    def checkpoint(self, version):
        (self.path / "checkpoints" / f"update-{version:09d}.npz").touch()

    def trained(self, update):
        writer = MetricsWriter(self.path)
        writer.write({"kind": "train", "wall_seconds": 5.0, "update": update})
        writer.close()


@pytest.fixture
def play(tmp_path):
    return lambda **options: Play(tmp_path, **options)


def test_it_goes_on_from_the_newest_checkpoint_with_what_is_left_of_the_minutes(play):
    job = play()
    job.checkpoint(40)
    job.trained(55)
    again = job.ends(LOST, minutes=4.0)
    assert again.spent_seconds == pytest.approx(240.0)
    assert again.text.startswith("server 0 died: the run starts again from update 40")
    job.restarts.note(again)
    (event,) = [r for r in read_metrics(job.path) if r["kind"] == "event"]
    assert (event["name"], event["text"], event["wall_seconds"]) == ("restarted", again.text, 5.0)
    assert job.ends(LOST, minutes=20.0).spent_seconds == pytest.approx(60.0 * (10.0 - LEAST_MINUTES))


@pytest.mark.parametrize(("before", "spent"), [(120.0, 360.0), (600.5, 600.5)])
def test_what_the_run_had_spent_before_counts_too(play, before, spent):
    """A budget that was used up stays so: nothing is trained, not even for a moment."""
    job = play(spent_seconds=before)
    job.checkpoint(40)
    assert job.ends(LOST, minutes=4.0).spent_seconds == pytest.approx(spent)


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
    assert job.ends(None, minutes=0.0, trouble="rank 1 died before the job began") is None
    assert "a rank died" in job.ends(None, minutes=0.1).text
    assert "rank 1 died" in job.ends(None, minutes=0.0, trouble="rank 1 died before the job began").text


def test_stop_stops(play):
    job = play(on_server_loss="stop")
    job.checkpoint(1)
    assert job.ends(LOST) is None
