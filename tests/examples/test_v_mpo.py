"""V-MPO: loss and gradients against a slow transcription of the paper; it learns Catch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from ddrl.config import NetworkConfig
from ddrl.networks import build_network
from ddrl.types import Continuous, Discrete, LossContext, MultiDiscrete, Transitions
from tests import references
from tests.examples.runs import train
from tests.references import named_tensors, numerical_gradient

ROWS, INPUTS = 9, 3
SPACES = {
    "discrete": Discrete(4), "several": MultiDiscrete((2, 3)), "continuous": Continuous((-1.0, -1.0), (1.0, 1.0)),
}  # fmt: skip


def policy_of(tensors, space, seen):
    """The policy and the value of the default network of one hidden layer."""

    def tower(name):
        hidden = np.tanh(seen @ tensors[f"{name}0/kernel"] + tensors[f"{name}0/bias"])
        return hidden @ tensors[f"{name}1/kernel"] + tensors[f"{name}1/bias"]

    policy = tower("policy")
    if isinstance(space, Continuous):
        policy = np.hstack([policy, np.broadcast_to(tensors["policy/log_deviation"], policy.shape)])
    return policy, tower("value")[:, 0]


def parts_of(space, policy):
    counts = space.counts if isinstance(space, MultiDiscrete) else (space.count,)
    return np.split(policy, np.cumsum(counts)[:-1], axis=-1)


def log_prob(space, policy, action):
    if isinstance(space, Continuous):
        return references.log_probs(space, policy[None], action[None])[0]
    parts = zip(parts_of(space, policy), np.atleast_1d(action))
    return sum(np.log(references.softmax(part[None])[0, component]) for part, component in parts)


def kl(space, old, new, name):
    """Of one state: by the sum over actions, or by the textbook formulas of the mean and of the variances."""
    if not isinstance(space, Continuous):
        return sum(
            p * np.log(p / q)
            for a, b in zip(parts_of(space, old), parts_of(space, new))
            for p, q in zip(references.softmax(a[None])[0], references.softmax(b[None])[0])
        )
    (old_mean, old_log), (new_mean, new_log) = np.split(old, 2), np.split(new, 2)
    if name == "mean":
        return sum((m - n) ** 2 / (2 * np.exp(s) ** 2) for m, n, s in zip(old_mean, new_mean, old_log))
    ratios = [np.exp(s) ** 2 / np.exp(t) ** 2 for s, t in zip(old_log, new_log)]
    return sum(0.5 * (ratio - 1 - np.log(ratio)) for ratio in ratios)


def positive(x):
    return math.log1p(math.exp(x)) + 1e-8


def reference(space, network, batch, config, names, moved, fixed, acted):
    """The loss, with `moved` where the gradient goes through and `fixed` where it is stopped."""
    tensors, held, old = (named_tensors(network, vector) for vector in (moved, fixed, acted))
    seen = batch.observation.astype(np.float64)
    (policy, value), (held_policy, _), (old_policy, _) = (policy_of(t, space, seen) for t in (tensors, held, old))
    counted = [row for row in range(ROWS) if batch.weight[row]]
    total = sum(0.5 * (value[row] - batch.return_[row]) ** 2 for row in counted) / len(counted)
    best = sorted(counted, key=lambda row: -batch.advantage[row])[: -(-len(counted) // 2)]
    eta, held_eta = (positive(float(t["temperature/eta"])) for t in (tensors, held))
    scale = sum(np.exp(batch.advantage[row] / held_eta) for row in best)
    for row in best:
        psi = np.exp(batch.advantage[row] / held_eta) / scale
        total -= psi * log_prob(space, policy[row], batch.action[row])
    total += eta * config.temperature_bound
    total += eta * np.log(sum(np.exp(float(batch.advantage[row]) / eta) for row in best) / len(best))
    for name, bound in names.items():
        alpha, held_alpha = (positive(float(t[f"multiplier/{name}"])) for t in (tensors, held))
        moving, held_kl = (
            sum(kl(space, old_policy[row], p[row], name) for row in counted) / len(counted)
            for p in (policy, held_policy)
        )
        total += alpha * (bound - held_kl) + held_alpha * moving
    return total


def batch_of(space):
    random = np.random.default_rng(0)
    rows = lambda *shape: random.standard_normal((ROWS, *shape)).astype(np.float32)
    if isinstance(space, Continuous):
        action = rows(2)
    else:
        counts = space.counts if isinstance(space, MultiDiscrete) else space.count
        action = random.integers(counts, size=(ROWS, *space.action_shape)).astype(np.int32)
    weight = np.ones(ROWS, np.float32)
    advantage = rows()
    weight[[1, int(advantage.argmax())]] = 0.0  # the largest advantage is of a row that does not count
    return Transitions(rows(INPUTS), action, advantage, rows(), rows(), rows(), weight, np.zeros(ROWS, np.int64))


@pytest.mark.parametrize("kind", SPACES)
def test_loss_and_gradient_equal_the_papers_equations(example, kind):
    v_mpo, space = example("v_mpo"), SPACES[kind]
    config = v_mpo.VMPOConfig(temperature_bound=0.2, kl_bound=0.03, deviation_kl_bound=0.02, first_temperature=0.7)
    layers = NetworkConfig(network="mlp", hidden_layers=(4,))
    network = build_network(layers, (INPUTS,), np.float32, space)
    network.add_scalars(v_mpo.learned(config, space))
    random = np.random.default_rng(3)
    parameters, acted = (
        (network.initial_parameters(i) + 0.3 * random.standard_normal(network.size)).astype(np.float32) for i in (1, 2)
    )
    batch, theta = batch_of(space), tf.constant(parameters)
    with tf.GradientTape() as tape:
        tape.watch(theta)
        context = LossContext(1.0, tf.constant(acted))
        output = v_mpo.loss(network, theta, Transitions(*map(tf.constant, batch)), config, context)
    names = v_mpo.bounds_of(config, space)
    assert list(names) == (["mean", "deviation"] if kind == "continuous" else ["policy"])

    def at(moved):
        return reference(space, network, batch, config, names, moved, parameters, acted)

    assert float(output.loss) == pytest.approx(at(parameters), rel=1e-4)
    expected = numerical_gradient(at, parameters)
    np.testing.assert_allclose(tape.gradient(output.loss, theta), expected, rtol=2e-3, atol=2e-4)
    scalars = named_tensors(network, expected)
    assert all(abs(float(scalars[name])) > 1e-3 for name in v_mpo.learned(config, space))


def test_the_scalars_begin_where_they_should(example):
    v_mpo = example("v_mpo")
    config = v_mpo.VMPOConfig(first_temperature=0.3, first_multiplier=5.0)
    values = {name: positive(value) for name, value in v_mpo.learned(config, SPACES["continuous"]).items()}
    expected = {"temperature/eta": 0.3, "multiplier/mean": 5.0, "multiplier/deviation": 5.0}
    assert values == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_it_learns_catch(tmp_path, forked_ranks):
    run = train("v-mpo", "v_mpo", tmp_path, preset="smoke", seed=1, minutes=4)  # the machine may be a busy one
    assert run.result["status"] == "target", "50 balls of 50"
