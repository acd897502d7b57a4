"""The chief on a fake transport and a fake clock: the test plays servers, workers and evaluator."""

from __future__ import annotations

import dataclasses
import json
import types

import numpy as np
import pytest

from cluster.roles import Sizes, assign_roles
from ddrl import checkpoint as checkpoints
from ddrl import plugins
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.checkpoint import Checkpoint
from ddrl.config import EvaluationConfig, ExchangeConfig, OptimizerConfig, RunConfig, TrainConfig
from ddrl.errors import UsageError
from ddrl.exchange.messages import Flag, Header, Kind, Message
from ddrl.exchange.sharding import shard_ranges
from ddrl.exchange.transport import Blob, PeerLost
from ddrl.job.layout import JobContext, JobLayout
from ddrl.job.role import RoleLost, Topic
from ddrl.npz import decode_arrays, encode_arrays
from ddrl.reporting.callbacks import Callback
from ddrl.reporting.metrics import read_metrics
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.roles import budget, checkpoint_saver, chief, evaluator_client
from ddrl.roles.chief import ChiefRole, Phase
from ddrl.roles.exchanges import setup_of
from ddrl.rundir import RESULT, STOP, read_json

SIZE = 5


class Sent:
    """A transport that keeps what is sent."""

    rank = 0

    def __init__(self):
        self.items, self.channels = [], []

    def send(self, items):
        self.items += list(items)

    def open(self, channels):
        self.channels += list(channels)

    def take(self, what):
        """What was sent since the last call: messages of a kind, or blobs of a topic."""
        of = Message if isinstance(what, Kind) else Blob
        named = {Message: lambda item: item.header.kind, Blob: lambda item: item.topic}[of]
        wanted = [item for item in self.items if isinstance(item, of) and named(item) == what]
        self.items = [item for item in self.items if item not in wanted]
        return wanted


class Play:
    """2 workers (ranks 0, 1; 0 is the chief), 2 servers (2, 3), an evaluator (4)."""

    def __init__(
        self,
        run_dir,
        monkeypatch,
        *,
        run=None,
        evaluation=None,
        exchange=None,
        version=0,
        resumed=False,
        algorithm=None,
    ):
        self.now = 100.0
        clock = types.SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(chief, "time", clock)
        monkeypatch.setattr(budget, "time", clock)
        config = TrainConfig(
            algorithm=algorithm or BA3CConfig(),
            run=RunConfig(minutes=0.0, checkpoint_every_minutes=1e6, **(run or {})),
            evaluation=EvaluationConfig(eval_every_updates=10, eval_time_share=1.0, **(evaluation or {})),
            exchange=ExchangeConfig(workers=2, parameter_servers=2, **(exchange or {})),
            optimizer=OptimizerConfig(learning_rate=0.5),
        )
        self.run_dir, self.sent = run_dir, Sent()
        layout = JobLayout.from_assignments(assign_roles(Sizes(2, 2, evaluator=True)))
        slots = {name: np.full(SIZE, i + 1, np.float32) for i, name in enumerate("mv")}
        start = Checkpoint(
            version,
            version,
            0,
            7.0,
            np.arange(SIZE, dtype=np.float32),
            slots,
            version,
            (("x", (SIZE,)),),
            worker_states={1: {"draws": np.arange(3)}},
        )
        self.chief = ChiefRole(JobContext(config, run_dir, layout), self.sent, start, resumed)

    def have(self, members=0b11, refused=0, value=float("nan"), flags=Flag.NONE, shards=(0, 1)):
        """The servers report; returns the flags of the COMMIT that follows, or None."""
        coordinator = self.chief.coordinator
        for shard in shards:
            header = Header(
                Kind.READY,
                sender=shard,
                step=coordinator.step,
                version=coordinator.version,
                count=64,
                members=members,
                refused=refused,
                value=value,
                flags=flags,
            )
            self.chief.handle(Message(2 + shard, header))
        self.chief.advance()
        return self.commit()

    def commit(self):
        commits = self.sent.take(Kind.COMMIT)
        assert [c.peer for c in commits] in ([], [2, 3]) and len({c.header for c in commits}) <= 1
        return commits[0].header.flags if commits else None

    def snapshots(self, shards=(0, 1)):
        """The servers' parts of a checkpoint: values that name version, row and shard."""
        version = self.chief.coordinator.version
        for shard in shards:
            a, b = shard_ranges(SIZE, 2)[shard]
            rows = np.array([[version + 0.1 * row + i for i in range(a, b)] for row in range(3)], np.float32)
            header = Header(
                Kind.SNAPSHOT, sender=shard, step=self.chief.coordinator.step, version=version, count=version
            )
            self.chief.handle(Message(2 + shard, header, rows.ravel()))

    def state(self, worker, of=None):
        of = np.int64(self.chief.coordinator.step if of is None else of)
        self.chief.handle(Blob(worker, Topic.STATE, encode_arrays({"draws": np.full(2, worker), "of": of})))

    def everything(self):
        """All parts of a checkpoint arrive."""
        self.snapshots()
        self.state(0)
        self.state(1)
        self.chief.advance()

    def result(self, version, mean, unfinished=0, **more):
        request = self.request
        content = (
            request
            | {
                "mean": mean,
                "maximum": mean + 1,
                "scores": [mean],
                "games": 1,
                "seconds": 1.0,
                "stamp": {"protocol": "x"},
                "unfinished": unfinished,
                "timed_out": unfinished,
            }
            | more
        )
        assert request["version"] == version
        self.chief.handle(Blob(4, Topic.RESULT, json.dumps(content).encode()))

    @property
    def request(self):
        """The newest EVALUATE."""
        (blob,) = self.sent.take(Topic.EVALUATE)
        assert blob.peer == 4
        return json.loads(blob.data)

    def events(self, name):
        return [record for record in read_metrics(self.run_dir) if record.get("name") == name]

    def files(self):
        return [path.name for path in checkpoints.list_checkpoints(self.run_dir)]

    def ended(self):
        """The result, when the chief has ended the job for everyone."""
        assert self.chief.finished and self.chief.phase is Phase.ENDED
        assert sorted(blob.peer for blob in self.sent.take(Topic.END)) == self.ranks
        return read_json(self.run_dir / RESULT)

    ranks = [0, 1, 2, 3, 4]


