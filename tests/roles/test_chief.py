"""The chief on a fake transport and a fake clock: steps, stops, and ranks that die."""

from __future__ import annotations

import json
import threading
import time

import numpy as np
import pytest

from ddrl import plugins
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.exchange.messages import Flag, Kind
from ddrl.exchange.transport import Blob, PeerLost
from ddrl.job.role import RoleLost, Topic
from ddrl.npz import decode_arrays
from ddrl.reporting import machine
from ddrl.reporting.callbacks import Callback
from ddrl.reporting.metrics import read_metrics
from ddrl.reporting.phases import EVALUATING
from ddrl.roles import chief
from ddrl.roles.chief import ChiefRole, Phase
from ddrl.roles.exchanges import setup_of
from ddrl.rundir import GOES_ON, RESULT, RESULT_BEFORE, STOP, read_json
from tests.roles.chief_play import SIZE, Play, Sent


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
    assert int(decode_arrays(setups[0])["agent_steps"]) == job.chief.start.agent_steps
    np.testing.assert_array_equal(decode_arrays(setups[1])["draws"], np.arange(3))
    loads = job.sent.take(Kind.LOAD)
    np.testing.assert_array_equal(loads[0].payload, [0, 1, 2, 1, 1, 1, 2, 2, 2])
    np.testing.assert_array_equal(loads[1].payload, [3, 4, 1, 1, 2, 2])
    assert all(load.header.version == load.header.count == 3 and load.header.value == 0.5 for load in loads)
    assert [message.header.count for message in job.sent.take(Kind.EXPECT)] == [2, 2]
    assert job.events("resumed")[0]["update"] == 3


def test_a_finished_run_that_goes_on_loses_its_result_as_the_chief_begins(tmp_path, monkeypatch):
    """Else the launcher would put it in place of that of a start that ended early."""
    (tmp_path / RESULT_BEFORE).touch()
    Play(tmp_path, monkeypatch, version=3, resumed=True)
    assert not (tmp_path / RESULT_BEFORE).exists()


def test_a_step_closes_when_all_shards_hold_all(play):
    job = play()
    assert job.have(shards=(0,)) is None
    assert job.have(members=0b01, shards=(1,)) is None
    assert job.have(shards=(1,)) == Flag.NONE
    assert (job.chief.coordinator.version, job.chief.coordinator.step) == (1, 1)


def test_the_stop_file_ends_without_an_evaluation(play):
    job = play()
    job.have()
    job.ask_to_stop()
    assert job.have() & Flag.STOP
    job.everything()
    job.chief.advance()
    assert job.ended()["status"] == "stopped"
    assert job.sent.take(Topic.EVALUATE) == [] and job.files() == ["update-000000002.npz"]


def test_a_stop_while_no_gradient_comes_is_sent_by_itself(play):
    job = play()
    job.chief.stop("stopped", "x", signaled=True)
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
    assert "fix the environment if its observations or rewards were not finite (event grad" in result["message"]
    assert f"clip (--clip-global-norm) with `ddrl train --resume {job.run_dir} ...`" in result["message"]
    assert result["message"].endswith(f"from an earlier checkpoint with --init-from {job.run_dir}:UPDATE")
    assert [event["workers"] for event in job.events("gradient_refused")] == [[1], [0, 1]]
    assert (result["update"], job.chief.coordinator.step) == (3, 5)
    assert job.files() == ["update-000000003.npz"]


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


def awaiting_the_last_update(play):
    job = play(run={"max_updates": 2})
    job.have()
    job.chief.advance()
    assert job.chief.phase is Phase.STOPPING
    return job


def test_a_failure_while_the_last_update_is_awaited_fails_the_run(play):
    job = awaiting_the_last_update(play)
    error = json.dumps({"text": "ValueError: no good\n", "line": "ValueError: no good"}).encode()
    job.chief.handle(Blob(1, Topic.FAILED, error))
    job.now += chief.FAILED_COMMIT_SECONDS + 0.5
    job.chief.advance()
    job.everything()
    job.chief.advance()
    result = job.ended()
    assert result["status"] == "failed" and "no good" in result["message"]


