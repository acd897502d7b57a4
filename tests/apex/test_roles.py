"""Shards, actors and the learner's sampler as they talk to each other, without MPI, in random order."""

from __future__ import annotations

import numpy as np
import pytest

from ddrl.apex import actor as actor_module
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
from tests.apex.apex_world import FORMAT, SEEDS, World
from tests.apex.segments import FEATURES, IMAGES, noise, remove

pytestmark = pytest.mark.usefixtures("no_pauses")


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


def test_eviction_by_priorities_learns_of_new_ones_where_drawing_is_uniform(tmp_path):
    world = World(tmp_path, replay={"priority_exponent": 0.0}, apex={"eviction_exponent": -0.4})
    world.steps(4_000)
    assert world.version > 10
    for shard in world.shards:
        assert shard.replay.updated > 0
        weights = shard.replay._tree.weights
        assert len(np.unique(weights[weights > 0])) == 1, "all are drawn alike; free places, if there are any, never"


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
