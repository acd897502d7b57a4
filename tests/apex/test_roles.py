"""Shards, actors and the learner's sampler as they talk to each other, without MPI, in random order."""

from __future__ import annotations

import json
import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest

from ddrl.apex import actor as actor_module
from ddrl.apex import replay_shard as shard_module
from ddrl.apex.child import Frame, Received
from ddrl.apex.feed import ReplayFeed
from ddrl.apex.known_shards import next_to_ask
from ddrl.apex.memory import BATCHES_ON_THEIR_WAY
from ddrl.apex.shard_setup import ShardSetup
from ddrl.errors import UsageError
from ddrl.exchange.messages import Kind
from ddrl.exchange.transport import Blob
from ddrl.job.role import RoleLost, Topic
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.types import Continuous
from tests.apex.apex_world import FORMAT, World
from tests.apex.segments import FEATURES, IMAGES, noise, remove
from tests.apex.test_child import child as process

SEEDS = range(2)
LONG_SECONDS = actor_module.LONG_SECONDS  # a life after which a failure of an actor's child does not count


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(actor_module, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(shard_module, "FILL_SECONDS", 0.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_actors_fill_shards_and_the_learner_learns_from_both(tmp_path, seed):
    world = World(tmp_path, seed)
    world.steps(4_000)
    assert world.version > 50 and len(world.keys) > 40
    for shard in world.shards:
        shard.replay.check()
        assert shard.replay.size <= shard.replay.hard_capacity and shard.replay.updated > 0
        assert shard.replay.refused == 0
    sampled = [shard.replay.sampled for shard in world.shards]
    assert min(sampled) > 0.7 * max(sampled), "shards of like weights give equally many batches"
    world.settle()
    known = [shard.inserted for shard in world.sampler._shards.values()]
    assert known == [shard.replay.inserted for shard in world.shards]


def test_batches_are_weighted_by_the_exponent_of_their_update(tmp_path):
    world, drawn = (
        World(
            tmp_path, replay={"importance_agent_steps": 0, "importance_updates": 100, "importance_exponent_end": 1.0}
        ),
        [],
    )
    fills = [(shard, shard._fill) for shard in world.shards]
    for shard, fill in fills:
        shard._fill = lambda buffer, beta, fill=fill: (drawn.append(beta), fill(buffer, beta))
    world.steps(4_000)
    replay = world.config.replay
    known = [replay.importance(version, world.config.agent_steps_per_update) for version in range(world.version + 1)]
    assert set(drawn) <= set(known) and len(set(drawn)) > 20
    assert max(drawn) > 0.5 * (replay.importance_exponent + replay.importance_exponent_end)


def test_shards_are_drawn_from_by_the_weights_of_their_transitions_not_by_their_number(tmp_path):
    """Each transition is then drawn as often as from one replay that has them all."""
    world = World(tmp_path)
    world.settle()
    few_and_heavy, many_and_light = world.sampler._shards.values()
    few_and_heavy.size, few_and_heavy.weight = 100, 30.0
    many_and_light.size, many_and_light.weight = 1_000, 10.0
    chosen = [next_to_ask(world.sampler._shards.values()) for _ in range(400)]
    assert sum(shard is few_and_heavy for shard in chosen) == pytest.approx(300, abs=2)


def test_shards_that_limit_the_learner_are_drawn_from_by_their_weights_too(tmp_path):
    """Not by how fast they answer: here each has as many as it may have on their way, and both answer by turns."""
    world = World(tmp_path)
    world.settle()
    shards = heavy, light = list(world.sampler._shards.values())
    heavy.size, heavy.weight, light.size, light.weight = 100, 30.0, 100, 10.0
    for turn in range(800):
        while (chosen := next_to_ask(world.sampler._shards.values())) is not None:
            chosen.asked += 1
        answering = shards[turn % 2]
        answering.received = min(answering.received + 1, answering.asked)
    assert heavy.asked / light.asked == pytest.approx(3.0, rel=0.02)


def test_a_shard_tells_the_sum_of_its_weights(tmp_path):
    world = World(tmp_path)
    world.steps(1_500)
    world.settle()
    for known, shard in zip(world.sampler._shards.values(), world.shards, strict=True):
        replay, exponent = shard.replay, world.config.replay.priority_exponent
        assert exponent and replay.size and shard._header(Kind.SIZE).value == replay.weight
        assert known.weight == pytest.approx(replay.weight, rel=0.2), "what it told before the last priorities"
        assert replay.weight == pytest.approx(replay._tree.weights.sum())


@pytest.mark.parametrize("seed", SEEDS)
def test_nobody_runs_ahead_of_what_the_others_take(tmp_path, seed):
    """Segments on their way, batches on their way and batches in memory are bounded at every moment."""
    world = World(tmp_path, seed)
    apex = world.config.apex
    for _ in range(2_500):
        world.step()
        for queue in world.net.queues.values():
            segments = [item for item in queue if isinstance(item, Blob) and item.topic == Topic.SEGMENT]
            assert len(segments) <= apex.segments_in_flight
        assert world.sampler.outstanding + world.schedule.ready <= apex.prefetch
        for shard in world.shards:
            assert len(shard._sent) + len(shard._free) <= BATCHES_ON_THEIR_WAY + 1


def test_a_learner_that_stands_still_stops_nobody_and_takes_no_memory(tmp_path):
    world = World(tmp_path, actors=1, shards=1)
    world.learn = lambda: False
    world.steps(6_000)
    (shard,) = world.shards
    assert shard.replay.inserted > 300 and shard.replay.size <= shard.replay.hard_capacity
    assert world.schedule.ready == world.config.apex.prefetch and world.sampler.outstanding == 0


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


@pytest.mark.parametrize("ratio", [0.5, 4.0])
def test_a_ratio_of_samples_to_inserts_is_kept(tmp_path, ratio):
    world = World(tmp_path, apex={"samples_per_insert": ratio}, replay={"replay_capacity": 4_000})
    world.steps(3_000)
    before = [(shard.replay.inserted, shard.replay.sampled) for shard in world.shards]
    world.steps(6_000)
    for shard, (inserted, sampled) in zip(world.shards, before, strict=True):
        inserted, sampled = shard.replay.inserted - inserted, shard.replay.sampled - sampled
        ahead = 2 * 8 + ratio * 4 + ratio * 2 * world.config.apex.segments_in_flight * 4  # and what was on its way
        assert inserted > 100 and abs(sampled - ratio * inserted) <= 2 * ahead


def test_the_learner_waits_for_the_minimum_and_says_so(tmp_path):
    world = World(tmp_path, replay={"replay_capacity": 240, "replay_minimum": 120}, actors=1)
    world.learn = lambda: False
    while world.sampler.size < 100:
        world.step()
        assert world.sampler.paused and world.schedule.ready == 0 == world.sampler.outstanding
    wait = world.sampler.waits()
    assert "transitions to learn from, 120 or more" in wait.what and wait.peers == world.layout.actors
    world.steps(2_000)
    assert not world.sampler.paused and world.schedule.ready > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lost_shard_is_left_out_and_the_learner_waits_for_the_fill(tmp_path, seed):
    world = World(tmp_path, seed, replay={"replay_capacity": 280, "replay_minimum": 70})
    world.steps(4_000)
    before, (first, second) = world.version, world.layout.replay_shards
    assert before > 0
    for role in world.actors:  # nobody acts: the other shard has what it has
        role.child.exit_status, role._pause = -9, np.inf
    remove(world.roles[second].replay, world.roles[second].replay._keys[20:])
    world.kill(first)
    world.steps(1_500)
    assert world.sampler.paused and world.sampler.size < 70
    stopped = world.version
    world.steps(300)
    assert world.version == stopped, "there are too few transitions"
    for role in world.actors:
        role._start_at = 0.0
    world.steps(3_000)
    assert not world.sampler.paused and world.version > stopped
    assert all(len(role._shards) == 1 for role in world.actors)


def test_with_the_last_shard_the_job_ends(tmp_path):
    world = World(tmp_path, shards=1)
    world.steps(500)
    with pytest.raises(RoleLost, match="replay shard 0 died, and it was the last one"):
        world.kill(world.layout.replay_shards[0])


def test_with_the_last_actor_the_job_ends_since_nothing_new_would_come(tmp_path):
    world = World(tmp_path)
    world.steps(500)
    first, last = world.layout.actors
    world.kill(first)
    world.steps(500)
    with pytest.raises(RoleLost, match="actor 1 .* died, and it was the last actor"):
        world.kill(last)


def test_when_learning_is_over_nobody_is_missed(tmp_path):
    world = World(tmp_path)
    world.steps(1_500)
    saved = []
    world.sampler.save(world.version, {}, saved.append)
    world.sampler.halt()
    for rank in (*world.layout.actors, *world.layout.replay_shards):
        world.kill(rank)
    (state,) = saved
    assert set(state) == {"run", "actors", "ahead"}


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


def test_eviction_by_priorities_learns_of_new_ones_where_drawing_is_uniform(tmp_path):
    world = World(tmp_path, replay={"priority_exponent": 0.0}, apex={"eviction_exponent": -0.4})
    world.steps(4_000)
    assert world.version > 10
    for shard in world.shards:
        assert shard.replay.updated > 0
        weights = shard.replay._tree.weights
        assert len(np.unique(weights[weights > 0])) == 1, "all are drawn alike; free places, if there are any, never"


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


def test_a_refused_segment_is_told_of_once_and_acknowledged(tmp_path):
    world = World(tmp_path, actors=1, shards=1)
    world.steps(300)
    (shard,), (rank,) = world.shards, world.layout.actors
    (credit,) = world.roles[rank]._shards
    for bad in (b"nothing", IMAGES.encode(noise(IMAGES, np.random.default_rng(0)))):
        credit.sent += 1
        world.ports[rank].send([Blob(world.layout.replay_shards[0], Topic.SEGMENT, bad)])
    world.settle()
    assert shard.replay.refused == 2 and credit.taken == credit.sent
    assert world.events().count("segment_refused") == 1


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


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_priorities_that_cannot_be_are_not_sent_and_counted(tmp_path, bad):
    world = World(tmp_path, shards=1)
    while not world.schedule.ready:
        world.step()
    learned = world.schedule.learned
    world.schedule.learned = lambda batch, priorities: learned(batch, np.where(np.arange(8) == 3, bad, priorities))
    world.steps(2_000)
    world.settle()
    assert world.version > 10 and world.shards[0].replay.updated == 0
    counted = world.schedule.metrics.report()["counters"]["priorities_not_sent"]
    assert counted == world.sampler._learned and world.events() == ["priorities_not_sent"]


def test_a_halt_ends_the_acting(tmp_path):
    world = World(tmp_path)
    world.steps(1_000)
    world.sampler.halt()
    world.settle()
    assert all(child.ended for child in world.children.values())
    world.steps(200)
    assert all(role.child is None and not role.finished for role in world.actors)


def test_a_halt_that_arrives_behind_the_end_keeps_no_role_from_ending(tmp_path):
    """The learner sends HALT, the chief END: they share a rank, which keeps the order, and no role relies on that."""
    world = World(tmp_path)
    world.steps(200)
    for role in (*world.actors, *world.shards):
        for topic in (Topic.END, Topic.HALT):
            role.handle(Blob(0, topic, b""))
        assert role.finished, type(role).__name__


@pytest.mark.parametrize("seed", SEEDS)
def test_a_resumed_job_has_the_replay_as_it_was_and_keys_of_its_own(tmp_path, seed):
    world = World(tmp_path, seed)
    world.steps(4_000)
    state = world.save()
    expected = [(shard.replay.counters(), shard.replay._tree.weights.copy()) for shard in world.shards]
    names = {"run", "actors", "ahead", "shard0", "shard1", "target.version", "target.vector"}
    assert set(state) == names and (state["run"], state["actors"], state["ahead"]) == (1, 2, 0)
    resumed = World(tmp_path, seed + 100, state=state)
    resumed.settle()
    for shard, (counters, weights) in zip(resumed.shards, expected, strict=True):
        assert shard.replay.counters() == counters
        assert np.array_equal(shard.replay._tree.weights, weights)
    assert not resumed.sampler.paused or resumed.sampler.size == sum(c["size"] for c, _ in expected)
    resumed.steps(4_000)
    assert resumed.version > 50
    assert all(child.run_id >> actor_module.RUN_BITS == 2 for child in resumed.children.values())
    assert sum(shard.replay.refused for shard in resumed.shards) == sum(c["refused"] for c, _ in expected)


def test_the_size_of_the_replay_is_not_reported_before_every_shard_has_told_of_its_own(tmp_path):
    world = World(tmp_path)
    world.steps(2_000)
    resumed = World(tmp_path, state=world.save())
    feed, metrics = ReplayFeed(resumed.sampler, resumed.schedule), RankMetrics("learner", 0)
    feed.report(metrics)
    assert metrics.report()["gauges"] == {}, "0 transitions would be false"
    resumed.settle()
    feed.report(metrics)
    size = sum(shard.replay.size for shard in resumed.shards)
    assert metrics.report()["gauges"] == {"replay_size": size} and size > 0


def test_a_replay_that_is_damaged_is_told_of_and_the_shard_begins_empty(tmp_path):
    world = World(tmp_path, shards=1)
    world.steps(2_000)
    state = world.save()
    for file in (tmp_path / "replay" / "shard-0").iterdir():
        file.write_bytes(b"x" * file.stat().st_size)
    resumed = World(tmp_path, state=state, shards=1)
    resumed.settle()
    assert resumed.events() == ["replay_not_loaded"] and resumed.shards[0].replay.size == 0
    resumed.steps(4_000)
    assert resumed.version > 0


def test_a_checkpoint_without_the_learners_state_is_told_of_for_each_shard(tmp_path):
    resumed, new = World(tmp_path, agent_steps=2_000), World(tmp_path)
    for world in (resumed, new):
        world.settle()
    assert resumed.events() == ["replay_not_loaded"] * 2 and new.events() == []


def test_a_replay_that_cannot_be_saved_is_told_of_and_training_goes_on(tmp_path):
    world = World(tmp_path, shards=2)
    world.steps(1_500)
    (tmp_path / "replay").mkdir()
    (tmp_path / "replay" / "shard-1").write_text("in the way")
    state = world.save()
    assert set(state) >= {"run", "shard0"} and "shard1" not in state and world.events() == ["replay_not_saved"]
    before = world.version
    world.steps(1_500)
    assert world.version > before


def test_a_shard_that_dies_while_it_saves_delays_no_checkpoint(tmp_path):
    world = World(tmp_path)
    world.steps(1_500)
    saved = []
    world.sampler.save(world.version, {}, saved.append)
    world.kill(world.layout.replay_shards[1])
    world.settle()
    (state,) = saved
    assert set(state) == {"run", "actors", "ahead", "shard0"}
    resumed = World(tmp_path, state=state)
    resumed.settle()
    assert resumed.events() == ["replay_not_loaded"] and resumed.shards[1].replay.size == 0


def test_after_the_loss_of_a_shard_the_minimum_is_one_that_the_others_can_hold(tmp_path):
    world = World(tmp_path, replay={"replay_capacity": 160, "replay_minimum": 80})
    assert world.sampler.minimum == 80
    world.kill(world.layout.replay_shards[0])
    assert world.sampler.minimum == 40, "half of what one keeps: games of a step or two need more frames"


def test_where_a_ratio_is_kept_the_learner_waits_for_actors_too_and_for_one_to_be_replaced(tmp_path):
    world = World(tmp_path, apex={"samples_per_insert": 1.0}, actors=1, shards=1)
    run = world.config.run
    replaced = max(run.stall_seconds, run.start_seconds)
    assert world.sampler.waits().patience_seconds > replaced, "of the first transitions"
    world.steps(3_000)
    wait = world.sampler.waits()
    assert not world.sampler.paused and wait.patience_seconds > replaced
    assert set(world.layout.actors) < set(wait.peers)


def test_shards_that_there_are_no_more_are_told_of(tmp_path):
    state = {"run": np.int64(1), "shard0": np.zeros(0, np.uint8), "shard1": np.zeros(0, np.uint8)}
    world = World(tmp_path, shards=1)
    world.sampler.begin(state)
    (key,) = [key for key in world.net.waiting() if key[1] == 0]
    assert "transitions of 1 replay shard in the checkpoint are left out" in world.net.queues[key][0].data.decode()


def test_memory_is_refused_before_it_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr("ddrl.apex.replay_shard.available_memory", lambda: 1_000)
    world = World(tmp_path, shards=1)
    with pytest.raises(UsageError, match="replay shard 0 needs .* bytes .* lower --replay-capacity"):
        world.settle()


@pytest.mark.parametrize("format", [FORMAT, IMAGES, FEATURES])
def test_the_setup_of_a_shard_comes_back(format):
    setup = ShardSetup.decode(ShardSetup(3, format).encode())
    assert setup == (3, format) and setup.format.description == format.description
    assert isinstance(setup.format.action_space, Continuous) == (format is FEATURES)


def test_trims_follow_updates(tmp_path):
    world = World(tmp_path, shards=1)
    told = []
    send = world.ports[0].send

    def noting(items):
        items = list(items)
        told.extend(item for item in items if not isinstance(item, Blob) and item.header.kind == Kind.TRIM)
        send(items)

    world.ports[0].send = noting
    world.steps(6_000)
    assert len(told) == world.sampler._learned // 5 > 5


def test_a_shard_waits_for_the_learners_word_and_for_nothing_once_learning_is_over(tmp_path, monkeypatch):
    world = World(tmp_path, shards=1)
    world.steps(500)
    (shard,) = world.shards
    first = shard.waits()
    assert first.essential and first.peers == (0,)
    monkeypatch.setattr(world.sampler, "_next_word", 0.0)
    world.sampler.advance()
    world.settle()
    assert shard.waits() != first
    world.sampler.halt()
    world.settle()
    assert shard.waits() is None and not shard.finished
