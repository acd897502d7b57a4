"""The protocol under every interleaving of sends, deliveries, deaths and commits."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ddrl.exchange.messages import Flag
from tests.exchange.copies import same_worlds
from tests.exchange.fake import World


def check(world):
    """What must hold in every reachable state."""
    shortest = min(len(h) for h in world.history)
    first = world.history[0]
    for history in world.history[1:]:
        same = [(v, m, f) for v, m, f, _ in history[:shortest]]
        assert same == [(v, m, f) for v, m, f, _ in first[:shortest]], "shards applied different sets"
    for client in world.clients.values():
        if client.snapshot is not None and client.snapshot.step > 0:
            expected = np.concatenate([h[client.snapshot.step - 1][3] for h in world.history])
            np.testing.assert_array_equal(client.snapshot.parameters, expected, "slices of different versions")


def check_end(world):
    """What must hold when nothing can happen any more: every live worker got through all steps."""
    for worker, client in world.clients.items():
        if worker not in world.dead:
            assert client.snapshot is not None and client.snapshot.step == world.steps, "the job hangs"
    assert all(len(h) == world.steps for h in world.history)
    for closed, record in zip(world.commits, world.history[0], strict=True):
        if closed.flags & Flag.SKIP:
            continue
        assert record[1] == sum(1 << w for w in closed.members)
        average = np.mean([world.gradient(w, closed.step) for w in closed.members], axis=0)
        norm, clip = np.linalg.norm(average), world.coordinator.clip_norm
        scale = min(1.0, clip / norm) if clip else 1.0
        applied = (world.before(closed.step, 0) - record[3][0]) / 0.5
        assert applied == pytest.approx(scale * average[0], rel=1e-5)


def walk(world, deaths, limit):
    """Depth-first over all interleavings with at most `deaths` deaths; returns the number of states."""
    seen, stack, ends = set(), [world], 0
    while stack:
        state = stack.pop()
        key = state.key()
        if key in seen:
            continue
        seen.add(key)
        assert len(seen) < limit, "more states than this test is meant for"
        check(state)
        may_die = (1,) if len(state.dead) < deaths else ()  # the workers are alike
        events = state.events(may_die)
        if all(name == "die" for name, _ in events):
            check_end(state)
            ends += 1
        for event, following in zip(events, same_worlds(state, len(events))):
            following.do(event)
            stack.append(following)
    assert ends, "no run came to its end"
    return len(seen)


def test_every_interleaving_of_one_step():
    states = walk(World(steps=1), deaths=0, limit=100_000)
    assert states > 100


@pytest.mark.slow
def test_every_interleaving_of_one_step_with_a_death():
    states = walk(World(steps=1, size=2), deaths=1, limit=300_000)
    assert states > 1_000


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"quorum": 1},
        {"clip": 0.5},
        {"quorum": 1, "clip": 0.5},
        {"workers": 3, "quorum": 2, "clip": 0.5},
        {"workers": 3, "shards": 3},
        {"workers": 3, "quorum": 2, "bad": frozenset({(1, 1), (2, 2)})},
    ],
    ids=str,
)
@pytest.mark.parametrize("deaths", [0, 1])
def test_random_interleavings_of_many_steps(options, deaths):
    for seed in range(60):
        rng = random.Random(seed)
        world = World(steps=4, **options)
        remaining = deaths
        while True:
            may_die = world.clients if remaining and rng.random() < 0.05 else ()
            events = world.events(may_die)
            if not events:
                break
            event = rng.choice(events)
            remaining -= event[0] == "die"
            world.do(event)
            check(world)
        check_end(world)


def test_worker_dies_between_its_sends_to_two_shards():
    world = World(steps=1)
    drain(world)
    for worker in (0, 1):
        world.do(("submit", worker))
    world.do(("send", 1))
    world.do(("die", 1))
    world.do(("send", 0))
    world.do(("send", 0))
    drain(world)
    assert world.commits[0].members == (0,)
    assert world.history[0][0][:2] == world.history[1][0][:2] == (1, 0b01)
    check_end(world)


def test_gradient_that_is_not_finite_refuses_the_step_on_all_shards():
    world = World(steps=2, bad=frozenset({(1, 0)}))
    while events := world.events():
        world.do(events[0])
    assert world.commits[0].refused == (1,) and world.commits[0].version == 0
    assert [[r[0] for r in h] for h in world.history] == [[0, 1], [0, 1]]
    assert world.coordinator.refused_steps == 1
    check_end(world)


def drain(world):
    """Delivers everything that is under way, and lets everyone notice the dead."""
    while events := [e for e in world.events() if e[0] in ("deliver", "notice")]:
        world.do(events[0])


def test_expected_updates_are_computed_ahead_and_used():
    world = World(steps=4)
    while events := world.events():
        world.do(events[0])
    check_end(world)
    assert [shard.optimizer.accepted for shard in world.shards] == [4, 4]


def test_update_computed_ahead_is_discarded_when_the_step_is_refused():
    world = World(steps=3, workers=3, quorum=2, bad=frozenset({(1, 1)}))
    for _ in range(200):
        events = world.events()
        if not events:
            break
        world.do(events[-1])
    assert any(closed.flags & Flag.SKIP for closed in world.commits)
    check(world)
    check_end(world)