@pytest.fixture
def play(tmp_path, monkeypatch):
    return lambda **options: Play(tmp_path, monkeypatch, **options)


def test_servers_are_told_which_tensors_have_a_learning_rate_of_their_own(play):
    class Halved(BA3CConfig):
        learning_rate_factors = {"x": 0.5}

    job = play(algorithm=Halved())
    tensors = json.loads(job.sent.take(Topic.SETUP)[0].data)["tensors"]
    assert setup_of(job.chief.context, [(name, tuple(shape)) for name, shape in tensors]).groups == ((0, SIZE, 0.5),)


def test_it_begins_by_telling_everyone_what_they_need(play):
    job = play(version=3, resumed=True)
    setups = {blob.peer: blob.data for blob in job.sent.take(Topic.SETUP)}
    assert json.loads(setups[2]) == json.loads(setups[3]) == {"parameters": SIZE, "tensors": [["x", [SIZE]]]}
    assert int(decode_arrays(setups[0])["version"]) == 3
    np.testing.assert_array_equal(decode_arrays(setups[1])["draws"], np.arange(3))
    loads = job.sent.take(Kind.LOAD)
    np.testing.assert_array_equal(loads[0].payload, [0, 1, 2, 1, 1, 1, 2, 2, 2])
    np.testing.assert_array_equal(loads[1].payload, [3, 4, 1, 1, 2, 2])
    assert all(load.header.version == load.header.count == 3 and load.header.value == 0.5 for load in loads)
    assert [message.header.count for message in job.sent.take(Kind.EXPECT)] == [2, 2]
    assert job.events("resumed")[0]["update"] == 3


def test_a_step_closes_when_all_shards_hold_all(play):
    job = play()
    assert job.have(shards=(0,)) is None
    assert job.have(members=0b01, shards=(1,)) is None
    assert job.have(shards=(1,)) == Flag.NONE
    assert (job.chief.coordinator.version, job.chief.coordinator.step) == (1, 1)


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


def test_a_worker_whose_state_does_not_come_does_not_hold_a_checkpoint_up_for_ever(play):
    job = play(run={"checkpoint_every_updates": 1})
    job.have()
    job.snapshots()
    job.state(0)
    job.now += checkpoint_saver.GATHER_SECONDS - 1.0
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
    job.now += checkpoint_saver.GATHER_SECONDS + 1.0
    job.chief.advance()
    assert job.files() == [] and len(job.events("checkpoint_failed")) == 1
    assert job.have() == Flag.CHECKPOINT


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


