"""SAC as a plugin: loss and gradients against a slow transcription of the paper; two workers train it."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from ddrl.config import NetworkConfig
from ddrl.types import LossContext, Replayed
from tests.algorithms.test_sac import ACTIONS, HALF, INPUTS, KEY, MIDDLE, ROWS, SPACE, batch_of, sampled, tower
from tests.examples.runs import train
from tests.parallel.support import needs_mpirun
from tests.references import named_tensors, numerical_gradient

LAYERS = NetworkConfig(network="mlp", compute_dtype="float32", policy_layers=(5,), critic_layers=(4,))


def q_values(tensors, seen, action):
    return [tower(tensors, critic, np.hstack([seen, action]))[:, 0] for critic in ("q1", "q2")]


def test_loss_and_gradient_equal_the_papers_equations(example):
    my_sac = example("my_sac")
    network, batch = my_sac.MySACNetwork(LAYERS, (INPUTS,), np.float32, SPACE), batch_of()
    network.add_scalars({my_sac.TEMPERATURE: -0.4})
    random, config = np.random.default_rng(0), my_sac.MySACConfig(entropy_per_component=0.3)
    parameters, old = (
        (network.initial_parameters(i) + 0.3 * random.standard_normal(network.size)).astype(np.float32) for i in (1, 2)
    )
    theta, tensors = tf.constant(parameters), Replayed(*(x if x is None else tf.constant(x) for x in batch))
    with tf.GradientTape() as tape:
        tape.watch(theta)
        output = my_sac.loss(network, theta, tensors, config, LossContext(1.0, tf.constant(old), tf.constant(KEY)))
    fixed, target = named_tensors(network, parameters), named_tensors(network, old)
    of_next, of_now = tf.random.stateless_normal([2, ROWS, ACTIONS], KEY).numpy().astype(np.float64)
    seen, after = batch.observation.astype(np.float64), batch.next_observation.astype(np.float64)
    alpha = np.exp(fixed["temperature/log"])
    next_action, next_log_prob = sampled(fixed, after, of_next)
    soft_value = np.minimum(*q_values(target, after, next_action)) - alpha * next_log_prob
    y = batch.reward + batch.discount * soft_value

    def loss(moved):
        free = named_tensors(network, moved)
        errors = [y - q for q in q_values(free, seen, (batch.action - MIDDLE) / HALF)]
        critic_loss = sum(np.mean(batch.weight * error**2) / 2 for error in errors)
        action, log_prob = sampled(free, seen, of_now)
        policy_loss = np.mean(alpha * log_prob - np.minimum(*q_values(fixed, seen, action)))
        _, held_log_prob = sampled(fixed, seen, of_now)
        return critic_loss + policy_loss - np.mean(np.exp(free["temperature/log"]) * (held_log_prob + 0.3 * ACTIONS))

    assert float(output.loss) == pytest.approx(loss(parameters), rel=1e-4)
    expected = numerical_gradient(loss, parameters)
    np.testing.assert_allclose(tape.gradient(output.loss, theta), expected, rtol=2e-3, atol=2e-5)
    parts = named_tensors(network, expected)
    assert all(np.abs(parts[name]).max() > 1e-3 for name in ("policy0/kernel", "q10/kernel", "temperature/log"))
    errors = [np.abs(y - q) for q in q_values(fixed, seen, (batch.action - MIDDLE) / HALF)]
    np.testing.assert_allclose(output.priorities, sum(errors) / 2, rtol=1e-4)


@needs_mpirun
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_two_workers_train_it(tmp_path, forked_ranks):
    settings = {"replay_minimum": 400, "replay_capacity": 20_000, "max_updates": 40, "eval_every_updates": 20}
    settings |= {"agent_steps": 0, "eval_games": 2, "workers": 2, "parameter_servers": 1}
    run = train("my-sac", "my_sac", tmp_path, preset="laptop", **settings)
    assert run.result["status"] == "finished" and len(run.metrics("evaluation")["mean"]) >= 1
    agent, game = run.agent(), run.environment()
    observation, _ = game.reset(seed=1)
    assert game.action_space.contains(agent.act(observation))
