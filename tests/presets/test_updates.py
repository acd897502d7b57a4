"""Updates with the settings of presets, against slow transcriptions of what the papers write."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from cluster.roles import Sizes, assign_roles
from ddrl import algorithms
from ddrl.builders.agent import make_learner
from ddrl.config import NetworkConfig, OptimizerConfig, TrainConfig
from ddrl.exchange.learning_rates import anneal, anneal_of, rate_of
from ddrl.exchange.optimizers import make_optimizer
from ddrl.job.layout import JobContext, JobLayout
from ddrl.learner import Learner
from ddrl.networks import build_network
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.roles.exchanges import make_coordinator, make_server
from ddrl.roles.worker import WorkerRole
from ddrl.types import Discrete, LossContext, Machine, Snapshot
from tests import references
from tests.algorithms.test_actor_critic import transitions
from tests.roles.chief_play import Sent
from tests.unrolls import random_unroll

MACHINE = Machine(cores=2, memory_bytes=24 * 10**9)
SPACE, FEATURES = Discrete(3), 5


def config_of(name: str, preset: str = "default", **groups: dict) -> TrainConfig:
    """A preset, with settings of any group changed."""
    config = algorithms.preset(preset, None, MACHINE, name)
    changed = {group: dataclasses.replace(getattr(config, group), **values) for group, values in groups.items()}
    return dataclasses.replace(config, **changed)


def tiny_network():
    return build_network(NetworkConfig(network="mlp", compute_dtype="float32"), (FEATURES,), np.float32, SPACE)


# IMPALA --------------------------------------------------------------------------------------------------------------


def unroll_of(config, seed=0):
    """A whole batch; rewards are large enough for the norm of the sum to be clipped."""
    steps = config.algorithm.unroll_length
    unroll = random_unroll(steps, config.batch_size // steps, seed, discount=0.99, features=FEATURES)
    return unroll._replace(reward=20.0 * unroll.reward)


def summed_gradient(network, parameters, unroll):
    """Espeholt et al. 2018: the losses summed over time and batch, 0.5 of half the squares, 0.01 of the entropy."""
    steps, environments = unroll.reward.shape
    flat = lambda x: x.reshape(-1, *x.shape[2:])
    theta = tf.constant(parameters)
    with tf.GradientTape() as tape:
        tape.watch(theta)
        policy, value = network(theta, tf.constant(flat(unroll.observation)))
        log_policy, value = tf.nn.log_softmax(policy[:-environments]), tf.reshape(value, [steps + 1, environments])
        log_probs = tf.gather(log_policy, flat(unroll.action), batch_dims=1)
        log_rhos = log_probs.numpy().reshape(steps, environments) - unroll.behaviour_log_prob
        vs, advantages = references.vtrace(log_rhos, unroll, value.numpy(), 1.0, 1.0)
        valid = tf.constant(flat(unroll.valid))
        policy_loss = -tf.reduce_sum(valid * log_probs * flat(advantages).astype(np.float32))
        baseline_loss = 0.5 * tf.reduce_sum(unroll.valid * tf.square(vs.astype(np.float32) - value[:-1]))
        entropy = -tf.reduce_sum(valid * tf.reduce_sum(tf.exp(log_policy) * log_policy, axis=1))
        loss = policy_loss + 0.5 * baseline_loss - 0.01 * entropy
    return tape.gradient(loss, theta).numpy()


def clipped(gradient, limit):
    norm = np.linalg.norm(gradient.astype(np.float64))
    return gradient * (limit / norm) if norm > limit else gradient


@pytest.mark.parametrize("batch_size", [40, 640])
def test_impala_takes_the_papers_steps_whatever_the_batch(batch_size):
    config = config_of("impala", optimizer={"batch_size": batch_size}, sampling={"simulators": 4, "groups": 2})
    network = tiny_network()
    learner = make_learner(config, network, (FEATURES,), np.float32)
    theta, sums = network.initial_parameters(1), []
    optimizer, expected = make_optimizer(config.optimizer, network.size), theta
    rate = rate_of(config.optimizer, config.effective_batch, config.agent_steps_per_update)
    for version in range(2):
        unroll = unroll_of(config, seed=version)
        gradient, metrics, _ = learner.gradient(theta, unroll)
        sums.append(summed_gradient(network, theta, unroll))
        np.testing.assert_allclose(gradient, sums[-1], rtol=2e-3, atol=2e-4 * np.abs(sums[-1]).max())
        assert metrics["gradient_norm"] == pytest.approx(np.linalg.norm(sums[-1]), rel=1e-3)
        scale = min(1.0, 40.0 / metrics["gradient_norm"])
        after = theta.copy()
        optimizer.apply(
            after,
            gradient,
            rate_of(config.optimizer, config.effective_batch, config.agent_steps_per_update)(version),
            scale,
        )
        limited = [clipped(one, 40.0) for one in sums]
        rate = 6e-4  # of the first updates of 50 million agent steps
        expected = references.rmsprop(
            network.initial_parameters(1), limited, rate, 0.99, 0.01, inside=True, centered=False
        )
        theta = after
    assert np.linalg.norm(sums[0]) > 40.0, "the clip was not active: this test could not see it"
    moved = np.linalg.norm(expected - network.initial_parameters(1))
    np.testing.assert_allclose(theta, expected, atol=1e-2 * moved / np.sqrt(network.size))


def test_a_sum_is_a_mean_with_a_smaller_epsilon_and_norm():
    """epsilon / N^2 and clip / N of the mean over N rows take the same step."""
    config = config_of("impala")
    rows, summed = config.effective_batch, config.optimizer
    mean = dataclasses.replace(
        summed, loss_reduction="mean", rmsprop_epsilon=0.01 / rows**2, clip_global_norm=40 / rows
    )
    network, unroll = tiny_network(), unroll_of(config)
    steps = []
    for optimizer_config in (summed, mean):
        learner = make_learner(
            dataclasses.replace(config, optimizer=optimizer_config), network, (FEATURES,), np.float32
        )
        theta = network.initial_parameters(1)
        gradient, metrics, _ = learner.gradient(theta, unroll)
        scale = min(1.0, optimizer_config.clip_global_norm / metrics["gradient_norm"])
        before = theta.copy()
        make_optimizer(optimizer_config, network.size).apply(theta, gradient, 6e-4, scale)
        steps.append(theta - before)
    np.testing.assert_allclose(steps[0], steps[1], rtol=1e-3, atol=1e-3 * np.abs(steps[0]).max())


def test_workers_that_share_a_batch_sum_over_all_of_it():
    """The mean of two workers' gradients is the gradient of one that has the whole batch."""
    whole = config_of("impala", optimizer={"batch_size": 80}, sampling={"simulators": 4, "groups": 2})
    half = config_of(
        "impala", optimizer={"batch_size": 40}, sampling={"simulators": 4, "groups": 2},
        exchange={"workers": 2, "parameter_servers": 1},
    )  # fmt: skip
    assert whole.effective_batch == half.effective_batch == 80
    network, unroll = tiny_network(), unroll_of(whole)
    theta = network.initial_parameters(1)
    expected, _, _ = make_learner(whole, network, (FEATURES,), np.float32).gradient(theta, unroll)
    learner = make_learner(half, network, (FEATURES,), np.float32)
    parts = [type(unroll)(*(x[:, columns] for x in unroll)) for columns in (slice(2), slice(2, 4))]
    average = sum(learner.gradient(theta, part)[0] for part in parts) / 2
    np.testing.assert_allclose(average, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


# PPO -----------------------------------------------------------------------------------------------------------------


def test_ppos_alpha_falls_to_0_over_ten_million_agent_steps():
    config = config_of("ppo")
    updates = 10_000_000 / (8 * 128) * 3 * 4  # rollouts, epochs, minibatches
    steps = config.agent_steps_per_update
    alpha, rate = anneal_of(config.optimizer, steps), rate_of(config.optimizer, config.effective_batch, steps)
    assert config.agent_steps_per_update == pytest.approx(10_000_000 / updates)
    for part in (0.0, 0.25, 0.5, 1.0, 3.0):
        version = round(part * updates)
        assert alpha(version) == pytest.approx(max(0.0, 1.0 - part), abs=1e-5)
        assert rate(version) == pytest.approx(2.5e-4 * alpha(version))


@pytest.mark.parametrize("left", [1.0, 0.5, 0.0])
def test_ppos_clip_is_times_alpha(left):
    """Against the transcription with the clip of that moment, where ratios pass it."""
    config, network = config_of("ppo"), tiny_network()
    theta = tf.constant(network.initial_parameters(1))
    policy, value = (x.numpy() for x in network(theta, tf.constant(transitions(SPACE, np.zeros((24, 3))).observation)))
    batch = transitions(SPACE, policy)
    now = dataclasses.replace(config.algorithm, clip_range=max(0.1 * left, 1e-9), clip_range_schedule="constant")
    expected = references.ppo_loss(SPACE, policy, value, batch, now)
    learner = Learner(
        network, algorithms.algorithm_of(config.algorithm).loss, config.algorithm, config.optimizer, batch
    )
    _, metrics, _ = learner.gradient(theta, batch, LossContext(left))
    for name, number in zip(("loss", "policy_loss", "value_loss", "entropy"), expected, strict=True):
        assert metrics[name] == pytest.approx(number, rel=1e-4, abs=1e-6), name


def test_a_clip_without_a_schedule_does_not_move():
    config, network = config_of("ppo", "laptop"), tiny_network()
    theta, batch = network.initial_parameters(1), transitions(SPACE, np.zeros((24, 3)))
    learner = Learner(
        network, algorithms.algorithm_of(config.algorithm).loss, config.algorithm, config.optimizer, batch
    )
    first, _, _ = learner.gradient(theta, batch, LossContext(1.0))
    last, _, _ = learner.gradient(theta, batch, LossContext(0.1))
    np.testing.assert_array_equal(first, last)


# Schedules over agent steps ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "algorithm, preset, groups, expected",
    [
        ("impala", "default", {}, 640),
        ("a2c", "default", {}, 80),
        ("a2c", "default", {"exchange": {"workers": 4, "parameter_servers": 1}}, 320),
        ("a3c", "default", {"exchange": {"workers": 4}}, 80),
        ("ppo", "default", {}, 256 / 3),
        ("ppo", "stooke", {}, 512 / 4),
        ("ba3c", "ba3c-paper", {}, 32 * 60),
        ("ba3c", "laptop", {"algorithm": {"epochs": 4}}, 64 * 2 / 4),
        ("dqn", "default", {}, 4),
        ("dqn", "default", {"exchange": {"workers": 4, "exchange": "allreduce", "parameter_servers": None}}, 16),
        ("apex-dqn", "default", {}, 0),
    ],
)
def test_agent_steps_that_an_update_stands_for(algorithm, preset, groups, expected):
    assert config_of(algorithm, preset, **groups).agent_steps_per_update == pytest.approx(expected)


