"""Whether a lost life ends the returns: from the settings to what is learned from, for everything that acts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import tests.envs.scripted  # noqa: F401  (registers)
from ddrl.apex.agent import segment_maker
from ddrl.builders.agent import network_for
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.types import Snapshot
from tests.builders.test_replay import Worker
from tests.test_combinations import config_of

DISCOUNT = np.float32(0.9)
LOSES_LIFE, TERMINATES = (0, 1), (0, 2)
"""Episode of the script and step: where the action costs a life and the game goes on, and where it ends the game."""
REPLAY = {"replay_minimum": 200, "replay_capacity": 2_000, "n_step": 1, "priority_exponent": 0.0}
ROLLOUTS = ("a2c", "ppo", "hts-a2c", "hts-ppo")
SETTING = pytest.mark.parametrize("life_loss_terminal", [False, True])


def scripted(name, life_loss_terminal, **changes):
    """Small settings of an algorithm on the scripted game."""
    config = config_of(name, "smoke", game="ddrl-test/Scripted-v0", life_loss_terminal=life_loss_terminal, **changes)
    return dataclasses.replace(config, algorithm=dataclasses.replace(config.algorithm, discount=float(DISCOUNT)))


def next_batch(worker):
    """The schedule's next batch, and nothing is learned."""
    worker.schedule.update(worker.snapshot())
    return worker.schedule.next_batch(worker.snapshot)[1]


def at(place, observation):
    """<bool>: which observations are of this place in the script, which repeats after 3 episodes."""
    return (observation[..., 0] % 3 == place[0]) & (observation[..., 1] == place[1])


def assert_discounts(observation, discount, life_loss_terminal):
    """Of the transitions from these observations."""
    lost, over = at(LOSES_LIFE, observation), at(TERMINATES, observation)
    assert lost.sum() >= 4 and over.sum() >= 4
    np.testing.assert_array_equal(discount[lost], 0.0 if life_loss_terminal else DISCOUNT)
    np.testing.assert_array_equal(discount[at((0, 0), observation)], DISCOUNT)
    np.testing.assert_array_equal(discount[over], 0.0)


def assert_unroll(unroll, life_loss_terminal):
    """As `assert_discounts`; and the game goes on after a lost life."""
    valid, observation = unroll.valid > 0, unroll.observation[:-1]
    assert_discounts(observation[valid], unroll.discount[valid], life_loss_terminal)
    lost = at(LOSES_LIFE, observation)
    np.testing.assert_array_equal(unroll.continues[lost], 0.0 if life_loss_terminal else 1.0)
    after = unroll.observation[1:][lost]
    assert at(TERMINATES, after).all() and valid[1:][lost[:-1]].all()


@SETTING
@pytest.mark.parametrize("name", ROLLOUTS)
def test_rollouts(name, life_loss_terminal):
    """Of an actor-critic algorithm whose schedule acts in turn with learning, or at once with it."""
    with Worker(scripted(name, life_loss_terminal)) as worker:
        for _ in range(3):
            next_batch(worker)
            assert_unroll(worker.schedule.learning, life_loss_terminal)


@SETTING
def test_unrolls(life_loss_terminal):
    """Of IMPALA, whose groups act by themselves."""
    with Worker(scripted("impala", life_loss_terminal)) as worker:
        assert_unroll(next_batch(worker), life_loss_terminal)


@SETTING
def test_data_points(life_loss_terminal):
    """Of BA3C. The lost life brings 1 after clipping, and the step after it -1 and the end of the game."""
    with Worker(scripted("ba3c", life_loss_terminal)) as worker:
        batch = next_batch(worker)
    lost = at(LOSES_LIFE, batch.observation)
    assert lost.sum() >= 4
    np.testing.assert_allclose(batch.return_[lost], 1.0 if life_loss_terminal else 1.0 - DISCOUNT, rtol=1e-6)


@SETTING
@pytest.mark.parametrize("schedule", ["standard", "concurrent"])
def test_replay(schedule, life_loss_terminal):
    """Of the Q-learning family, filled before the first minibatch and, with newer versions, while learning."""
    with Worker(scripted("dqn", life_loss_terminal, schedule=schedule, target_period=80, **REPLAY)) as worker:
        for worker.version in range(41):
            next_batch(worker)
        drawn = worker.schedule.replay.sample(np.random.default_rng(0), 2_000, 1.0)
    newer = drawn.behaviour_version > 0
    for rows in (newer, ~newer):
        assert_discounts(drawn.observation[rows], drawn.discount[rows], life_loss_terminal)


@SETTING
def test_segments(life_loss_terminal):
    """Of an actor of Ape-X."""
    config = scripted("apex-dqn", life_loss_terminal, n_step=1, segment_length=20)
    maker, _ = segment_maker(config, RankMetrics("actor", 0), 0, 1)
    parameters = network_for(config, maker.actor.environment).initial_parameters(1)
    segments = [segment for _ in range(5) for segment in maker.act(Snapshot(0, -1, parameters))]
    maker.actor.environment.close()
    observation = np.concatenate([segment.frames[segment.row] for segment in segments])
    assert_discounts(observation, np.concatenate([segment.discount for segment in segments]), life_loss_terminal)
