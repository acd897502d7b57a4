"""A worker's states at checkpoints, and how long gradients take by the worker's own count."""

from __future__ import annotations

import json
import types

import numpy as np
import pytest

from cluster.roles import Sizes, assign_roles
from ddrl.algorithms import preset
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.exchange.messages import Flag, Header, Kind, Message
from ddrl.exchange.transport import Blob
from ddrl.job.layout import JobContext, JobLayout
from ddrl.job.role import Topic
from ddrl.npz import decode_arrays, encode_arrays
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.roles import worker
from ddrl.roles.checkpoint_assembly import AT_THE_END
from ddrl.roles.worker import WorkerRole
from ddrl.types import Machine, Snapshot
from tests.roles.chief_play import Sent
from tests.test_combinations import config_of


@pytest.fixture
def timed(monkeypatch):
    """timed(EVENT...) -> the milliseconds of each gradient; an event is (second, "came" or "sent", version)."""

    def play(*events):
        role = WorkerRole.__new__(WorkerRole)
        role.metrics, role._arrived, role._submitted = RankMetrics("worker", 0), {}, 0.0
        found = []
        for second, what, version in events:
            monkeypatch.setattr(worker.time, "monotonic", lambda: second)
            if what == "came":
                role._arrived[version] = second
                continue
            role._computed(version)
            total, count = role.metrics.report()["means"]["compute_ms"]
            found.append(total / count)
        return found

    return play


def test_a_gradient_takes_from_its_parameters_to_its_end(timed):
    assert timed((1.0, "came", 1), (1.25, "sent", 1), (2.0, "came", 2), (2.5, "sent", 2)) == [250.0, 500.0]


def test_one_that_was_late_is_counted_and_the_next_begins_after_it(timed):
    events = ((1.0, "came", 1), (1.5, "came", 2), (2.0, "sent", 1), (2.25, "sent", 2), (2.5, "sent", 2))
    assert timed(*events) == [1000.0, 250.0, 250.0]


def test_an_environment_that_cannot_be_reset_is_no_malformed_state():
    def reset(state, seed):
        raise RuntimeError("no license")

    role = WorkerRole.__new__(WorkerRole)
    role.worker, role.context = 3, types.SimpleNamespace(config=TrainConfig(algorithm=BA3CConfig()))
    role.schedule = types.SimpleNamespace(set_state=reset)
    with pytest.raises(RuntimeError, match="^no license"):
        role._begin(encode_arrays({"version": np.int64(0), "agent_steps": np.int64(0)}))


def test_a_state_that_makes_no_sense_is_named_in_one_line():
    role = WorkerRole.__new__(WorkerRole)
    role.worker, role.context = 3, types.SimpleNamespace(config=TrainConfig(algorithm=BA3CConfig()))
    role.schedule = types.SimpleNamespace(set_state=lambda state, seed: state["counts"])
    with pytest.raises(UsageError, match="the state of worker 3 in the checkpoint of update 7 is malformed .*counts"):
        role._begin(encode_arrays({"version": np.int64(7), "agent_steps": np.int64(9)}))


def saved_state(schedule, algorithm, last):
    """What a worker of a quorum sends as its state, of a schedule that is acting; step 7."""
    role, sent = WorkerRole.__new__(WorkerRole), []
    config = preset("smoke", None, Machine(2, 8 << 30), algorithm)
    role.context, role._state_due = types.SimpleNamespace(config=config), None
    role.client, role._may_lag = types.SimpleNamespace(asynchronous=False), lambda: True
    role.schedule, role._feed = schedule, types.SimpleNamespace(save=lambda step, state, send: sent.append(state))
    role._report, role.trainer = lambda: None, types.SimpleNamespace(stop=schedule.stop)
    role._save_state(Snapshot(5, 7, None), last)
    return sent[0]


class Acting:
    """A schedule that has a state after it was asked so often, or once it is stopped."""

    def __init__(self, asked):
        self.left = asked

    def get_state(self):
        self.left -= 1
        return {} if self.left > 0 else {"period": np.int64(3)}

    def counters(self):
        return {"draws": np.int64(9)}

    def stop(self):
        self.left = 0


def test_a_replay_worker_that_acts_at_a_checkpoint_says_so():
    state = saved_state(Acting(1_000_000), "dqn", last=False)
    assert state.pop("unsaved").tobytes().decode() == "it was acting, and its replay was about to change"
    assert state == {"draws": 9}, "exploration goes on, though the replay begins empty"
    assert saved_state(Acting(1_000_000), "ba3c", last=False) == {"draws": 9}, "what it loses is part of an unroll"


def test_at_the_end_of_a_run_a_worker_is_given_time_to_act_to_the_end():
    assert saved_state(Acting(5), "dqn", last=True) == {"period": 3}


@pytest.mark.parametrize(
    "algorithm, last, saved", [("dqn", True, {"period": 3}), ("ba3c", True, {"draws": 9}), ("dqn", False, None)]
)
def test_a_replay_worker_that_acts_on_at_the_end_of_a_run_is_broken_off(algorithm, last, saved, monkeypatch):
    monkeypatch.setattr(worker, "SETTLE_SECONDS", 0.0)
    state = saved_state(Acting(1_000_000), algorithm, last)
    assert state == saved if saved else "unsaved" in state


@pytest.mark.parametrize(
    "asynchronous, exchange, waits",
    [
        (False, {}, False),
        (True, {}, True),
        (False, {"quorum": 1}, True),
        (False, {"quorum_deadline_seconds": 1.0}, True),
    ],
)
def test_the_end_of_a_run_waits_for_those_that_others_did_not_wait_for(asynchronous, exchange, waits):
    role = WorkerRole.__new__(WorkerRole)
    role.context = types.SimpleNamespace(config=TrainConfig(algorithm=BA3CConfig()).changed(exchange=exchange))
    role.client = types.SimpleNamespace(asynchronous=asynchronous)
    assert role._may_lag() == waits


