"""Actors of Ape-X and the processes that act for them: how those begin, end, hang, and are replaced."""

from __future__ import annotations

import json
import os
import signal
from types import SimpleNamespace

import pytest

from ddrl.apex import actor as actor_module
from ddrl.apex.child import Frame, Received
from ddrl.job.role import RoleLost, Topic
from tests.apex.apex_world import SEEDS, World
from tests.apex.test_child import child as process

pytestmark = pytest.mark.usefixtures("no_pauses")
LONG_SECONDS = actor_module.LONG_SECONDS  # a life after which a failure of an actor's child does not count


def test_a_child_is_told_of_each_segment_that_went_to_a_shard(tmp_path):
    world = World(tmp_path, actors=2)
    world.steps(2_000)
    for child in world.children.values():
        assert child.taken > 100 and child.taken in (child.acted, child.acted - 1), "one may wait for room"


def test_a_shard_that_stands_still_stops_the_actors_that_have_no_other(tmp_path):
    world = World(tmp_path, actors=1, shards=1)
    world.steps(200)
    (shard,), (rank,) = world.shards, world.layout.actors
    shard.handle = shard.advance = lambda *event: None
    world.steps(500)
    acted = world.children[rank].acted
    world.steps(500)
    assert world.children[rank].acted == acted, "there was no acknowledgment"


def test_with_the_last_actor_the_job_ends_since_nothing_new_would_come(tmp_path):
    world = World(tmp_path)
    world.steps(500)
    first, last = world.layout.actors
    world.kill(first)
    world.steps(500)
    with pytest.raises(RoleLost, match="actor 1 .* died, and it was the last actor"):
        world.kill(last)


@pytest.mark.parametrize("seed", SEEDS)
def test_killed_children_come_back_as_others_and_nothing_of_theirs_is_refused(tmp_path, seed):
    world = World(tmp_path, seed)
    for _ in range(20):
        world.steps(200)
        child = world.children.get(world.layout.actors[world.random.integers(2)])
        if child is not None:
            child.exit_status = -9
    assert sum(role.restarts for role in world.actors) >= 10
    assert "actor_restarted" in world.events() and Topic.FAILED not in world.reported
    assert sum(shard.replay.refused for shard in world.shards) == 0
    before = world.version
    world.steps(2_000)
    assert world.version > before + 20


def test_every_child_begins_after_the_agent_steps_of_its_actor(tmp_path):
    """Those of the run's earlier parts, and what earlier children reported: an epsilon that falls goes on."""
    world = World(tmp_path, agent_steps=2_001)
    world.steps(200)
    first = world.children[world.layout.actors[0]]
    assert [child.agent_steps for child in world.children.values()] == [1_000, 1_000]
    said = iter([Received(Frame.REPORT, 0, json.dumps({"counters": {"agent_steps": 70}}).encode())] * 2)
    first.receive = lambda: next(said, None)
    world.steps(200)
    first.exit_status = 9
    world.steps(200)
    assert world.children[world.layout.actors[0]] is not first
    assert world.children[world.layout.actors[0]].agent_steps == 1_140


def test_an_epsilon_that_falls_stays_where_it_was_with_another_number_of_actors(tmp_path):
    """Each had 1,000 of the 2,000 agent steps. Four make 1,000 more of each, and one is to go on from there."""
    first = World(tmp_path)
    first.steps(200)
    four = World(tmp_path, actors=4, state=first.save(), agent_steps=2_000)
    four.steps(400)
    assert {child.agent_steps for child in four.children.values()} == {1_000}
    one = World(tmp_path, actors=1, state=four.save(), agent_steps=6_000)
    one.steps(200)
    assert {child.agent_steps for child in one.children.values()} == {2_000}
    again = World(tmp_path, actors=1, state=one.save(), agent_steps=7_000)
    again.steps(200)
    assert {child.agent_steps for child in again.children.values()} == {3_000}


