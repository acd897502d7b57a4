"""Exploration of actors of Ape-X, which know of no replay, beside that of workers, which wait for its minimum."""

from __future__ import annotations

import numpy as np
import pytest

import tests.envs.scripted  # noqa: F401  (registers)
from ddrl.apex.agent import segment_maker
from ddrl.apex.segment_maker import STEPS
from ddrl.builders.agent import network_for
from ddrl.builders.replay import exploration
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.types import Continuous, Discrete, Snapshot
from tests.test_combinations import config_of

MINIMUM = 200
LADDER = {"epsilon_end": 0.4, "epsilon_ladder": 7.0, "epsilon_steps": 0, "replay_minimum": MINIMUM}
NOISE = {"noise": 0.01, "replay_minimum": MINIMUM}
BOX = Continuous((-2.0, 0.0), (2.0, 1.0))


def epsilons(config, count):
    """The probability of a random action <float>[simulators of the job] when each has drawn so many times."""
    simulators = (config.apex.actors or config.exchange.workers) * config.rows
    ids, q = np.arange(simulators), np.tile(np.float32([0.0, 1.0, 0.0]), (simulators, 1))
    draw = exploration(config, RankMetrics("actor", 0), Discrete(3))
    actions, log_prob = draw(q, 1, ids, np.full(simulators, count))
    probability = np.exp(log_prob.astype(np.float64))  # of the action that was drawn, which tells epsilon
    return np.where(actions == 1, (1.0 - probability) * 1.5, probability * 3.0)


def ladder(simulators):
    return 0.4 ** (1.0 + 7.0 * np.arange(simulators) / (simulators - 1))


def deviations(config, counts):
    """Largest distance from the policy's action, in halves of the range, over counts, simulators and components."""
    draw = exploration(config, RankMetrics("actor", 0), BOX)
    ids, mean = np.arange(config.rows), np.tile(np.float32([0.0, 0.5]), (config.rows, 1))
    drawn = np.array([draw(mean, 1, ids, np.full(config.rows, count))[0] for count in counts])
    return (np.abs(drawn - mean) / [2.0, 0.5]).max()


@pytest.mark.parametrize("actors", [1, 2, 5])
def test_an_actor_explores_by_its_ladder_from_the_first_step_on(actors):
    config = config_of("apex-dqn", "smoke", actors=actors, **LADDER)
    last = MINIMUM // config.rows
    for count in (0, 1, last - 1, last, 100 * last):
        np.testing.assert_allclose(epsilons(config, count), ladder(actors * config.rows), rtol=2e-3)


def test_an_actor_takes_as_many_random_actions_as_its_ladder_says():
    """Two of three random actions are not the greedy one."""
    config = config_of("apex-dqn", "smoke", **LADDER | {"replay_minimum": 10_000})
    steps, ids = 2_000, np.zeros(2_000, np.int64)  # of one simulator, all before a minimum of 2,500 of each
    draw = exploration(config, RankMetrics("actor", 0), Discrete(3))
    actions, _ = draw(np.tile(np.float32([0.0, 1.0, 0.0]), (steps, 1)), 1, ids, np.arange(steps))
    assert (actions != 1).mean() == pytest.approx(0.4 * 2 / 3, abs=0.03)


@pytest.mark.parametrize("schedule", ["standard", "concurrent"])
def test_a_worker_explores_by_its_ladder_from_the_minimum_on_only(schedule):
    config = config_of("dqn", "smoke", schedule=schedule, **LADDER)
    last = MINIMUM // config.rows
    for count in (0, 1, last - 1):
        np.testing.assert_allclose(epsilons(config, count), 1.0, rtol=1e-6)
    for count in (last, 100 * last):
        np.testing.assert_allclose(epsilons(config, count), ladder(config.rows), rtol=2e-3)


def test_an_actor_with_noise_is_near_its_policy_from_the_first_step_on():
    config = config_of("apex-dpg", "smoke", **NOISE)
    assert 0.01 < deviations(config, range(4 * MINIMUM)) < 0.1


def test_a_worker_with_noise_is_near_its_policy_from_the_minimum_on_only():
    config = config_of("dpg", "smoke", **NOISE)
    last = MINIMUM // config.rows
    assert min(deviations(config, [count]) for count in range(last)) > 0.2
    assert 0.01 < deviations(config, range(last, 4 * MINIMUM)) < 0.1


@pytest.fixture
def first_steps():
    """first_steps(CONFIG, ACTOR, AGENT_STEPS) -> its first actions after these, what the policy gave for them (both [T,
    B, ...]), its report."""
    made = []

    def act(config, actor, agent_steps=0):
        metrics = RankMetrics("actor", actor)
        maker, _ = segment_maker(config, metrics, actor, 1, agent_steps)
        environment = maker.actor.environment
        made.append(environment)
        maker.act(Snapshot(0, -1, network_for(config, environment).initial_parameters(1)))
        return maker._unroll.action, maker.actor.outputs, metrics.report()

    yield act
    for environment in made:
        environment.close()


@pytest.mark.parametrize("actor", [0, 1])
def test_every_actor_has_its_own_part_of_the_ladder(first_steps, actor):
    config = config_of("apex-dqn", "smoke", **LADDER)
    mine = slice(actor * config.rows, (actor + 1) * config.rows)
    total, count = first_steps(config, actor)[2]["means"]["epsilon"]
    assert count == STEPS * config.rows and total / count == pytest.approx(
        ladder(2 * config.rows)[mine].mean(), rel=1e-6
    )


@pytest.mark.parametrize("before, left", [(0, 1.0), (400, 0.6), (10_000, 0.0)])
def test_an_epsilon_that_falls_goes_on_from_the_agent_steps_before(first_steps, before, left):
    config = config_of("apex-dqn", "smoke", **LADDER | {"epsilon_steps": 1_000})
    ends = ladder(2 * config.rows)[: config.rows]
    total, count = first_steps(config, 0, before)[2]["means"]["epsilon"]
    assert total / count == pytest.approx((ends + left * (1.0 - ends)).mean(), abs=STEPS * config.rows / 1_000)


def test_an_actor_tells_of_rewards_that_are_clipped(first_steps):
    events = first_steps(config_of("apex-dqn", "smoke", reward_scale=3.0), 0)[2]["events"]
    assert [event["name"] for event in events] == ["reward_clipped"]


def test_where_the_ladder_is_zero_the_first_actions_are_greedy(first_steps):
    config = config_of("apex-dqn", "smoke", **LADDER | {"epsilon_end": 0.0})
    actions, values, _ = first_steps(config, 0)
    assert actions.shape == (STEPS, config.rows)
    np.testing.assert_array_equal(actions, values.argmax(axis=-1))


def test_where_there_is_no_noise_the_first_actions_are_the_policys(first_steps):
    config = config_of("apex-dpg", "smoke", game="ddrl-test/Reach-v0", **NOISE | {"noise": 0.0})
    actions, policy, _ = first_steps(config, 0)
    assert actions.shape == (STEPS, config.rows, 2)
    np.testing.assert_allclose(actions, policy, atol=1e-6)
