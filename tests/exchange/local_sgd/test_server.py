"""Local SGD against slow references, against the synchronous step, and under deaths."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from ddrl.errors import UsageError
from ddrl.exchange.messages import Flag, Kind
from ddrl.exchange.optimizers import make_optimizer
from ddrl.exchange.settings import ExchangeConfig, OptimizerConfig
from ddrl.exchange.statistics import Statistics, unpacked
from tests.exchange.job import Job
from tests.exchange.local_sgd.world import AT_END, SIZE, World, gradient

SGD = OptimizerConfig(optimizer="sgd")
ADAM = OptimizerConfig(beta1=0.8, beta2=0.75, adam_epsilon=1e-3)
RULES = [SGD, ADAM, OptimizerConfig(optimizer="rmsprop"), OptimizerConfig(optimizer="rmsprop-centered")]


def fresh(config, step=0, version=0):
    slots = make_optimizer(config, SIZE).slots.values()
    return np.linspace(-1.0, 1.0, SIZE, dtype=np.float32), list(slots), 0, step, version


def falling(version):
    return 0.3 / (1 + version)


def averaged_adam(workers, steps, rounds, rate):
    """Rows theta, m, v <float64>[3, SIZE] after so many rounds: Adam by each worker, then the mean of all three."""
    state = np.zeros((3, SIZE))
    state[0] = np.linspace(-1.0, 1.0, SIZE)
    for first in range(0, rounds * steps, steps):
        states = [state.copy() for _ in range(workers)]
        for worker, (theta, m, v) in enumerate(states):
            for version in range(first, first + steps):
                g, t = gradient(worker, theta), version + 1
                m += (1 - ADAM.beta1) * (g - m)
                v += (1 - ADAM.beta2) * (g * g - v)
                step = rate(version) * math.sqrt(1 - ADAM.beta2**t) / (1 - ADAM.beta1**t)
                theta -= step * m / (np.sqrt(v) + ADAM.adam_epsilon)
        state = np.mean(states, axis=0)
    return state


@pytest.mark.parametrize("steps, rounds", [(4, 3), (1, 5), (3, 1)])
def test_parameters_and_slots_are_the_mean_of_what_the_workers_made(steps, rounds):
    world = World(ADAM, fresh(ADAM), workers=3, steps=steps, last=steps * rounds, rate=falling)
    world.run()
    expected = averaged_adam(3, steps, rounds, falling)
    ((header, state),) = world.snapshots
    np.testing.assert_allclose(state, expected, rtol=2e-5, atol=1e-6)
    assert (header.step, header.version, header.count) == (steps * rounds,) * 3
    assert [closed.version for closed in world.closed] == list(range(steps, steps * rounds + 1, steps))
    assert {(closed.members, closed.samples) for closed in world.closed} == {((0, 1, 2), 3 * 10 * steps)}
    for server in world.servers:
        np.testing.assert_array_equal(server.parameters, state[0])


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_with_one_step_of_sgd_it_is_the_synchronous_step_to_the_bit(workers):
    world = World(SGD, fresh(SGD), workers=workers, steps=1, last=20, rate=falling)
    world.run()
    theta, optimizer = fresh(SGD)[0], make_optimizer(SGD, SIZE)
    for version in range(20):
        gradients = [gradient(worker, theta).astype(np.float32) for worker in range(workers)]
        optimizer.apply(theta, gradients, falling(version), 1.0 / workers)  # as a parameter server does
        assert theta.tobytes() == world.seen[0][version + 1][1].tobytes()


def test_with_one_step_of_sgd_the_exchanges_are_one(tmp_path):
    vectors = {}
    for name, options in (("parameter_server", {}), ("allreduce", {}), ("local_sgd", {"local_steps": 1})):
        theta, config = fresh(SGD)[0], ExchangeConfig(exchange=name, workers=3, **options)
        job = Job(config, SGD, theta, tmp_path, lambda worker, step, now: gradient(worker, now).astype(np.float32))
        vectors[name] = job.run(20).tobytes()
        np.testing.assert_array_equal(job.stop()[0], job.clients[2].snapshot.parameters)
    assert len(set(vectors.values())) == 1


@pytest.mark.parametrize("config", RULES, ids=lambda config: config.optimizer)
def test_one_worker_alone_is_its_optimizer_but_for_rounding(config):
    world = World(config, fresh(config), workers=1, steps=5, last=20, rate=falling)
    world.run()
    theta, optimizer = fresh(config)[0], make_optimizer(config, SIZE)
    for version in range(20):
        optimizer.apply(theta, gradient(0, theta).astype(np.float32), falling(version))
    np.testing.assert_allclose(world.snapshots[0][1], [theta, *optimizer.slots.values()], rtol=1e-4, atol=1e-6)


def test_within_a_round_every_worker_goes_its_own_way():
    world = World(SGD, fresh(SGD), workers=2, steps=4, last=8)
    world.run()
    assert all(world.seen[0][s][1].tobytes() == world.seen[1][s][1].tobytes() for s in (0, 4, 8))
    assert all(world.seen[0][s][1].tobytes() != world.seen[1][s][1].tobytes() for s in (1, 2, 3, 5, 6, 7))
    assert [world.seen[0][s][0] for s in range(9)] == list(range(9))


def test_the_order_of_messages_changes_nothing():
    states = []
    for seed in range(5):
        world = World(ADAM, fresh(ADAM), workers=3, steps=3, last=9, seed=seed)
        world.run()
        states.append(world.snapshots[0][1].tobytes())
    assert len(set(states)) == 1


def test_a_gradient_that_is_not_finite_refuses_the_round_for_all_and_is_named():
    world = World(ADAM, fresh(ADAM), workers=3, steps=4, last=12, bad={(1, 5)})
    world.run()
    assert [(c.refused, c.step, c.version) for c in world.closed] == [((), 3, 4), ((1,), 7, 4), ((), 11, 8)]
    assert world.coordinator.refused_steps == 1 and world.closed[1].flags & Flag.SKIP
    assert 6 not in world.seen[1], "its round ends with that gradient"
    good = World(ADAM, fresh(ADAM), workers=3, steps=4, last=8)
    good.run()
    np.testing.assert_array_equal(world.snapshots[0][1], good.snapshots[0][1])
    assert world.snapshots[0][0].count == 8


def test_an_end_that_waits_for_an_update_does_not_come_with_a_round_that_is_refused():
    end = AT_END | Flag.WITH_UPDATE
    world = World(ADAM, fresh(ADAM), workers=2, steps=4, last=8, bad={(1, 5)}, end=end)
    world.run()
    assert [(c.version, c.flags) for c in world.closed] == [(4, Flag.NONE), (4, Flag.SKIP), (8, AT_END)]
    assert world.snapshots[0][0].count == 8 and all(server.stopped for server in world.servers)


@pytest.mark.parametrize("seed", range(30))
def test_the_others_go_on_without_a_dead_worker_wherever_it_dies(seed):
    world = World(ADAM, fresh(ADAM), workers=4, steps=3, last=15, seed=seed)
    for victim, events in ((2, 10 + 5 * seed), (3, 20)):
        world.run(at_most=events)
        world.die(victim)
    world.run()
    assert world.coordinator.stopped and all(world.told[w] & Flag.STOP for w in (0, 1))
    assert len({world.servers[w].parameters.tobytes() for w in (0, 1)}) == 1
    assert world.closed[-1].version == 15 and world.closed[-1].members in ((0, 1), (0, 1, 3), (0, 1, 2, 3))
    for step in range(0, 16, 3):
        assert world.seen[0][step][1].tobytes() == world.seen[1][step][1].tobytes()


@pytest.mark.parametrize("seed", range(10))
def test_after_deaths_the_statistics_are_in_one_part_and_have_all_that_was_averaged(seed):
    """Of 39 values 6 workers and 3 cut none of the statistics at 7 to 12; 5 workers would cut at 8, and 4 at 10."""
    statistics = Statistics(SIZE, (1,))
    theta = np.concatenate([fresh(ADAM)[0], np.zeros(statistics.size, np.float32)])
    start = theta, list(make_optimizer(ADAM, theta.size).slots.values()), 0, 0, 0
    world = World(ADAM, start, workers=6, steps=2, last=20, seed=seed, statistics=statistics)
    for victim in (5, 4, 3):
        world.run(at_most=20 + 10 * seed)
        world.die(victim)
    world.run()
    assert world.coordinator.stopped and world.closed[-1].version == 20
    assert len({world.servers[w].parameters.tobytes() for w in (0, 1, 2)}) == 1
    seen = [worker for closed in world.closed for worker in closed.members for _ in range(2)]
    moments = unpacked(statistics.of(world.servers[0].parameters))
    assert moments.count == len(seen)
    np.testing.assert_allclose(moments.mean, np.mean(seen), rtol=1e-12)
    np.testing.assert_allclose(moments.variance, np.var(seen), rtol=1e-9)


def test_a_command_in_the_middle_of_a_round_ends_the_run_with_its_beginning():
    world = World(ADAM, fresh(ADAM), workers=2, steps=4, last=100)
    world.run(until=lambda world: world.newest[0] is not None and world.newest[0].header.step == 6)
    world.command()
    world.run()
    ((header, state),) = world.snapshots
    assert (header.step, header.version, header.count) == (4, 4, 4)
    assert all(flags & Flag.STOP and flags & Flag.CHECKPOINT for flags in world.told)
    np.testing.assert_array_equal(state[0], world.seen[0][4][1])
    for message in world.newest:
        assert (message.header.step, message.header.version) == (4, 4)


def test_a_run_that_goes_on_from_its_checkpoint_equals_one_that_was_not_interrupted():
    whole = World(ADAM, fresh(ADAM, step=2, version=1), workers=2, steps=3, last=14, rate=falling)
    whole.run()
    first = World(ADAM, fresh(ADAM, step=2, version=1), workers=2, steps=3, last=8, rate=falling)
    first.run()
    header, state = first.snapshots[0]
    start = (state[0], list(state[1:]), header.count, header.step, header.version)
    second = World(ADAM, start, workers=2, steps=3, last=14, rate=falling, seed=1)
    second.run()
    assert whole.snapshots[0][0] == second.snapshots[0][0] and header.step == 8 and header.version == 7
    np.testing.assert_array_equal(whole.snapshots[0][1], second.snapshots[0][1])


def test_readers_get_parameters_alone_under_the_version_that_the_chief_knows():
    world = World(ADAM, fresh(ADAM, step=5, version=5), workers=2, steps=4, last=9)
    world.fetch(8)  # within the round: the next version that all have alike is 9
    assert world.published == []
    world.run()
    ((version, vector),) = world.published
    assert version == 9
    np.testing.assert_array_equal(vector, world.snapshots[0][1][0])


def test_a_gradient_of_another_step_is_dropped():
    world = World(SGD, fresh(SGD), workers=2, steps=4, last=4)
    world.run()
    server, late = world.servers[0], world.newest[0].header._replace(step=2)
    assert server.handle(0, late._replace(kind=Kind.GRADIENT), np.zeros(SIZE, np.float32)) == [] and server.dropped == 1
    assert server.counts() == {"gradients_dropped": 1}


def test_whom_a_server_waits_for():
    world = World(SGD, fresh(SGD), workers=3, steps=2, last=100)
    world.run(until=lambda world: world.servers[0].due())
    due = world.servers[0].waits()
    assert set(due.peers) <= {1, 2} and due.may_compile
    world.run(until=lambda world: world.servers[0].step >= 4 and world.servers[0].due())
    assert not world.servers[0].waits().may_compile


def test_the_number_of_steps_must_be_given():
    with pytest.raises(UsageError, match="--local-steps 0: --exchange local_sgd takes 1 or more"):
        ExchangeConfig(exchange="local_sgd")
    config = ExchangeConfig(exchange="local_sgd", local_steps=4, workers=3)
    assert (config.servers, config.asynchronous, config.averages_gradients) == (0, False, False)
    assert config.kind.bytes_per_update(config, 100, 2) == 2 * 4 * 300 * 2 // 4
    with pytest.raises(UsageError, match="--updates asynchronous: --exchange local_sgd averages"):
        dataclasses.replace(config, updates="asynchronous")
