"""Munchausen DQN: its targets against a slow transcription of the paper; what it refuses; it learns Catch."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from ddrl.config import NetworkConfig
from ddrl.errors import UsageError
from ddrl.networks import build_network
from ddrl.types import Discrete, LossContext, QHead, Replayed
from tests.examples.runs import train

ROWS, INPUTS, ACTIONS = 7, 3, 4


def munchausen_target(config, values, action, reward, discount, next_values):
    """Of one transition; an action with a probability of 0 adds nothing."""

    def log_policy(of):
        scaled = np.array(of, np.float64) / config.temperature
        return scaled - scaled.max() - np.log(np.exp(scaled - scaled.max()).sum())

    bonus = np.clip(config.temperature * log_policy(values)[action], config.log_policy_min, 0.0)
    target = reward + config.munchausen * bonus
    for value, log in zip(next_values, log_policy(next_values), strict=True):
        if np.exp(log) > 0.0:
            target += discount * np.exp(log) * (value - config.temperature * log)
    return target


def batch_of():
    random = np.random.default_rng(0)
    rows = lambda *shape: random.standard_normal((ROWS, *shape)).astype(np.float32)
    action = random.integers(ACTIONS, size=ROWS).astype(np.int32)
    discount = np.where(np.arange(ROWS) == 2, 0.0, 0.9).astype(np.float32)
    given = (rows(INPUTS), action, rows(), discount, rows(INPUTS), np.abs(rows()))
    return Replayed(*map(tf.constant, given), behaviour_version=None, key=None)


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "munchausen": 0.4, "log_policy_min": -0.5}])
def test_loss_equals_the_papers_equation(example, settings):
    m_dqn = example("m_dqn")
    config = m_dqn.MDQNConfig(loss="squared", **settings)
    network = build_network(NetworkConfig(network="mlp"), (INPUTS,), np.float32, Discrete(ACTIONS), QHead())
    parameters, fixed = (3.0 * network.initial_parameters(seed) for seed in (1, 2))
    batch = batch_of()
    output = m_dqn.loss(network, tf.constant(parameters), batch, config, LossContext(1.0, tf.constant(fixed)))
    of = lambda vector, seen: network(tf.constant(vector), seen).policy.numpy()
    values, next_values = of(fixed, batch.observation), of(fixed, batch.next_observation)
    rows = zip(values, batch.action.numpy(), batch.reward.numpy(), batch.discount.numpy(), next_values, strict=True)
    wanted = [munchausen_target(config, *row) for row in rows]
    errors = wanted - of(parameters, batch.observation)[np.arange(ROWS), batch.action]
    np.testing.assert_allclose(output.priorities, np.abs(errors), rtol=1e-4)
    np.testing.assert_allclose(output.loss, np.mean(batch.weight.numpy() * errors**2 / 2), rtol=1e-4)


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"atoms": 51}, "--atoms 51: m-dqn has targets of its own"),
        ({"double": True}, "--double: m-dqn has targets of its own"),
        ({"munchausen": 1.5}, "--munchausen 1.5: must be between 0"),
        ({"temperature": 0.0}, "--temperature 0.0: must be a finite number above 0"),
        ({"log_policy_min": 0.5}, "--log-policy-min 0.5: must be at most 0"),
    ],
)
def test_what_it_refuses(example, settings, said):
    with pytest.raises(UsageError, match=said):
        example("m_dqn").MDQNConfig(**settings)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_it_learns_catch(tmp_path, forked_ranks):
    run = train("m-dqn", "m_dqn", tmp_path, preset="smoke", minutes=4, target_score=0.9)  # the machine may be busy
    assert run.result["status"] == "target"