@pytest.mark.parametrize("due, flags, saved", [(4, Flag.NONE, [4]), (4, Flag.CHECKPOINT | Flag.STOP, [AT_THE_END])])
def test_with_asynchronous_updates_the_state_is_saved_with_the_next_parameters(due, flags, saved):
    role, names = WorkerRole.__new__(WorkerRole), []
    role._hashes, role._norms, role.metrics = None, None, RankMetrics("worker", 0)
    role._first_step, role._waiting_since, role._arrived, role._state_due = 0, None, {}, None
    role.context = types.SimpleNamespace(config=TrainConfig(algorithm=BA3CConfig()), layout=None)
    role.client = types.SimpleNamespace(flags=flags, asynchronous=True)
    role.schedule = types.SimpleNamespace(get_state=lambda: {"draws": np.zeros(1)}, update=lambda snapshot: None)
    role.trainer = types.SimpleNamespace(parameters=lambda snapshot: None)
    role._feed = types.SimpleNamespace(
        updated=lambda version: None, handle=lambda event: None, save=lambda step, state, send: send(state)
    )
    role._send_state = lambda name, state: names.append(name)
    role._stop = role._report = lambda: None
    message = Blob(0, Topic.STATE_DUE, json.dumps(due).encode())
    role.context.layout = types.SimpleNamespace(servers=(), chief=0)
    role.handle(message)
    assert names == [], "it was saved in the middle of a step"
    role._on_snapshot(Snapshot(5, 7, np.zeros(1, np.float32)))
    assert names == saved
    role.client.flags = Flag.NONE
    role._on_snapshot(Snapshot(6, 8, np.zeros(1, np.float32)))
    assert names == saved, "it was saved twice"


class Fresh:
    """A schedule that has nothing but what it is given."""

    def __init__(self):
        self.state = {"draws": np.zeros(2, np.int64)}

    def set_state(self, state, reset_seed):
        self.state = state

    def get_state(self):
        return self.state

    def next_batch(self, wait_for_snapshot):
        return None

    def update(self, snapshot):
        pass

    def stop(self):
        pass


def test_a_run_that_ends_before_a_worker_has_begun_keeps_its_state(tmp_path):
    """Parameters are looked for more often than blobs, and a worker that comes late finds all of them at once."""
    config = config_of("ba3c", "smoke", workers=2, exchange="parameter_server", parameter_servers=1)
    layout = JobLayout.from_assignments(assign_roles(Sizes(2, 1, evaluator=False)))
    network, sent, metrics = types.SimpleNamespace(size=3, parameter_shapes=()), Sent(), RankMetrics("worker", 1)
    role = WorkerRole(JobContext(config, tmp_path, layout), sent, 1, network, Fresh(), None, metrics, lambda: None)
    for flags in (Flag.NONE, Flag.STOP | Flag.CHECKPOINT):
        header = Header(Kind.PARAMETERS, step=7, version=5, flags=flags)
        role.handle(Message(layout.servers[0], header, np.zeros(3, np.float32)))
    assert sent.take(Topic.STATE) == [], "a state that is none replaces the one of the checkpoint before"
    setup = {"draws": np.full(2, 9), "version": np.int64(5), "agent_steps": np.int64(0)}
    role.handle(Blob(layout.chief, Topic.SETUP, encode_arrays(setup)))
    (blob,) = sent.take(Topic.STATE)
    state = decode_arrays(blob.data)
    assert state["draws"].tolist() == [9, 9] and int(state["of"]) == 7


@pytest.mark.parametrize(
    ("events", "saved"),
    [
        ([(7, Flag.CHECKPOINT), 7, (8, Flag.NONE)], [7]),
        ([7, (7, Flag.CHECKPOINT), (8, Flag.NONE)], [7]),
        ([(8, Flag.NONE), 7, (9, Flag.NONE), (10, Flag.NONE)], [7]),  # it has skipped step 7
        ([7, (6, Flag.NONE), (8, Flag.NONE)], [7]),  # step 6 was still under way
        ([7, (9, Flag.CHECKPOINT), 9, (10, Flag.NONE)], [9]),  # the chief has given the first one up
        ([9, (7, Flag.CHECKPOINT), (10, Flag.NONE)], [7, 9]),
    ],
)
def test_with_a_quorum_a_worker_saves_one_state_for_each_checkpoint(tmp_path, events, saved):
    """An event is the number of a STATE_DUE, or parameters: their step and flags."""
    config = config_of("ba3c", "smoke", workers=2, exchange="parameter_server", parameter_servers=1, quorum=1)
    layout = JobLayout.from_assignments(assign_roles(Sizes(2, 1, evaluator=False)))
    network, sent, metrics = types.SimpleNamespace(size=3, parameter_shapes=()), Sent(), RankMetrics("worker", 1)
    role = WorkerRole(JobContext(config, tmp_path, layout), sent, 1, network, Fresh(), None, metrics, lambda: None)
    setup = {"draws": np.full(2, 9), "version": np.int64(5), "agent_steps": np.int64(0)}
    role.handle(Blob(layout.chief, Topic.SETUP, encode_arrays(setup)))
    for event in events:
        if isinstance(event, int):
            role.handle(Blob(layout.chief, Topic.STATE_DUE, json.dumps(event).encode()))
            continue
        header = Header(Kind.PARAMETERS, step=event[0], version=event[0], flags=event[1])
        role.handle(Message(layout.servers[0], header, np.zeros(3, np.float32)))
    assert [int(decode_arrays(blob.data)["of"]) for blob in sent.take(Topic.STATE)] == saved