def test_a_stop_while_the_last_update_is_awaited_waits_for_it_no_longer_than_for_others(play):
    job = awaiting_the_last_update(play)
    job.ask_to_stop()
    assert job.sent.take(Kind.COMMIT) == []
    job.now += chief.LAST_COMMIT_SECONDS + 1.0
    job.chief.advance()
    assert all(message.header.flags & Flag.STOP for message in job.sent.take(Kind.COMMIT))
    assert job.chief.phase is Phase.SAVING
    job.everything()
    job.chief.advance()
    result = job.ended()
    assert (result["status"], result["message"], result["update"]) == ("stopped", "stopped on request", 1)
    assert "unevaluated" not in result, "more is lacking than the final evaluation"


def test_a_last_update_that_is_refused_is_made_anew(play):
    job = awaiting_the_last_update(play)
    assert job.have(refused=0b10) == Flag.SKIP and job.have(refused=0b01) == Flag.SKIP
    assert job.have() == Flag.STOP | Flag.CHECKPOINT | Flag.PUBLISH
    job.everything()
    assert job.files() == ["update-000000002.npz"]
    job.result(2, mean=3.0)
    job.chief.advance()
    result = job.ended()
    assert (result["status"], result["update"], job.chief.coordinator.step) == ("finished", 2, 4)


def test_a_last_update_that_is_refused_too_often_fails_the_run(play):
    job = play(run={"max_updates": 2, "max_refused_steps": 2})
    job.have()
    assert job.have(refused=0b10) == Flag.SKIP and job.have(refused=0b10) == Flag.SKIP
    assert job.have(refused=0b10) == Flag.SKIP | Flag.STOP | Flag.CHECKPOINT | Flag.PUBLISH
    job.everything()
    job.chief.advance()
    result = job.ended()
    assert (result["status"], result["update"]) == ("failed", 1) and "2 steps were refused" in result["message"]
    assert job.files() == ["update-000000001.npz"]


def test_a_request_to_stop_does_not_wait_for_a_last_update_that_is_refused(play):
    job = awaiting_the_last_update(play)
    job.ask_to_stop()
    assert job.have(refused=0b10) & Flag.STOP
    job.everything()
    job.chief.advance()
    result = job.ended()
    assert (result["status"], result["update"]) == ("stopped", 1) and "unevaluated" not in result


def test_a_stop_is_asked_for_once(play, monkeypatch):
    """Replicas that carry it out between two steps would take a second one in its place, which saves nothing."""
    job, asked = play(), []
    monkeypatch.setattr(job.chief.coordinator, "request", asked.append)
    job.ask_to_stop()
    job.ask_to_stop()  # its file is still there
    assert asked == [Flag.STOP | Flag.CHECKPOINT | Flag.PUBLISH]


def test_an_event_that_comes_after_the_end_is_left_out(play):
    """While callbacks end, messages wait: the learner of Ape-X then thinks that the shards have been silent."""
    job = play()
    job.ask_to_stop()
    assert job.have() & Flag.STOP
    job.everything()
    job.chief.advance()
    assert job.chief.finished
    late = json.dumps({"name": "replay_shard_silent", "text": "replay shard 0 has been silent for 12 s"}).encode()
    job.chief.handle(Blob(0, Topic.EVENT, late))
    assert job.events("replay_shard_silent") == []


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (PeerLost(1), "worker 1 (rank 1) died; training goes on with 1 worker"),
        (PeerLost(4), "the evaluator (rank 4) died; training goes on without evaluation"),
        (Blob(0, Topic.EVENT, b'{"name": "actor_restarted", "text": "the process ended"}'), "the process ended"),
        (Blob(0, Topic.EVENT, b'{"name": "replay_shard_silent", "text": "for 12 s"}'), ""),
    ],
)
def test_the_log_says_behind_the_last_words_of_a_process_that_the_run_goes_on(play, capfd, event, line):
    play().chief.handle(event)
    assert capfd.readouterr().err == (f"{GOES_ON}{line}\n" if line else "")