def test_a_child_that_makes_no_sense_is_replaced_and_named(tmp_path):
    world = World(tmp_path, actors=1, shards=1)
    (role,) = world.actors
    while role.child is None:
        world.step()
    first = role.child

    def receive():
        raise ValueError("a frame of -1 bytes")

    first.receive = receive
    world.steps(2_000)
    assert first.ended and role.child is not first and role.restarts == 1
    (event,) = [json.loads(blob.data) for blob in world.reported[Topic.EVENT]]
    assert event["name"] == "actor_restarted"
    assert "actor 0 ended by an unreadable message (a frame of -1 bytes)" in event["text"]


def test_a_child_that_cannot_begin_ends_the_job_with_its_status(tmp_path):
    world = World(tmp_path, actors=1, shards=1)
    (role,) = world.actors
    for _ in range(3_000):
        world.step()
        if role.child is not None:
            role.child.exit_status = 2
            role.child.receive = lambda: None
    (blob,) = world.reported[Topic.FAILED]
    text = json.loads(blob.data)["text"]
    assert text == "its process failed 5 times, each within 10 minutes, at last by exit status 2"
    assert role.child is None


@pytest.mark.parametrize(
    ("lives", "restarts"),
    [
        ([1.0] * 8, 5),
        ([LONG_SECONDS] * 8, None),
        ([1.0, LONG_SECONDS] + [1.0] * 4, None),
        ([LONG_SECONDS] + [1.0] * 5, 6),
    ],
)
def test_an_environment_that_fails_again_and_again_ends_the_job_with_its_words(tmp_path, monkeypatch, lives, restarts):
    """After five short lives in a row, also where segments came before; one that fails now and then does not.

    `lives` has the seconds that each child lives; the job ends after `restarts`, or never.
    """
    clock = SimpleNamespace(now=1_000.0)
    monkeypatch.setattr(actor_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(actor_module, "LONGEST_PAUSE_SECONDS", 0.0)
    world = World(tmp_path, actors=1, shards=1)
    (role,) = world.actors
    for seconds in lives:
        while role.child is None and Topic.FAILED not in world.reported and not role._halted:
            world.step()
        if role._halted:
            break
        child = role.child
        while not child.taken:
            world.step()
        clock.now += seconds
        words = json.dumps({"text": "Traceback ...", "line": "ValueError: the ball is lost"}).encode()
        child.receive, child.exit_status, child.last = lambda: None, 1, [Received(Frame.FAILURE, 0, words)]
        role.advance()
    world.settle()
    if restarts:
        (blob,) = world.reported[Topic.FAILED]
        told = json.loads(blob.data)
        assert told["line"].endswith("at last by exit status 1: ValueError: the ball is lost")
        assert told["text"] == f"{told['line']}\nTraceback ..." and role.restarts == restarts
    else:
        assert Topic.FAILED not in world.reported and role.restarts == len(lives)


@pytest.mark.parametrize("times", [3, 5])
def test_a_child_that_cannot_be_started_is_tried_again_and_in_the_end_ends_the_job(tmp_path, times):
    world = World(tmp_path, actors=1, shards=1)
    (role,) = world.actors
    start, tried = role._start, []

    def failing(run_id, agent_steps):
        tried.append(run_id)
        if len(tried) <= times:
            raise OSError(12, "Cannot allocate memory")
        return start(run_id, agent_steps)

    role._start = failing
    world.steps(2_000)
    if times == 3:
        assert world.version > 0 and role.restarts == 3 and Topic.FAILED not in world.reported
    else:
        (blob,) = world.reported[Topic.FAILED]
        assert "a start that failed: Cannot allocate memory" in json.loads(blob.data)["text"] and len(tried) == 5


def test_a_child_that_stands_still_is_replaced(tmp_path, monkeypatch):
    clock = SimpleNamespace(now=1_000.0)
    monkeypatch.setattr(actor_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    world = World(tmp_path, actors=1, shards=1)
    world.steps(500)
    (role,), old = world.actors, world.children[1]
    old.receive = lambda: None
    clock.now += world.config.run.stall_seconds - 1.0
    world.steps(100)
    assert role.child is old
    clock.now += 2.0
    world.steps(300)
    assert old.ended and role.restarts == 1 and role.child not in (None, old)
    assert world.events() == ["actor_restarted"]


def test_a_process_that_is_stopped_is_killed_and_replaced(tmp_path, monkeypatch):
    """A real one (SIGSTOP), as one hangs whose machine swaps."""
    clock = SimpleNamespace(now=1_000.0)
    monkeypatch.setattr(actor_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    world = World(tmp_path, actors=1, shards=1)
    (role,), run = world.actors, world.config.run
    role._start = lambda run_id, agent_steps: process("sleep")
    while role.child is None:
        world.step()
    stopped = role.child
    os.kill(stopped.process.pid, signal.SIGSTOP)
    clock.now += max(run.stall_seconds, run.start_seconds) + 1.0
    for _ in ("it is ended", "another begins"):
        role.advance()
    assert stopped.status() == -signal.SIGKILL and role.child.status() is None
    role.child.end()
    world.settle()
    (event,) = [json.loads(blob.data) for blob in world.reported[Topic.EVENT]]
    assert "the process of actor 0 ended by silence of" in event["text"]


def test_a_child_that_waits_for_room_or_parameters_does_not_stand_still(tmp_path, monkeypatch):
    clock = SimpleNamespace(now=1_000.0)
    monkeypatch.setattr(actor_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    world = World(tmp_path, actors=1, shards=1)
    world.parameters.handle = lambda message: None
    for _ in range(10):
        world.steps(100)
        clock.now += 100.0
    assert world.actors[0].restarts == 0 and world.children[1].version < 0
    world = World(tmp_path, actors=1, shards=1)
    (shard,) = world.shards
    world.steps(100)
    shard.advance = lambda: None  # it acknowledges nothing
    for _ in range(10):
        world.steps(100)
        clock.now += 100.0
    assert world.actors[0].restarts == 0 and world.actors[0]._segment is not None


def test_a_new_child_begins_with_the_parameters_that_are_here_and_gets_newer_ones(tmp_path):
    world = World(tmp_path, actors=1, shards=1)
    world.steps(3_000)
    (rank,) = world.layout.actors
    assert world.children[rank].version > 10
    old = world.children[rank]
    old.exit_status = -9
    while world.children[rank] is old:
        world.step()
    child, before = world.children[rank], world.version
    child.receive = lambda: None  # it begins slowly, and learning goes on
    while world.version < before + 20:
        world.step()
    del child.receive
    while child.version < 0:
        world.step()
    assert old.version <= child.version < before + 20, "what is here, at once"
    child.receive = lambda: None  # it asks for no other
    world.steps(300)
    assert child.version >= before + 20, "and the newest"


def test_the_complaint_of_a_child_is_an_event(tmp_path):
    world = World(tmp_path, actors=1, shards=1)
    (role,) = world.actors
    while role.child is None:
        world.step()
    said = iter([Received(Frame.COMPLAINT, 0, b"1 of 10 values of reward are no numbers")])
    role.child.receive = lambda: next(said, None)
    world.steps(300)
    world.settle()
    (event,) = [json.loads(blob.data) for blob in world.reported[Topic.EVENT]]
    assert event == {"name": "segment_not_sent", "text": "actor 0: 1 of 10 values of reward are no numbers"}
    assert role.restarts == 0


def test_a_halt_ends_the_acting(tmp_path):
    world = World(tmp_path)
    world.steps(1_000)
    world.sampler.halt()
    world.settle()
    assert all(child.ended for child in world.children.values())
    world.steps(200)
    assert all(role.child is None and not role.finished for role in world.actors)
