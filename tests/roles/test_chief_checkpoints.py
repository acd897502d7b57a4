"""The chief gathers the parts of checkpoints, and ends a run whose last one cannot be written."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from ddrl import checkpoint as checkpoints
from ddrl.errors import UsageError
from ddrl.exchange.messages import Flag, Kind
from ddrl.exchange.transport import Blob, PeerLost
from ddrl.job.role import Topic
from ddrl.reporting.metrics import read_metrics
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.roles import checkpoint_saver
from ddrl.roles.chief import ChiefRole, Phase
from tests.roles.chief_play import SIZE, Sent


def test_a_checkpoint_waits_for_all_parts(play):
    job = play(run={"checkpoint_every_updates": 2})
    assert job.have() == Flag.NONE
    assert job.have() == Flag.CHECKPOINT
    job.snapshots()
    job.state(0)
    job.chief.advance()
    assert job.files() == []
    worker = RankMetrics("worker", 1)
    worker.count("agent_steps", 640)
    job.chief.handle(Blob(1, Topic.REPORT, json.dumps(worker.report()).encode()))
    job.state(1)
    job.chief.advance()
    assert job.files() == ["update-000000002.npz"]
    saved = checkpoints.load_latest(job.run_dir)
    assert (saved.version, saved.step, saved.optimizer_count) == (2, 2, 2)
    assert saved.agent_steps == 640, "steps that led to the checkpoint are not counted in it"
    np.testing.assert_allclose(saved.parameters, 2.0 + np.arange(SIZE))
    np.testing.assert_allclose(saved.slots["v"], 2.2 + np.arange(SIZE), rtol=1e-6)
    assert {w: s["draws"].tolist() for w, s in saved.worker_states.items()} == {0: [0, 0], 1: [1, 1]}


def test_a_checkpoint_counts_no_step_that_a_resume_acts_again(play):
    job = play(run={"checkpoint_every_updates": 1})
    assert job.have() == Flag.CHECKPOINT
    worker = RankMetrics("worker", 1)
    worker.count("agent_steps", 640)
    worker.count("agent_steps", 64, ahead=True)
    job.chief.handle(Blob(1, Topic.REPORT, json.dumps(worker.report()).encode()))
    job.everything()
    saved = checkpoints.load_latest(job.run_dir)
    assert saved.agent_steps == saved.counters["metrics"]["totals"]["agent_steps"] == 640
    assert job.chief.collector.agent_steps == saved.counters["acted_agent_steps"] == 704


def test_a_checkpoint_counts_nothing_that_came_after_the_state_of_its_worker(play):
    """A quorum goes on without a worker whose state is late."""
    job, workers = play(run={"checkpoint_every_updates": 1}), [RankMetrics("worker", worker) for worker in (0, 1)]

    def report(worker, steps):
        workers[worker].count("agent_steps", steps)
        workers[worker].episode(float(steps), steps)
        job.chief.handle(Blob(worker, Topic.REPORT, json.dumps(workers[worker].report()).encode()))

    assert job.have() == Flag.CHECKPOINT
    job.snapshots()
    report(0, 100)
    job.state(0)
    report(0, 30)
    report(1, 50)
    job.state(1)
    job.chief.advance()
    saved = checkpoints.load_latest(job.run_dir)
    assert saved.agent_steps == saved.counters["metrics"]["totals"]["agent_steps"] == 150
    assert saved.counters["metrics"]["episodes"] == len(saved.counters["metrics"]["scores"]) == 2
    assert job.chief.collector.agent_steps == saved.counters["acted_agent_steps"] == 180
    assert job.have() == Flag.CHECKPOINT
    job.everything()
    saved = checkpoints.load_latest(job.run_dir)
    assert (saved.version, saved.agent_steps, saved.counters["metrics"]["episodes"]) == (2, 180, 3)


def test_a_worker_whose_state_does_not_come_does_not_hold_a_checkpoint_up_for_ever(play):
    job = play(run={"checkpoint_every_updates": 1})
    job.have()
    job.snapshots()
    job.state(0)
    job.now += checkpoints.GATHER_SECONDS - 1.0
    job.chief.advance()
    assert job.files() == []
    job.now += 2.0
    job.chief.advance()
    assert job.files() == ["update-000000001.npz"]
    assert set(checkpoints.load_latest(job.run_dir).worker_states) == {0}


def test_a_dead_worker_is_not_waited_for(play):
    job = play(run={"checkpoint_every_updates": 1})
    job.have()
    job.snapshots()
    job.state(0)
    job.chief.handle(PeerLost(1))
    job.chief.advance()
    assert job.files() == ["update-000000001.npz"]
    assert [message.header.count for message in job.sent.take(Kind.EXPECT)][-2:] == [1, 1]
    assert "with 1 worker" in job.events("worker_lost")[0]["text"]
    assert job.have(members=0b01) is not None


def test_a_checkpoint_without_a_shard_fails_and_training_goes_on(play):
    job = play(run={"checkpoint_every_updates": 1})
    job.have()
    job.snapshots(shards=(0,))
    job.now += checkpoints.GATHER_SECONDS + 1.0
    job.chief.advance()
    assert job.files() == [] and len(job.events("checkpoint_failed")) == 1
    assert job.have() == Flag.CHECKPOINT


def test_a_checkpoint_that_resets_games_is_not_put_off(play):
    """How long the parts of the one before take would decide which update resets games."""
    synchronized = {"schedule": "synchronized", "simulators": 4}
    job = play(run={"checkpoint_every_updates": 1, "reset_at_checkpoint": True}, sampling=synchronized)
    assert job.have() == Flag.CHECKPOINT
    assert job.have() is None, "an update was made without its checkpoint"
    job.everything()
    job.chief.advance()
    assert job.commit() == Flag.CHECKPOINT
    assert job.files() == ["update-000000001.npz"] and job.chief.coordinator.version == 2


class FullDisk:
    """Stands in for the writing of checkpoints."""

    def __init__(self, monkeypatch, full=True):
        self.full, self.tries, self._save = full, 0, checkpoints.save
        monkeypatch.setattr(checkpoint_saver.checkpoints, "save", self)

    def __call__(self, *arguments):
        self.tries += 1
        if self.full:
            raise UsageError("cannot write checkpoint x (9 bytes): No space left on device; free space")
        return self._save(*arguments)


def test_a_last_checkpoint_that_is_written_late_is_a_good_end(play, monkeypatch):
    job, disk = play(run={"max_updates": 1}), FullDisk(monkeypatch)
    job.have()
    job.everything()
    for _ in range(10):
        job.now += 1.0
        job.chief.advance()
        assert job.chief.phase is Phase.SAVING
    assert 3 < disk.tries < 9 and len(job.events("checkpoint_failed")) == 1
    disk.full = False
    job.now += checkpoint_saver.SAVE_AGAIN_SECONDS
    job.chief.advance()
    assert job.files() == ["update-000000001.npz"] and job.chief.phase is Phase.EVALUATING
    job.result(1, mean=0.0)
    job.chief.advance()
    assert job.ended()["status"] == "finished"


@pytest.mark.parametrize("signaled", [False, True])
def test_a_run_without_its_last_checkpoint_has_failed(play, monkeypatch, signaled):
    """Also one that was asked to stop; and it says so, so that a job is put back into the queue."""
    job, disk = play(run={"max_updates": 0 if signaled else 1}), FullDisk(monkeypatch)
    if signaled:
        job.ask_to_stop()
    job.have()
    job.everything()
    job.now += checkpoint_saver.LAST_SAVE_SECONDS + 1.0
    job.chief.advance()
    assert disk.tries == 2
    if not signaled:
        job.result(1, mean=0.0)
        job.chief.advance()
    ended = job.ended()
    assert ended["status"] == "failed" and ended["unsaved"] is True
    assert (
        "but the last checkpoint is not written: cannot write checkpoint x (9 bytes): No space left" in ended["message"]
    )


def test_a_last_checkpoint_without_a_servers_part_is_a_failure(play):
    job = play(run={"max_updates": 1})
    job.have()
    job.snapshots(shards=(0,))
    job.now += checkpoints.GATHER_SECONDS + 1.0
    job.chief.advance()
    job.result(1, mean=0.0)
    job.chief.advance()
    ended = job.ended()
    assert ended["status"] == "failed" and "the parameter servers' parts of update 1 are missing" in ended["message"]


@pytest.mark.parametrize(
    ("exchange", "told"),
    [({}, []), ({"quorum": 1}, [(0, 3), (1, 3)]), ({"quorum_deadline_seconds": 1.0}, [(0, 3), (1, 3)])],
)
def test_workers_are_told_of_a_checkpoint_whose_parameters_they_may_skip(play, exchange, told):
    job = play(exchange=exchange, run={"checkpoint_every_updates": 2})
    assert [job.have(refused=0b01), job.have(), job.have()] == [Flag.SKIP, Flag.NONE, Flag.CHECKPOINT]
    due = job.sent.take(Topic.STATE_DUE)
    assert sorted((blob.peer, json.loads(blob.data)) for blob in due) == told
    job.everything()
    assert set(checkpoints.load_latest(job.run_dir).worker_states) == {0, 1}
    job.ask_to_stop()
    assert job.have() & Flag.STOP and job.sent.take(Topic.STATE_DUE) == [], "all get the last parameters"


def test_a_worker_of_a_quorum_that_does_not_answer_is_not_asked_again(play):
    """A rank that hangs receives nothing, and what is sent to it piles up."""
    job, asked = play(exchange={"quorum": 1}, run={"checkpoint_every_updates": 1}), []
    for answers in ((0,), (0,), (0, 1), (0, 1)):
        assert job.have() == Flag.CHECKPOINT
        asked.append(sorted(blob.peer for blob in job.sent.take(Topic.STATE_DUE)))
        job.snapshots()
        for worker in answers:
            job.state(worker)
        job.now += checkpoints.GATHER_SECONDS + 1.0
        job.chief.advance()
    assert asked == [[0, 1], [0], [0], [0, 1]]
    assert len(job.events("checkpoint")) == 4


def test_asynchronous_checkpoints_have_the_workers_states_and_staleness_is_reported(play):
    job = play(exchange={"updates": "asynchronous"}, run={"checkpoint_every_updates": 1})
    job.chief.coordinator.version = 1
    assert job.have(members=0b01, value=3.0, shards=(0,)) & Flag.CHECKPOINT
    due = job.sent.take(Topic.STATE_DUE)
    assert sorted((blob.peer, json.loads(blob.data)) for blob in due) == [(0, 1), (1, 1)]
    job.snapshots()
    job.state(0, of=1)
    job.chief.advance()
    assert job.files() == [], "worker 1 has not come to a boundary yet"
    job.state(1, of=1)
    job.chief.advance()
    assert job.files() == ["update-000000001.npz"] and set(
        checkpoints.load(job.run_dir / "checkpoints" / job.files()[-1]).worker_states
    ) == {0, 1}
    (line,) = [record for record in read_metrics(job.run_dir) if "staleness_mean" in record]
    assert line["staleness_mean"] == line["staleness_max"] == 3.0


@pytest.mark.parametrize(
    "counters",
    [
        {"metrics": {"totals": {"agent_steps": "5"}}},
        {"metrics": {"scores": 3}},
        {"metrics": [1]},
        {"evaluations": {"seconds": []}},
    ],
)
def test_counters_that_are_none_are_refused_in_one_line(play, counters):
    job = play()
    start = dataclasses.replace(job.chief.start, counters=counters)
    with pytest.raises(UsageError, match="what is counted in the checkpoint of update 0 is malformed"):
        ChiefRole(job.chief.context, Sent(), start, True)
