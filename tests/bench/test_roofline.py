from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from ddrl.algorithms import preset
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.bench import phases, roofline
from ddrl.builders import replay
from ddrl.config import EnvironmentConfig, NetworkConfig, OptimizerConfig, SamplingConfig, TrainConfig
from ddrl.errors import UsageError
from ddrl.graph import Graph
from ddrl.learner import as_device_vector
from ddrl.networks import build_network
from ddrl.types import Discrete, Machine

CONFIG = TrainConfig(
    algorithm=BA3CConfig(),
    environment=EnvironmentConfig(game="ddrl/Catch-v0"),
    network=NetworkConfig(network="mlp"),
    sampling=SamplingConfig(simulators=8, groups=2),
    optimizer=OptimizerConfig(batch_size=16),
)


def test_parts_in_turn():
    rates = {"env": 2.0, "inference": 4.0, "gradient": 8.0, "update": 0.5}
    once = dict.fromkeys(("env", "inference", "gradient"), 1.0)
    assert roofline.combine(rates, once, cores=1) == pytest.approx(1 / (1 / 2 + 1 / 4 + 1 / 8))
    assert roofline.combine(rates, once | {"gradient": 2.0}, cores=3) == pytest.approx(3.0)
    assert roofline.combine(rates, once | {"update": 1 / 16}, cores=1) == pytest.approx(1.0)
    assert roofline.combine({"env": 5.0, "inference": float("inf")}, {"env": 1, "inference": 1}, cores=2) == 10.0


def test_updates_and_layouts_of_an_agent_step():
    machine = Machine(2, 16 * 10**9)
    a2c, ppo, rainbow = (preset("smoke", None, machine, name) for name in ("a2c", "ppo", "rainbow"))
    assert roofline.times(a2c) == dict(
        env=1, inference=1, gradient=1, update=1 / a2c.batch_size, layout=1 / a2c.batch_size
    )
    rollout = ppo.rollout_length * ppo.rows
    assert roofline.times(ppo)["layout"] == 1 / rollout, "of a rollout's versions one acts"
    assert roofline.times(ppo)["update"] == ppo.algorithm.epochs / ppo.batch_size > 1 / rollout
    every = rainbow.replay_data.steps_per_update
    assert roofline.times(rainbow)["update"] == 1 / every
    assert roofline.times(rainbow)["layout"] == 1 / rainbow.rows < 1 / every, "all simulators act with one version"
    dqn = preset("smoke", None, machine, "dqn")
    assert roofline.times(dqn)["layout"] == 1 / dqn.replay_data.target_period, "its actors act with the target network"
    two = a2c.changed(exchange={"workers": 2, "parameter_servers": 1})
    assert roofline.times(two)["update"] == 1 / (2 * a2c.batch_size), "two workers share an update"
    assert roofline.times(two)["layout"] == 1 / a2c.batch_size, "and each lays out its weights"
    replicas = a2c.changed(exchange={"workers": 2, "exchange": "allreduce"})
    assert roofline.times(replicas)["update"] == 1 / a2c.batch_size, "both make the whole update"


def test_weights_are_laid_out_each_time(monkeypatch):
    network = build_network(NetworkConfig(network="mlp"), (1, 10, 5), np.uint8, Discrete(3))
    calls, call = [], Graph.__call__
    monkeypatch.setattr(Graph, "__call__", lambda graph, *tensors: calls.append(1) or call(graph, *tensors))
    layout = phases._layout(network, as_device_vector(network.initial_parameters(0)))
    assert [layout() for _ in range(5)] == [1] * 5 and len(calls) == 5, "none of them is kept"


@pytest.mark.parametrize("algorithm, at_once", [("rainbow", 32), ("dqn", 512)])
def test_as_many_targets_are_computed_at_once_as_in_training(monkeypatch, algorithm, at_once):
    """Rainbow draws its next minibatch with the priorities of the one before; DQN learns from a whole period."""
    asked = []

    def target_function(config, network, observations, chunk):
        asked.append(chunk)
        return lambda parameters, batch: batch.next_observation

    monkeypatch.setattr(replay, "target_function", target_function)
    config = preset("default", None, Machine(2, 16 * 10**9), algorithm)
    targets = phases._targets(config, None, None, np.random.default_rng(0), (3,), np.dtype(np.uint8))
    assert (targets(), asked) == (at_once, [at_once])


def test_batches_of_a_configuration():
    assert (roofline.group_size(CONFIG), roofline.inference_batch(CONFIG)) == (4, 4)
    sampling = dataclasses.replace(CONFIG.sampling, predict_batch=3)
    assert roofline.inference_batch(dataclasses.replace(CONFIG, sampling=sampling)) == 3
    in_turn = CONFIG.changed(sampling={"schedule": "synchronized"}, optimizer={"batch_size": 40})
    assert (roofline.group_size(in_turn), roofline.inference_batch(in_turn)) == (8, 8), "one group, whatever --groups"


def test_predictors_query_the_policy_for_all_groups():
    two = preset("smoke", None, Machine(2, 16 * 10**9), "hts-a2c").changed(sampling={"predictors": 1})
    assert (roofline.group_size(two), roofline.inference_batch(two)) == (4, 8)
    asked = two.changed(sampling={"predict_batch": 8})
    assert roofline.measure_roofline(asked, 0.05, 1)["inference_batch"] == 8, "though no group has as many simulators"


def test_a_short_measurement():
    result = json.loads(json.dumps(roofline.measure_roofline(CONFIG, 0.05, 1)))
    rates = [result[phase] for phase in ("env", "inference", "gradient", "update", "layout")]
    assert min(rates) > 0
    counts = (1, 1, 1, 1 / (16 * CONFIG.exchange.workers), 1 / 16)
    assert result["roofline"] == pytest.approx(1 / sum(count / rate for count, rate in zip(counts, rates, strict=True)))
    assert (result["inference_batch"], result["gradient_batch"], result["cores"]) == (4, 16, 1)
    assert (result["network"], result["game"]) == ("mlp", "ddrl/Catch-v0")
    assert result["dtype"] == "float32"  # what mlp computes in, not what was asked for


def test_what_cannot_run_is_said_in_one_line():
    with pytest.raises(UsageError, match="choose 1 to"):
        roofline.measure_roofline(CONFIG, 0.05, 10**6)
    unknown = dataclasses.replace(CONFIG, environment=EnvironmentConfig(game="no_such_game"))
    with pytest.raises(UsageError, match="no_such_game"):
        roofline.measure_roofline(unknown, 0.05, 1)


def test_ape_x_has_no_roofline():
    apex = preset("smoke", None, Machine(2, 16 * 10**9), "apex-dqn")
    with pytest.raises(UsageError, match="^apex-dqn: its actors and its learner do not wait for each other"):
        roofline.measure_roofline(apex, 0.05, 1)


@pytest.mark.parametrize(
    "algorithm, uses, targets, batch",
    [("a2c", 1, 0, 80), ("ppo", 4, 0, 32), ("rainbow", 8, 8, 32), ("dpg", 4, 4, 32), ("sac", 8, 0, 32)],
)
def test_every_kind_of_batch(algorithm, uses, targets, batch):
    config = preset("smoke", None, Machine(2, 16 * 10**9), algorithm)
    result = roofline.measure_roofline(config, 0.05, 1)
    each = roofline.times(config)
    assert each["gradient"] == uses and each.get("target", 0) == targets
    assert result["roofline"] == pytest.approx(1 / sum(count / result[part] for part, count in each.items()))
    assert (result["uses"], result["gradient_batch"]) == (uses, batch)