def test_agent_steps_count_before_updates():
    config = OptimizerConfig(learning_rate=1.0, learning_rate_schedule="linear", learning_rate_updates=10)
    assert anneal(config, 5) == rate_of(config, 32)(5) == 0.5
    by_steps = dataclasses.replace(config, learning_rate_agent_steps=1_000)
    assert anneal(by_steps, 5, 20.0) == rate_of(by_steps, 32, 20.0)(5) == 0.9
    assert rate_of(dataclasses.replace(by_steps, learning_rate_end=0.5), 32, 20.0)(25) == 0.75
    assert rate_of(by_steps, 32, 20.0)(1_000) == 0.0


# Who follows the schedules -------------------------------------------------------------------------------------------

HALFWAY = 58_594  # updates of table 5's PPO in 5 of its 10 million agent steps


def context_of(config, run_dir):
    sizes = Sizes(config.exchange.workers, config.exchange.servers)
    layout = JobLayout.from_assignments(assign_roles(sizes))
    return JobContext(
        config, run_dir, layout if config.exchange.servers else layout.with_hosted_servers(layout.workers[0])
    )


@pytest.mark.parametrize("exchange", ["parameter_server", "allreduce"])
def test_the_rate_that_is_applied_falls_over_agent_steps(exchange, tmp_path):
    servers = 1 if exchange == "parameter_server" else None
    config = config_of("ppo", exchange={"workers": 2, "exchange": exchange, "parameter_servers": servers})
    context, half = context_of(config, tmp_path), HALFWAY // 2  # two workers make an update of twice the agent steps
    rates = [make_coordinator(context, step=0, version=0).learning_rate]
    if exchange == "allreduce":
        rates.append(make_server(context, 0, 10).learning_rate)
    for rate in rates:
        assert rate(0) == 2.5e-4 and rate(half) == pytest.approx(1.25e-4, rel=1e-4) and rate(2 * half) < 1e-8


