"""SAC as a plugin: loss and gradients against a slow transcription of the paper; two workers train it."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from ddrl.config import NetworkConfig
from ddrl.types import Continuous, LossContext, Replayed
from tests.examples.runs import named_tensors, numerical, train
from tests.parallel.support import needs_mpirun

ROWS, INPUTS, ACTIONS = 6, 3, 2
MIDDLE, HALF = np.array([0.0, 1.0]), np.array([2.0, 2.0])
SPACE = Continuous(tuple(MIDDLE - HALF), tuple(MIDDLE + HALF))
LAYERS = NetworkConfig(network="mlp", compute_dtype="float32", policy_layers=(5,), critic_layers=(4,))
KEY = np.array([3, 5], np.int32)


def tower(tensors, name, x):
    hidden = np.maximum(x @ tensors[f"{name}0/kernel"] + tensors[f"{name}0/bias"], 0.0)
    return hidden @ tensors[f"{name}1/kernel"] + tensors[f"{name}1/bias"]


def q_values(tensors, seen, action):
    return [tower(tensors, critic, np.hstack([seen, action]))[:, 0] for critic in ("q1", "q2")]


def drawn(tensors, seen, normal):
    """Actions, and the logarithms of their probabilities by the change of variables as the paper writes it."""
    mean, log_deviation = np.split(tower(tensors, "policy", seen), 2, axis=1)
    u = mean + np.exp(log_deviation) * normal
    gaussian = -0.5 * normal**2 - log_deviation - 0.5 * np.log(2 * np.pi)
    return np.tanh(u), np.sum(gaussian - np.log(1.0 - np.tanh(u) ** 2), axis=1)


def batch_of():
    random = np.random.default_rng(0)
    rows = lambda *shape: random.standard_normal((ROWS, *shape)).astype(np.float32)
    return Replayed(
        observation=rows(INPUTS),
        action=(MIDDLE + HALF * random.uniform(-1, 1, (ROWS, ACTIONS))).astype(np.float32),
        reward=rows(),
        discount=random.choice([0.0, 0.99], ROWS).astype(np.float32),
        next_observation=rows(INPUTS),
        weight=random.random(ROWS).astype(np.float32),
        behaviour_version=np.zeros(ROWS, np.int64),
        key=np.arange(ROWS),
    )


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
    next_action, next_log_prob = drawn(fixed, after, of_next)
    soft_value = np.minimum(*q_values(target, after, next_action)) - alpha * next_log_prob
    y = batch.reward + batch.discount * soft_value

    def loss(moved):
        free = named_tensors(network, moved)
        errors = [y - q for q in q_values(free, seen, (batch.action - MIDDLE) / HALF)]
        critic_loss = sum(np.mean(batch.weight * error**2) / 2 for error in errors)
        action, log_prob = drawn(free, seen, of_now)
        policy_loss = np.mean(alpha * log_prob - np.minimum(*q_values(fixed, seen, action)))
        _, held_log_prob = drawn(fixed, seen, of_now)
        return critic_loss + policy_loss - np.mean(np.exp(free["temperature/log"]) * (held_log_prob + 0.3 * ACTIONS))

    assert float(output.loss) == pytest.approx(loss(parameters), rel=1e-4)
    expected = numerical(loss, parameters)
    np.testing.assert_allclose(tape.gradient(output.loss, theta), expected, rtol=2e-3, atol=2e-5)
    parts = named_tensors(network, expected)
    assert all(np.abs(parts[name]).max() > 1e-3 for name in ("policy0/kernel", "q10/kernel", "temperature/log"))
    errors = [np.abs(y - q) for q in q_values(fixed, seen, (batch.action - MIDDLE) / HALF)]
    np.testing.assert_allclose(output.priorities, sum(errors) / 2, rtol=1e-4)


@needs_mpirun
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_two_workers_train_it(tmp_path):
    settings = {"replay_minimum": 400, "replay_capacity": 20_000, "max_updates": 40, "eval_every_updates": 20}
    settings |= {"agent_steps": 0, "eval_games": 2, "workers": 2, "parameter_servers": 1}
    run = train("my-sac", "my_sac", tmp_path, preset="laptop", **settings)
    assert run.result["status"] == "finished" and len(run.metrics("evaluation")["mean"]) >= 1
    agent, game = run.agent(), run.environment()
    observation, _ = game.reset(seed=1)
    assert game.action_space.contains(agent.act(observation))