@pytest.mark.parametrize("signalled", [False, True])
def test_a_run_without_its_last_checkpoint_has_failed(play, monkeypatch, signalled):
    """Also one that was asked to stop; and it says so, so that a job is put back into the queue."""
    job, disk = play(run={"max_updates": 0 if signalled else 1}), FullDisk(monkeypatch)
    if signalled:
        (job.run_dir / STOP).touch()
        job.now += 1.0
        job.chief.advance()
    job.have()
    job.everything()
    job.now += checkpoint_saver.LAST_SAVE_SECONDS + 1.0
    job.chief.advance()
    assert disk.tries == 2
    if not signalled:
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
    job.now += checkpoint_saver.GATHER_SECONDS + 1.0
    job.chief.advance()
    job.result(1, mean=0.0)
    job.chief.advance()
    ended = job.ended()
    assert ended["status"] == "failed" and "the parameter servers' parts of update 1 are missing" in ended["message"]


def test_max_updates_ends_with_checkpoint_and_evaluation(play):
    job = play(run={"max_updates": 2})
    assert job.have() == Flag.NONE
    assert job.have() == Flag.STOP | Flag.CHECKPOINT | Flag.PUBLISH
    assert job.have() is None, "a step was closed after the last"
    job.everything()
    assert job.files() == ["update-000000002.npz"] and not job.chief.finished
    job.result(2, mean=3.0)
    job.chief.advance()
    assert job.ended() == {
        "status": "finished",
        "message": "the budget of 2 updates is used up",
        "update": 2,
        "agent_steps": 0,
        "wall_seconds": 7.0,
    }


def test_an_evaluation_that_does_not_end_does_not_hold_the_end_up_for_ever(play):
    job = play(run={"max_updates": 1})
    job.have()
    job.everything()
    job.now += 3600.0
    job.chief.advance()
    assert job.ended()["status"] == "finished"


def test_ctrl_c_ends_the_final_evaluation_and_keeps_what_was_played(play):
    job = play(run={"max_updates": 1, "video": False}, evaluation={"final_evaluation_minutes": 2.0})
    job.have()
    request = job.request
    assert request["final"] and request["limit_seconds"] == 120.0
    job.everything()
    report = RankMetrics("evaluator", 0)
    report.gauge("evaluation_games_over", 30)
    job.now += 30.0
    job.chief.handle(Blob(4, Topic.REPORT, json.dumps(report.report()).encode()))
    job.chief._write_line(job.now)
    line = read_metrics(job.run_dir)[-1]
    assert (line["phase"], line["evaluation_games_over"], line["seconds_left"]) == ("evaluating", 30, 20.0 + 5.0)
    (job.run_dir / STOP).touch()
    for _ in range(3):
        job.now += 0.5
        job.chief.advance()
    (ending,) = job.sent.take(Topic.EVALUATE)
    assert json.loads(ending.data) == {"end": True} and not job.chief.finished
    played = {"mean": 3.0, "maximum": 9.0, "games": 31, "of_games": 50, "unfinished": 0, "timed_out": 19}
    content = request | played | {"seconds": 31.0, "stamp": {}}
    job.chief.handle(Blob(4, Topic.RESULT, json.dumps(content).encode()))
    job.chief.advance()
    assert job.ended()["status"] == "finished"
    (record,) = [record for record in read_metrics(job.run_dir) if record["kind"] == "evaluation"]
    assert record["final"] and (record["games"], record["of_games"], record["timed_out"]) == (31, 50, 19)
    assert [event["phase"] for event in job.events("phase")] == ["training", "evaluating"]
    assert "50 games, 120 s at most" in job.events("phase")[1]["text"]


def test_an_evaluator_that_does_not_answer_a_ctrl_c_is_not_waited_for(play):
    job = play(run={"max_updates": 1})
    job.have()
    job.everything()
    (job.run_dir / STOP).touch()
    for seconds in (1.0, evaluator_client.ENDED_RESULT_SECONDS - 0.5):
        job.now += seconds
        job.chief.advance()
        assert not job.chief.finished
    job.now += 1.0
    job.chief.advance()
    assert job.ended()["status"] == "finished" and len(job.events("evaluation_failed")) == 1


def test_without_a_final_evaluation_the_run_ends_with_its_checkpoint(play):
    job = play(run={"max_updates": 11}, evaluation={"final_evaluation_minutes": 0.0})
    for _ in range(11):
        job.have()
    assert job.request["version"] == 10, "the one during training is not waited for, either"
    job.everything()
    job.chief.advance()
    assert job.ended()["status"] == "finished" and job.files() == ["update-000000011.npz"]