def test_the_trainer_of_a_worker_follows_alpha(tmp_path):
    """The gradient at a version is taken with what is left of the schedules there."""
    context, seen = context_of(config_of("ppo"), tmp_path), []
    network = SimpleNamespace(size=7, parameter_shapes=())
    schedule = SimpleNamespace(update=lambda _: None, stop=lambda: None, contribution=lambda _: None)

    def gradient(parameters, batch, context):
        seen.append(context.anneal)
        return np.zeros(7, np.float32), {"gradient_norm": 0.0}, None

    learner, metrics = SimpleNamespace(gradient=gradient, context=()), RankMetrics("worker", 0)
    role = WorkerRole(context, Sent(), 0, network, schedule, learner, metrics, lambda: None)
    for version in (0, HALFWAY, 10 * HALFWAY):
        role.trainer._gradient(Snapshot(version, version, None), SimpleNamespace(behaviour_version=np.zeros(3)))
    assert seen == pytest.approx([1.0, 0.5, 0.0], abs=1e-4)


def test_a_schedule_over_agent_steps_that_nobody_counts_is_an_error():
    config = OptimizerConfig(learning_rate_schedule="linear", learning_rate_agent_steps=1_000)
    with pytest.raises(ValueError, match="need the agent steps of an update"):
        rate_of(config, 32)(5)


def test_rainbows_beta_is_1_after_50_million_agent_steps_whatever_the_workers():
    four = {"exchange": {"workers": 4, "exchange": "allreduce", "parameter_servers": None}}
    for changes in ({}, {"algorithm": {"steps_per_update": 8}}, four):
        config = config_of("rainbow", **changes)
        steps = config.agent_steps_per_update
        betas = [config.replay.importance(round(part * 50_000_000 / steps), steps) for part in (0.0, 0.5, 1.0, 2.0)]
        assert betas == pytest.approx([0.4, 0.7, 1.0, 1.0])