@pytest.mark.parametrize("rank", [1, 4])
def test_a_rank_that_told_of_its_mistake_and_died_is_told_of_once(play, rank):
    job = play()
    error = json.dumps({"text": "ValueError: no good\n", "line": "ValueError: no good"}).encode()
    job.chief.handle(Blob(rank, Topic.FAILED, error))
    job.chief.handle(PeerLost(rank))
    assert len(job.events("rank_failed")) == 1
    assert job.events("worker_lost") == job.events("evaluator_lost") == [], "training does not go on"


def test_what_is_not_as_before_is_told(play):
    job = play()
    notes = (("checkpoint_left_out", "update 9 is damaged"), ("settings_changed", "--discount 0.9, now 0.8"))
    ChiefRole(job.chief.context, Sent(), job.chief.start, True, notes)
    told = [record for record in read_metrics(job.run_dir) if record["kind"] == "event"]
    assert [(record["name"], record["text"]) for record in told] == [("resumed", "from update 0"), *notes]


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


class Ending(Callback):
    def on_metrics(self, record):
        return False


@pytest.mark.parametrize("version, resumed", [(0, False), (3, True)])
def test_a_callback_that_returns_false_stops_the_run_as_the_stop_file_does(version, resumed, tmp_path, monkeypatch):
    monkeypatch.setattr(plugins, "callbacks", plugins.Registry("callback"))
    plugins.register_callback("ending", lambda context: Ending())
    run = {"callbacks": ("ending",), "loggers": ()}
    job = Play(tmp_path, monkeypatch, run=run, version=version, resumed=resumed)
    job.have()  # and writes the first line of metrics
    end = time.monotonic() + 30.0
    while not (tmp_path / STOP).exists():
        assert time.monotonic() < end, "the callback's thread has not asked for a stop"
        time.sleep(0.01)
    job.now += 1.0
    job.chief.advance()
    assert job.have() & Flag.STOP
    job.everything()
    job.chief.advance()
    result = job.ended()
    assert result["status"] == "stopped"
    assert result["message"] == "stopped: callback ending.on_metrics returned False"
    assert job.sent.take(Topic.EVALUATE) == [] and job.files() == [f"update-{version + 2:09d}.npz"]


class EndingLate(Callback):
    """Wants an end at each checkpoint; `told` says that it has heard of the final evaluation since."""

    def __init__(self):
        self.told = threading.Event()

    def on_checkpoint(self, record):
        return False

    def on_event(self, record):
        if record.get("phase") == EVALUATING:
            self.told.set()


def test_a_callback_does_not_cut_the_final_evaluation_by_what_it_says_of_the_last_checkpoint(tmp_path, monkeypatch):
    ending = EndingLate()
    monkeypatch.setattr(plugins, "callbacks", plugins.Registry("callback"))
    plugins.register_callback("ending", lambda context: ending)
    job = Play(tmp_path, monkeypatch, run={"callbacks": ("ending",), "loggers": (), "max_updates": 1})
    job.have()
    job.everything()
    assert ending.told.wait(30.0)
    job.now += 1.0
    job.chief.advance()
    assert not (tmp_path / STOP).exists()
    job.result(1, mean=3.0)
    job.chief.advance()
    result = job.ended()
    assert result["status"] == "finished" and "unevaluated" not in result


def test_the_first_update_of_each_part_tells_of_the_machine_and_the_commit_of_the_program(play, monkeypatch):
    commits = ["0123456789ab", "ba9876543210+changes", None]
    for commit in commits:
        monkeypatch.setattr(machine, "source_commit", lambda root=None: commit)
        job = play()
        job.have()
    machines = [event["machine"] for event in job.events("started")]
    assert [each.get("commit") for each in machines] == commits
    assert all(each["packages"]["numpy"] == np.__version__ and each["cores"] > 0 for each in machines)
    assert job.events("plugin_changed") == []


def test_the_first_update_tells_whose_parameters_the_run_began_with(play):
    source = {"file": "/runs/a/checkpoints/update-000000007.npz", "update": 7, "agent_steps": 1234}
    for counters in ({"init_from": source}, None):
        job = play(counters=counters)
        job.have()
    began, drew = job.events("started")
    assert began["init_from"] == source and "init_from" not in drew
    told = "; it began with the parameters of update 7 (1,234 agent steps) in /runs/a/checkpoints/update-000000007.npz"
    assert began["text"].endswith(told) and "parameters" not in drew["text"]