def test_an_evaluation_in_which_no_game_was_over_has_no_number(play):
    job = play()
    for _ in range(10):
        job.have()
    content = job.request | {"games": 0, "of_games": 50, "timed_out": 4, "stuck": 2, "seconds": 6.0, "stamp": {}}
    job.chief.handle(Blob(4, Topic.RESULT, json.dumps(content).encode()))
    assert [record["kind"] for record in read_metrics(job.run_dir)].count("evaluation") == 0
    (event,) = job.events("evaluation_unfinished")
    assert event["text"].startswith("no game was over within 6 s (4 unfinished, 2 of them stuck without a reward)")


def test_who_ends_an_evaluation_without_a_game_is_not_told_to_give_it_time(play):
    job = play(run={"max_updates": 1}, evaluation={"final_evaluation_minutes": 2.0})
    job.have()
    content = job.request | {"games": 0, "of_games": 50, "timed_out": 20, "seconds": 6.0, "stamp": {}}
    job.everything()
    (job.run_dir / STOP).touch()
    job.now += 1.0
    job.chief.advance()
    job.chief.handle(Blob(4, Topic.RESULT, json.dumps(content).encode()))
    job.chief.advance()
    assert job.ended()["status"] == "finished"
    assert job.events("evaluation_unfinished")[0]["text"] == "no game was over within 6 s (20 unfinished)"


def test_whole_games_are_waited_for_as_long_as_the_evaluator_speaks(play):
    job = play(run={"max_updates": 1, "stall_seconds": 300.0}, evaluation={"evaluation_minutes": 0.0})
    job.have()
    job.everything()
    report = json.dumps(RankMetrics("evaluator", 0).report()).encode()
    for _ in range(20):
        job.now += 290.0
        job.chief.handle(Blob(4, Topic.REPORT, report))
        job.chief.advance()
        assert not job.chief.finished
    job.now += 301.0
    job.chief.advance()
    assert job.ended()["status"] == "finished" and len(job.events("evaluation_failed")) == 1


def test_the_stop_file_ends_without_an_evaluation(play):
    job = play()
    job.have()
    (job.run_dir / STOP).touch()
    job.now += 1.0
    job.chief.advance()
    assert job.have() & Flag.STOP
    job.everything()
    job.chief.advance()
    assert job.ended()["status"] == "stopped"
    assert job.sent.take(Topic.EVALUATE) == [] and job.files() == ["update-000000002.npz"]


def test_a_stop_while_no_gradient_comes_is_sent_by_itself(play):
    job = play()
    job.chief.stop("stopped", "x", signalled=True)
    job.now += chief.LAST_COMMIT_SECONDS - 0.5
    job.chief.advance()
    assert job.commit() is None
    job.now += 1.0
    job.chief.advance()
    assert job.commit() == Flag.STOP | Flag.CHECKPOINT | Flag.PUBLISH | Flag.COMMAND
    job.everything()
    job.chief.advance()
    assert job.ended()["status"] == "stopped" and job.files() == ["update-000000000.npz"]


def test_refused_steps_are_named_and_counted_and_end_the_run_at_the_limit(play):
    job = play(run={"max_refused_steps": 2})
    job.have()
    assert job.have(refused=0b10) == Flag.SKIP
    assert job.have() == Flag.NONE and job.chief.phase is Phase.RUNNING
    assert job.have(refused=0b11) == Flag.SKIP
    assert job.chief.phase is Phase.STOPPING
    assert job.have() & Flag.STOP
    job.everything()
    job.chief.advance()
    result = job.ended()
    assert result["status"] == "failed" and "2 steps were refused" in result["message"]
    assert [event["workers"] for event in job.events("gradient_refused")] == [[1], [0, 1]]
    assert (result["update"], job.chief.coordinator.step) == (3, 5)
    assert job.files() == ["update-000000003.npz"]


@pytest.mark.parametrize("last", [1.0, 6.0])
def test_the_target_score_ends_the_run_with_the_time_of_its_snapshot(play, last):
    job = play(evaluation={"target_score": 5.0})
    for _ in range(9):
        job.have()
    job.now += 30.0
    assert job.have() == Flag.PUBLISH
    job.now += 50.0  # the games take their time
    job.result(10, mean=5.5)
    assert job.have() & Flag.STOP
    job.everything()
    job.result(11, mean=last)
    job.chief.advance()
    result = job.ended()
    assert result["status"] == "target" and result["time_to_score_seconds"] == pytest.approx(37.0)
    assert [r["mean"] for r in read_metrics(job.run_dir) if r["kind"] == "evaluation"] == [5.5, last]
    assert len(job.events("target_reached")) == 1


