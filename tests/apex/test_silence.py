"""A replay shard of Ape-X that is silent: it is named, and neither checkpoints nor the end of a job wait for it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from ddrl.apex import replay_shard as shard_module
from ddrl.apex import sampler as sampler_module
from ddrl.apex.known_shards import SILENT_SECONDS
from ddrl.checkpoint import REPLAY_SECONDS
from ddrl.exchange.messages import CHANNEL, Kind
from ddrl.replay import storage
from tests.apex.apex_world import LEARNER, World


class Clock:
    """Time in which nothing passes but what a test lets pass."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        for module in (sampler_module, shard_module):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now, time_ns=lambda: 1))

    def run(self, world, seconds, silent=()):
        """Everyone but the silent ones takes part."""
        for _ in range(int(seconds)):
            self.now += 1.0
            for rank in world.layout.replay_shards:
                if rank not in silent:
                    world.roles[rank].advance()
            world.sampler.advance()
            while waiting := [key for key in world.net.waiting() if key[1] not in silent]:
                world.deliver(waiting[0])


def test_a_silent_shard_is_named_and_no_checkpoint_waits_for_it(tmp_path, monkeypatch):
    clock, world = Clock(monkeypatch), World(tmp_path)
    first, second = world.layout.replay_shards
    world.steps(1_500)
    clock.run(world, SILENT_SECONDS + 2)
    assert world.events() == [], "shards that have nothing new to say speak all the same"
    clock.run(world, SILENT_SECONDS + 2, silent={second})
    assert world.events() == ["replay_shard_silent"]
    saved = []
    world.sampler.save(world.version, {}, saved.append)
    clock.run(world, 1, silent={second})
    (state,) = saved
    assert "shard0" in state and "shard1" not in state and world.events()[1:] == ["replay_not_saved"]
    clock.run(world, 3)
    assert world.events()[2:] == ["replay_shard_speaks"]
    world.sampler.save(world.version, {}, saved.append)
    clock.run(world, 1)
    assert set(saved[1]) == {"run", "actors", "ahead", "shard0", "shard1"}


def test_the_others_are_asked_for_the_batches_of_a_silent_shard(tmp_path, monkeypatch):
    """Also where it holds as many as the learner has on their way."""
    clock, world = Clock(monkeypatch), World(tmp_path, apex={"prefetch": 3})
    second = world.layout.replay_shards[1]
    world.steps(1_500)
    clock.run(world, 2)
    silent = world.sampler._shards[1]
    silent.asked = silent.received + 3
    clock.run(world, SILENT_SECONDS + 2, silent={second})
    assert silent.told
    for _ in range(20):
        assert world.learn(), "the other shard's batches come"
        clock.run(world, 1, silent={second})


def test_words_that_nobody_answers_do_not_pile_up_at_a_silent_shard(tmp_path, monkeypatch):
    """Also while it is thought to write its part of a checkpoint."""
    clock, world = Clock(monkeypatch), World(tmp_path)
    second = world.layout.replay_shards[1]
    world.steps(1_500)
    clock.run(world, 2)
    world.sampler._shards[1].saving = True
    clock.run(world, SILENT_SECONDS + 2, silent={second})
    words = world.net.queues[LEARNER, second, CHANNEL[Kind.PAUSE]]
    assert len(words) > 2 and all(word.newest_only for word in words if word.header.kind in (Kind.PAUSE, Kind.TRIM))


def test_a_shard_that_writes_for_long_says_so_and_is_waited_for(tmp_path, monkeypatch):
    clock, world = Clock(monkeypatch), World(tmp_path, shards=1)
    world.steps(1_500)
    clock.run(world, 2)
    (shard,), saved, worked, waits = world.shards, [], [], []
    shard._working = lambda: worked.append(clock.now)
    write = storage.write

    def slowly(directory, name, arrays, working):
        for _ in range(3):
            clock.now += sampler_module.SAVE_SECONDS / 2
            working()
            for key in [key for key in world.net.waiting() if key[1] == 0]:
                world.deliver(key)
            world.sampler.advance()
            waits.append(world.sampler.waits())
        return write(directory, name, arrays, working)

    monkeypatch.setattr(storage, "write", slowly)
    world.sampler.save(world.version, {}, saved.append)
    clock.run(world, 2)
    assert "shard0" in saved[0] and world.events() == [] and len(worked) >= 6
    assert len(set(waits)) == len(waits), "each word is another wait"
    assert not world.sampler._shards[0].saving


@pytest.mark.parametrize("halted", [False, True])
def test_a_shard_that_falls_silent_while_it_saves_is_waited_for_so_long(tmp_path, monkeypatch, halted):
    """It may have gigabytes to write, also at the end of a job."""
    clock, world = Clock(monkeypatch), World(tmp_path)
    second = world.layout.replay_shards[1]
    world.steps(1_500)
    clock.run(world, 2)
    saved = []
    world.sampler.save(world.version, {}, saved.append)
    if halted:
        world.sampler.halt()
    world.sampler._shards[1].saving = True  # it has said that it begins
    patience = sampler_module.SAVE_SECONDS
    assert patience < REPLAY_SECONDS, "for which the job waits"
    clock.run(world, patience - 2, silent={second})
    assert saved == [] and world.events() == []
    clock.run(world, 3, silent={second})
    assert (
        len(saved) == 1
        and world.sampler._saving is None
        and "shard1" not in saved[0]
        and world.events()[0] == "replay_not_saved"
    )


def test_where_all_shards_are_silent_a_checkpoint_has_no_replay(tmp_path, monkeypatch):
    clock, world = Clock(monkeypatch), World(tmp_path)
    world.steps(1_000)
    clock.run(world, 2)
    clock.run(world, SILENT_SECONDS + 1, silent=set(world.layout.replay_shards))
    saved = []
    world.sampler.save(world.version, {"target.version": np.int64(1)}, saved.append)
    assert [set(state) for state in saved] == [{"run", "actors", "ahead", "target.version"}]


def test_a_shard_that_never_begins_to_save_is_given_up_when_it_is_silent(tmp_path, monkeypatch):
    clock, world = Clock(monkeypatch), World(tmp_path)
    second = world.layout.replay_shards[1]
    world.steps(1_500)
    clock.run(world, 2)
    saved = []
    world.sampler.save(world.version, {}, saved.append)
    clock.run(world, SILENT_SECONDS + 1, silent={second})
    assert [set(state) for state in saved] == [{"run", "actors", "ahead", "shard0"}]
    assert sorted(world.events()) == ["replay_not_saved", "replay_shard_silent"]
