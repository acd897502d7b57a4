"""The all-reduce under every interleaving of deliveries, deaths and commands."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ddrl.exchange.messages import Flag, Header, Kind
from tests.exchange.allreduce.fake_replicas import AT_END, Replicas
from tests.exchange.copies import same_worlds
from tests.exchange.fake import RATE


def living(world):
    return [w for w in range(len(world.replicas)) if w not in world.dead]


def check(world):
    """What must hold in every reachable state: whoever lives made the same of every step."""
    steps = [world.replicas[w].step for w in living(world) if world.replicas[w].loaded]
    assert max(steps) - min(steps) <= 1, "two replicas are more than a step apart"
    for step in set().union(*(world.seen[w] for w in living(world))):
        made = {(world.seen[w][step][0], world.seen[w][step][3]) for w in living(world) if step in world.seen[w]}
        assert len(made) == 1, f"step {step} differs: {made}"


def check_end(world):
    """What must hold when nothing can happen any more."""
    replicas = [world.replicas[w] for w in living(world)]
    assert all(replica.stopped for replica in replicas), "the job hangs"
    assert len({(r.step, r.version, r.parameters.tobytes()) for r in replicas}) == 1
    assert all(world.saves[w] == 1 for w in living(world)), "a worker was told to save its state twice, or never"
    first = replicas[0]
    assert world.snapshots == [(first.step, first.version, tuple(first.parameters))]
    assert first._published.fetch(9, first.version)
    steps = [closed for closed in world.closed if not closed.flags & Flag.COMMAND]
    assert [closed.step for closed in steps] == list(range(first.step))
    theta = np.arange(world.size, dtype=np.float32)
    for closed in steps:
        if not closed.flags & Flag.SKIP:
            average = np.mean([world.gradient(w, closed.step) for w in closed.members], axis=0)
            norm, clip = np.linalg.norm(average), first.clip_norm
            theta = theta - RATE * average * (min(1.0, clip / norm) if clip else 1.0)
            assert closed.norm == pytest.approx(norm, rel=1e-5)
    np.testing.assert_allclose(first.parameters, theta, rtol=1e-5)
    if not any(closed.flags & Flag.COMMAND for closed in world.closed):
        assert first.step == world.steps


def walk(world, deaths, limit):
    """Depth-first over all interleavings with at most `deaths` deaths of worker 1; returns the worlds at their end."""
    seen, stack, ends = set(), [world], []
    while stack:
        state = stack.pop()
        key = state.key()
        if key in seen:
            continue
        seen.add(key)
        assert len(seen) < limit, "more states than this test is meant for"
        check(state)
        events = state.events((1,) if len(state.dead) < deaths else ())
        waits = all(name in ("die", "command") for name, _ in events)
        if waits and (all(replica.stopped for replica in state.replicas) or not state.may_command):
            check_end(state)
            ends.append(state)
        for event, following in zip(events, same_worlds(state, len(events) + 1)):  # it stays as it is: an end
            following.do(event)
            stack.append(following)
    assert ends, "no run came to its end"
    return ends


EVERY = [
    ({"steps": 1, "workers": 3}, 1),
    ({"steps": 2}, 1),
    ({"steps": 2, "bad": frozenset({(1, 0)})}, 1),
    ({"steps": 2, "command": True}, 1),
]


@pytest.mark.parametrize("options, deaths", EVERY, ids=str)
def test_every_interleaving(options, deaths):
    ends = walk(Replicas(**options), deaths, limit=20_000)
    members = {closed.members for world in ends for closed in world.closed if 1 in world.dead}
    everyone = tuple(range(options.get("workers", 2)))
    assert everyone in members, "no step of the dead one was completed after its death"
    assert tuple(w for w in everyone if w != 1) in members, "no step was done anew without it"


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 3},
        {"workers": 4, "size": 9, "clip": 0.5},
        {"workers": 3, "bad": frozenset({(1, 1), (2, 2)})},
        {"workers": 3, "command": True, "size": 7},
    ],
    ids=str,
)
def test_random_interleavings_of_many_steps_and_two_deaths(options):
    for seed in range(300):
        rng = random.Random(seed)
        world, remaining = Replicas(steps=4, **options), 2
        while events := world.events(range(1, len(world.replicas)) if remaining and rng.random() < 0.1 else ()):
            likely = [event for event in events if event[0] != "command" or rng.random() < 0.02]
            event = rng.choice(likely or events)
            remaining -= event[0] == "die"
            world.do(event)
            check(world)
        check_end(world)


def drain(world, but=()):
    """Does whatever can happen but submissions of these workers."""
    while events := [event for event in world.events() if event not in [("submit", w) for w in but]]:
        world.do(events[0])


def test_a_step_that_another_one_completed_is_not_done_anew():
    world = Replicas(workers=3, steps=2)
    drain(world, but=(0, 1, 2))
    for worker in range(3):
        world.do(("submit", worker))
    of_chief = lambda event: event[0] == "deliver" and event[1] == (1, 0, int(Kind.AVERAGE))
    while events := [event for event in world.events() if event[0] == "deliver" and not of_chief(event)]:
        world.do(events[0])
    assert [replica.step for replica in world.replicas] == [0, 1, 1]
    world.do(("die", 1))
    world.do(("notice", (0, 1)))  # the chief's replica will never have that part of the average
    drain(world)
    assert [closed.members for closed in world.closed] == [(0, 1, 2), (0, 2)]
    check_end(world)


def test_a_gradient_that_is_not_finite_is_refused_by_all_and_named():
    world = Replicas(workers=3, steps=3, bad=frozenset({(1, 0), (2, 0)}))
    drain(world)
    assert world.closed[0].refused == (1, 2) and world.closed[0].version == 0
    assert [replica.version for replica in world.replicas] == [2, 2, 2]
    assert world.coordinator.refused_steps == 1
    check_end(world)


@pytest.mark.parametrize("deaths", [0, 1])
def test_an_end_that_waits_for_an_update_does_not_come_with_a_step_that_is_refused(deaths):
    for seed in range(100):
        rng, end = random.Random(seed), AT_END | Flag.WITH_UPDATE
        world, remaining = Replicas(workers=3, steps=2, bad=frozenset({(2, 1)}), end=end), deaths
        while events := world.events((1, 2) if remaining and rng.random() < 0.1 else ()):
            event = rng.choice(events)
            remaining -= event[0] == "die"
            world.do(event)
            check(world)
            assert world.coordinator.step <= 3, "it does not end"
        assert all(world.replicas[w].stopped and world.replicas[w].version == 2 for w in living(world))
        assert all(world.saves[w] == 1 for w in living(world)) and len(world.snapshots) == 1
        assert world.closed[-1].flags == AT_END
        assert deaths or [closed.version for closed in world.closed] == [1, 1, 2]


def test_an_end_that_waited_for_an_update_comes_with_any_step_once_it_waits_no_longer():
    world = Replicas(steps=2, bad=frozenset({(1, 1), (1, 2)}), end=AT_END | Flag.WITH_UPDATE)
    drain(world, but=(0, 1))
    for worker in (0, 1):
        world.do(("submit", worker))
    drain(world, but=(0, 1))
    world.coordinator.request(Flag.STOP)  # while the step that the end was to come with is under way
    drain(world)
    assert [(closed.step, closed.version) for closed in world.closed] == [(0, 1), (1, 1), (2, 1)]
    assert world.closed[1].flags == Flag.SKIP and world.closed[2].flags == AT_END | Flag.SKIP
    assert all(replica.stopped for replica in world.replicas) and world.saves == [1, 1]


def test_an_average_that_overflows_is_refused():
    world = Replicas(workers=2, steps=2)
    world.gradient = lambda worker, step: np.full(2, 3e38 if step == 0 else 1.0, np.float32)
    with np.errstate(over="ignore"):
        drain(world)
    assert world.closed[0].refused == (0, 1) and world.replicas[0].version == 1
    np.testing.assert_allclose(world.replicas[1].parameters, [-0.5, 0.5])


def test_a_gradient_of_another_step_is_dropped():
    world = Replicas(workers=2, steps=3)
    drain(world, but=(0, 1))
    header = Header(Kind.GRADIENT, step=1, flags=Flag.FINITE)
    assert world.replicas[0].handle(0, header, world.gradient(0, 1)) == [] and world.replicas[0].dropped == 1
    drain(world)
    check_end(world)


def test_gradients_are_added_in_the_order_of_the_worker_ids():
    """In float32 1 + 1e8 - 1e8 is 0 in this order, and 1 where the 1 comes last."""
    world = Replicas(workers=3, steps=1)
    world.gradient = lambda worker, step: np.full(3, (1.0, 1e8, -1e8)[worker], np.float32)
    drain(world, but=(0, 1, 2))
    for worker in (2, 1, 0):
        world.do(("submit", worker))
    drain(world)
    np.testing.assert_array_equal([replica.parameters for replica in world.replicas], [np.arange(3)] * 3)


def test_the_rate_is_that_of_the_version_that_it_is_applied_to():
    world = Replicas(workers=2, steps=2)
    for replica in world.replicas:
        replica.learning_rate = lambda version: (1.0, 10.0)[version]
    drain(world)
    expected = np.arange(2) - 1.0 * 1.5 - 10.0 * 11.5  # averages of 1 and 2, and of 11 and 12
    np.testing.assert_allclose(world.replicas[1].parameters, expected)
