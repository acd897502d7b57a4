"""DPG as it is built from its settings, in this process, on small games of continuous actions."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import tests.envs.scripted  # noqa: F401  (registers)
from ddrl.apex.agent import priority_values
from ddrl.builders.agent import make_environments, network_for
from ddrl.errors import UsageError
from tests.builders.test_replay import Worker, assert_repeats_and_resumes, recorded
from tests.test_combinations import config_of
from tests.unrolls import random_unroll

REACH = {"game": "ddrl-test/Reach-v0", "replay_minimum": 400}


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["standard", "concurrent"])
def test_it_learns_to_reach_its_goals(schedule):
    """Without a move 8 (2/3 + 2/3) = 10.7 is lost on average, and 110 at one end of the actions; at best about 0.9."""
    quick = {"reward_scale": 0.1, "learning_rate": 3e-3, "discount": 0.8, "n_step": 1}
    quick |= {"target_updates": 20, "steps_per_update": 4}
    with Worker(config_of("dpg", "smoke", **REACH, **quick, schedule=schedule)) as worker:
        before = worker.score()
        after = worker.train(1_300).score()
        assert before < -8.0 and after > -4.0


def test_actions_are_random_until_the_replay_has_its_minimum_and_noisy_ones_come_then():
    unrolls = recorded(config_of("dpg", "smoke", **REACH, noise=0.01), 60)
    action = np.concatenate([unroll.action for unroll in unrolls])
    filled = 50  # rows of 8
    first, then = action[:filled], action[filled:]
    assert action.shape[1:] == (8, 2) and action.dtype == np.float32 and len(then) > 10
    np.testing.assert_allclose(first.min(axis=(0, 1)), [-2.0, 0.0], atol=0.05)
    np.testing.assert_allclose(first.max(axis=(0, 1)), [2.0, 1.0], atol=0.05)
    assert (np.abs(then[0] - [0.0, 0.5]) / [2.0, 0.5] < 0.1).all()  # the policy begins in the middle
    assert (then[0].std(axis=0) > 0.0).all()


def test_two_runs_are_equal_to_the_bit_and_a_resumed_one_too(tmp_path):
    config = config_of("dpg", "smoke", game="Pendulum-v1", target_updates=20)
    assert_repeats_and_resumes(config, tmp_path)


def test_initial_priorities_are_made_of_the_values_of_noisy_actions():
    """That of the policy's own action comes with acting; the critic gives that of the action taken."""
    config = config_of("apex-dpg", "smoke", game="ddrl-test/Reach-v0")
    (environment,) = make_environments(config)
    network = network_for(config, environment)
    environment.close()
    noise = np.random.default_rng(0).standard_normal(network.size)
    parameters = (network.initial_parameters(1) + 0.1 * noise).astype(np.float32)
    draw = lambda random, shape: random.random((*shape, 2), np.float32)
    unroll = random_unroll(5, config.rows, features=4, draw_actions=draw)
    value, taken = priority_values(config, network, (4,), np.float32)(parameters, unroll, np.zeros((5, config.rows, 2)))
    np.testing.assert_array_equal(value, unroll.value)
    prepared = network.prepare(tf.constant(parameters))
    for t in range(5):
        expected = network.critic(prepared, unroll.observation[t], network.normalized(unroll.action[t]))
        np.testing.assert_allclose(taken[t], expected, rtol=1e-4, atol=1e-5)


def test_initial_priorities_of_q_learning_are_made_of_the_value_of_the_action_taken():
    """Of all values that acting gave; no network is asked again."""
    config = config_of("apex-dqn", "smoke")
    unroll, random = random_unroll(5, 4), np.random.default_rng(3)
    outputs = random.standard_normal((5, 4, 3)).astype(np.float32)
    value, taken = priority_values(config, None, (3,), np.float32)(None, unroll, outputs)
    np.testing.assert_array_equal(value, unroll.value)
    for t, b in np.ndindex(5, 4):
        assert taken[t, b] == outputs[t, b, unroll.action[t, b]]


@pytest.mark.parametrize(
    "game, message",
    [
        (
            "CartPole-v1",
            "dpg takes continuous actions, and CartPole-v1 has 2 discrete ones: train one of ba3c, a2c, ppo",
        ),
        ("ddrl-test/Unbounded-v0", "dpg takes actions within bounds, and ddrl-test/Unbounded-v0 has some without"),
    ],
)
def test_actions_that_it_does_not_take_are_refused(game, message):
    config = config_of("dpg", "smoke", game=game)
    (environment,) = make_environments(config)
    with pytest.raises(UsageError, match=message):
        network_for(config, environment)
    environment.close()


def test_the_target_networks_are_copied_every_so_many_updates():
    config = config_of("dpg", "smoke", **REACH, target_updates=40)
    config = dataclasses.replace(config, algorithm=dataclasses.replace(config.algorithm, steps_per_update=2))
    seen = set()
    with Worker(config) as worker:
        for _ in range(130):
            worker.train(1)
            seen.add(worker.schedule.target.version)
    assert seen == {0, 40, 80, 120}