@pytest.mark.parametrize("mean, unfinished, of_games", [(4.9, 0, 1), (5.5, 1, 1), (5.5, 0, 2)])
def test_scores_that_do_not_reach_the_target(play, mean, unfinished, of_games):
    job = play(evaluation={"target_score": 5.0})
    for _ in range(10):
        job.have()
    job.result(10, mean=mean, unfinished=unfinished, of_games=of_games)
    assert job.have() == Flag.NONE and job.chief.phase is Phase.RUNNING


def test_a_lost_evaluator_leaves_training_going(play):
    job = play(run={"max_updates": 20})
    for _ in range(10):
        job.have()
    job.chief.handle(PeerLost(4))
    assert len(job.events("evaluator_lost")) == 1
    job.sent.take(Topic.EVALUATE)
    for _ in range(9):
        assert job.have() == Flag.NONE
    assert job.have() & Flag.STOP
    job.everything()
    job.chief.advance()
    assert job.ended()["status"] == "finished" and job.sent.take(Topic.EVALUATE) == []


def test_a_lost_server_is_the_end(play):
    with pytest.raises(RoleLost, match=r"parameter server 1 \(rank 3\) died"):
        play().chief.handle(PeerLost(3))


def test_a_rank_that_cannot_go_on_ends_the_run(play, capsys):
    job = play()
    error = json.dumps(
        {"text": "Traceback\nValueError: no good\nat all\n", "line": "ValueError: no good / at all"}
    ).encode()
    job.chief.handle(Blob(1, Topic.FAILED, error))
    assert job.have() & Flag.STOP
    job.everything()
    job.chief.advance()
    result = job.ended()
    assert result["status"] == "failed" and result["message"].startswith(
        "worker 1 (rank 1) failed: ValueError: no good / at all (see"
    )
    (event,) = job.events("rank_failed")
    assert event["text"] == "worker 1 (rank 1): ValueError: no good / at all"
    assert event["traceback"] == "Traceback\nValueError: no good\nat all\n"
    assert event["traceback"] in capsys.readouterr().out, "log.txt has the whole text"


def test_a_step_that_needs_a_rank_which_cannot_go_on_does_not_hold_up_its_end(play):
    job = play()
    job.chief.handle(
        Blob(1, Topic.FAILED, json.dumps({"text": "ValueError: no good\n", "line": "ValueError: no good"}).encode())
    )
    job.now += chief.FAILED_COMMIT_SECONDS - 0.5
    job.chief.advance()
    assert job.sent.take(Kind.COMMIT) == [], "the others may still close it"
    job.now += 1.0
    job.chief.advance()
    assert all(message.header.flags & Flag.STOP for message in job.sent.take(Kind.COMMIT))
    assert job.chief.phase is Phase.SAVING


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


def test_what_is_not_as_before_is_told(play):
    job = play()
    notes = (("checkpoint_left_out", "update 9 is damaged"), ("settings_changed", "--discount 0.9, now 0.8"))
    ChiefRole(job.chief.context, Sent(), job.chief.start, True, notes)
    told = [record for record in read_metrics(job.run_dir) if record["kind"] == "event"]
    assert [(record["name"], record["text"]) for record in told] == [("resumed", "from update 0"), *notes]


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


class Raising(Callback):
    def on_metrics(self, record):
        raise ValueError("a mistake of the user's")


def test_a_callback_that_raises_is_an_event_and_not_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(plugins, "callbacks", plugins.Registry("callback"))
    plugins.register_callback("raising", lambda context: Raising())
    play = Play(tmp_path, monkeypatch, run={"callbacks": ("raising",), "loggers": ()})
    play.chief._write_line(play.now)
    play.have()
    play.chief.result = {"status": "stopped", "message": "m"}
    play.chief._end()
    failed = [record for record in read_metrics(tmp_path) if record.get("name") == "callback_failed"]
    assert failed[0]["text"] == "callback raising.on_metrics: ValueError: a mistake of the user's"
    assert read_json(tmp_path / RESULT)["status"] == "stopped"
    assert not list(tmp_path.glob("events.out.*")), "no logger was asked for"
