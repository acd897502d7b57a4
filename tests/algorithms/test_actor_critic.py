"""The losses of A2C, PPO and IMPALA, for both action spaces."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf

from ddrl.algorithms import a2c, impala, ppo
from ddrl.algorithms.a2c import A2CConfig
from ddrl.algorithms.impala import ImpalaConfig
from ddrl.algorithms.ppo import PPOConfig
from ddrl.config import NetworkConfig
from ddrl.networks import build_network
from ddrl.ops.returns import generalized_advantages
from ddrl.types import Continuous, Discrete, LossContext, Transitions
from tests import references
from tests.algorithms.fixed_network import FixedNetwork
from tests.unrolls import random_unroll

SPACES = {"discrete": Discrete(3), "continuous": Continuous((-1.0, -1.0), (1.0, 1.0))}
WEIGHTS = {"entropy_cost": 0.1, "value_cost": 0.7}
A2C = A2CConfig(**WEIGHTS)
PPO = PPOConfig(**WEIGHTS)
IMPALA = ImpalaConfig(rho_clip=1.5, c_clip=0.8, **WEIGHTS)
ON_TRANSITIONS = {"a2c": (a2c, A2C), "ppo": (ppo, PPO)}
PARTS = ("loss", "policy_loss", "value_loss", "entropy")
STEPS, ENVIRONMENTS = 6, 4


def actions_of(space):
    """Draws actions of any leading shape."""
    if isinstance(space, Discrete):
        return lambda random, shape: random.integers(space.count, size=shape).astype(np.int32)
    return lambda random, shape: random.standard_normal((*shape, len(space.low))).astype(np.float32)


def outputs(space, rows, seed=1):
    """Policy and value of a network."""
    random = np.random.default_rng(seed)
    policy = 0.5 * random.standard_normal((rows, space.policy_size))
    return policy.astype(np.float32), random.standard_normal(rows).astype(np.float32)


def transitions(space, policy, count=24, seed=0):
    """Rows drawn near what `policy` would do, of which some are to be ignored."""
    random = np.random.default_rng(seed)
    action = actions_of(space)(random, (count,))
    behavior = references.log_probs(space, policy, action) + 0.3 * random.standard_normal(count)
    noise = lambda: random.standard_normal(count).astype(np.float32)
    return Transitions(
        observation=random.standard_normal((count, 5)).astype(np.float32),
        action=action,
        advantage=noise(),
        return_=noise(),
        value=noise(),
        behaviour_log_prob=behavior.astype(np.float32),
        weight=(random.random(count) > 0.3).astype(np.float32),
        behaviour_version=np.zeros(count, np.int64),
    )


def unroll_of(space, seed=0):
    return random_unroll(STEPS, ENVIRONMENTS, seed, features=5, draw_actions=actions_of(space))


def tensors(batch):
    return type(batch)(*map(tf.constant, batch))


def output_of(module, space, policy, value, batch, config):
    return module.loss(FixedNetwork(space, policy, value), None, tensors(batch), config, LossContext())


def gradient_of(module, space, policy, value, batch, config):
    """<float32>[rows, P + 1] gradient of the loss with respect to policies and values."""
    network, inputs = FixedNetwork(space), (tf.constant(policy), tf.constant(value))
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        loss = module.loss(network, inputs, tensors(batch), config, LossContext()).loss
    by_policy, by_value = tape.gradient(loss, inputs)
    return np.concatenate([by_policy, by_value[:, None]], axis=1)


def numerical_gradient(loss, policy, value, step=1e-5):
    """Central differences, in float64, of loss(policy, value)."""
    point = np.concatenate([policy, value[:, None]], axis=1).astype(np.float64)
    gradient = np.zeros_like(point)
    for at in np.ndindex(point.shape):
        ends = []
        for sign in (1.0, -1.0):
            moved = point.copy()
            moved[at] += sign * step
            ends.append(loss(moved[:, :-1], moved[:, -1]))
        gradient[at] = (ends[0] - ends[1]) / (2 * step)
    return gradient


@pytest.fixture(params=SPACES)
def space(request):
    return SPACES[request.param]


@pytest.mark.parametrize("name", ON_TRANSITIONS)
def test_losses_on_transitions_equal_the_references(name, space):
    (module, config), (policy, value) = ON_TRANSITIONS[name], outputs(space, 24)
    batch = transitions(space, policy)
    reference = references.a2c_loss if name == "a2c" else references.ppo_loss
    output = output_of(module, space, policy, value, batch, config)
    for part, expected in zip(PARTS, reference(space, policy, value, batch, config), strict=True):
        np.testing.assert_allclose(output.metrics[part], expected, rtol=1e-4, atol=1e-5, err_msg=part)
    np.testing.assert_array_equal(output.loss, output.metrics["loss"])
    assert output.priorities is None


@pytest.mark.parametrize("name", ON_TRANSITIONS)
def test_gradients_on_transitions_equal_finite_differences(name, space):
    (module, config), (policy, value) = ON_TRANSITIONS[name], outputs(space, 6)
    batch = transitions(space, policy, 6)
    reference = references.a2c_loss if name == "a2c" else references.ppo_loss
    expected = numerical_gradient(lambda p, v: reference(space, p, v, batch, config)[0], policy, value)
    gradient = gradient_of(module, space, policy, value, batch, config)
    np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-5)
    ignored = batch.weight == 0
    assert ignored.any() and (gradient[ignored] == 0).all() and (gradient[~ignored][:, -1] != 0).all()


def test_impala_equals_the_reference(space):
    policy, value = outputs(space, (STEPS + 1) * ENVIRONMENTS)
    batch = unroll_of(space)
    output = output_of(impala, space, policy, value, batch, IMPALA)
    for part, expected in zip(PARTS, references.impala_loss(space, policy, value, batch, IMPALA), strict=True):
        np.testing.assert_allclose(output.metrics[part], expected, rtol=1e-4, atol=1e-5, err_msg=part)
    assert 0.0 < output.metrics["importance_ratio_mean"] <= IMPALA.rho_clip


def test_the_gradient_of_impala_holds_its_targets_fixed(space):
    rows = STEPS * ENVIRONMENTS
    policy, value = outputs(space, rows + ENVIRONMENTS)
    batch = unroll_of(space)
    actions = batch.action.reshape(rows, *batch.action.shape[2:])
    ratios = references.log_probs(space, policy[:rows], actions).reshape(STEPS, ENVIRONMENTS) - batch.behaviour_log_prob
    vs, advantages = references.vtrace(ratios, batch, value.reshape(STEPS + 1, ENVIRONMENTS), 1.5, 0.8)

    def loss(policy, value):
        losses = -references.log_probs(space, policy[:rows], actions) * advantages.ravel()
        weights = batch.valid.ravel()
        return references.actor_critic_loss(space, policy[:rows], value[:rows], losses, vs.ravel(), weights, IMPALA)[0]

    gradient = gradient_of(impala, space, policy, value, batch, IMPALA)
    np.testing.assert_allclose(gradient, numerical_gradient(loss, policy, value), rtol=1e-3, atol=1e-5)
    assert (gradient[rows:] == 0).all()  # the last observations only bootstrap


@pytest.mark.parametrize("alpha", [1.0, 0.25, 0.0])
@pytest.mark.parametrize("name", [*ON_TRANSITIONS, "impala"])
def test_the_entropys_cost_falls_with_alpha(name, alpha, space):
    """With the schedule, the loss is that of a cost times alpha; without one, it is that of the whole cost."""
    module, config = {**ON_TRANSITIONS, "impala": (impala, IMPALA)}[name]
    policy, value = outputs(space, (STEPS + 1) * ENVIRONMENTS if name == "impala" else 24)
    batch = unroll_of(space) if name == "impala" else transitions(space, policy)
    falling = dataclasses.replace(config, entropy_cost_schedule="linear")
    of_that_moment = dataclasses.replace(config, entropy_cost=config.entropy_cost * alpha)
    network, context = FixedNetwork(space, policy, value), LossContext(tf.constant(alpha))
    output = module.loss(network, None, tensors(batch), falling, context)
    expected = output_of(module, space, policy, value, batch, of_that_moment)
    np.testing.assert_allclose(output.loss, expected.loss, rtol=1e-6)
    constant = module.loss(network, None, tensors(batch), config, context)
    np.testing.assert_array_equal(constant.loss, output_of(module, space, policy, value, batch, config).loss)


@pytest.mark.parametrize("schedule", ["constant", "linear"])
@pytest.mark.parametrize("alpha, cost", [(1.0, 0.5), (0.98, 0.34), (0.95, 0.1), (0.5, 0.1), (0.0, 0.1)])
def test_the_entropys_cost_starts_higher(alpha, cost, schedule, space):
    """It falls from 0.5 to 0.1 within the first twentieth; what the schedule takes off is of the 0.1 alone."""
    config = A2CConfig(entropy_cost=0.1, entropy_cost_start=0.5, entropy_cost_schedule=schedule)
    taken_off = 0.1 * (1.0 - alpha) if schedule == "linear" else 0.0
    policy, value = outputs(space, 24)
    batch = transitions(space, policy)
    network, context = FixedNetwork(space, policy, value), LossContext(tf.constant(alpha))
    output = a2c.loss(network, None, tensors(batch), config, context)
    of_that_moment = output_of(a2c, space, policy, value, batch, A2CConfig(entropy_cost=cost - taken_off))
    np.testing.assert_allclose(output.loss, of_that_moment.loss, rtol=1e-5)


@pytest.mark.parametrize("alpha, horizon", [(1.0, 10.0), (0.9, 40.0), (0.75, 85.0), (0.7, 100.0), (0.0, 100.0)])
def test_the_horizon_grows(alpha, horizon):
    """From 10 to 100 agent steps within three tenths of the schedules; an array of versions gives one of discounts."""
    config = A2CConfig(discount=0.99, discount_start=0.9, discount_start_share=0.3)
    assert config.discount_when(alpha) == pytest.approx(1.0 - 1.0 / horizon, rel=1e-12)
    versions = config.discount_when(np.array([[1.0, alpha]]))
    np.testing.assert_allclose(versions, [[0.9, 1.0 - 1.0 / horizon]], rtol=1e-12)
    assert A2CConfig(discount=0.99).discount_when(alpha) == 0.99


def test_metrics_are_means_over_the_rows_that_count(space):
    policy, value = outputs(space, 24)
    batch = transitions(space, policy)
    counted = batch.weight == 1
    metrics = output_of(ppo, space, policy, value, batch, PPO).metrics
    advantages = batch.advantage[counted]
    ratios = np.exp(references.log_probs(space, policy, batch.action) - batch.behaviour_log_prob)[counted]
    expected = {
        "advantage_mean": advantages.mean(),
        "advantage_rms": math.sqrt((advantages**2).mean()),
        "value_mean": value[counted].mean(),
        "importance_ratio_mean": ratios.mean(),
        "clip_fraction": (abs(ratios - 1) > PPO.clip_range).mean(),
        "approximate_kl": (ratios - 1 - np.log(ratios)).mean(),
    }
    assert metrics.keys() == {*PARTS, *expected}
    for name, number in expected.items():
        np.testing.assert_allclose(metrics[name], number, rtol=1e-3, atol=1e-5, err_msg=name)
    assert 0.0 < expected["clip_fraction"] < 1.0


@pytest.mark.parametrize("name", ON_TRANSITIONS)
def test_what_ignored_rows_hold_does_not_matter(name, space):
    (module, config), (policy, value) = ON_TRANSITIONS[name], outputs(space, 24)
    batch = transitions(space, policy)
    shift = np.where(batch.weight == 0, np.float32(100.0), np.float32(0.0))
    fields = ("advantage", "return_", "behaviour_log_prob")
    other = batch._replace(**{field: getattr(batch, field) + shift for field in fields})
    plain, changed = (output_of(module, space, policy, value, b, config) for b in (batch, other))
    for metric in plain.metrics:
        np.testing.assert_allclose(plain.metrics[metric], changed.metrics[metric], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ON_TRANSITIONS)
def test_the_mean_of_the_gradients_of_parts_is_that_of_the_whole(name, space):
    (module, config), (policy, value) = ON_TRANSITIONS[name], outputs(space, 24)
    batch = transitions(space, policy)._replace(weight=(np.arange(24) > 4).astype(np.float32))
    parts = [slice(0, 12), slice(12, 24)]
    assert batch.weight[parts[0]].sum() != batch.weight[parts[1]].sum()
    halves = [
        gradient_of(module, space, policy[part], value[part], Transitions(*(x[part] for x in batch)), config)
        for part in parts
    ]
    whole = gradient_of(module, space, policy, value, batch, config)
    np.testing.assert_allclose(whole, np.concatenate(halves) / 2, rtol=1e-5, atol=1e-8)


def test_the_mean_of_the_gradients_of_parts_of_an_unroll_is_that_of_the_whole(space):
    policy, value = outputs(space, (STEPS + 1) * ENVIRONMENTS)
    batch = unroll_of(space)
    whole = gradient_of(impala, space, policy, value, batch, IMPALA)
    by_column = np.arange(len(value)).reshape(STEPS + 1, ENVIRONMENTS)
    expected = np.empty_like(whole)
    for part in (slice(0, 2), slice(2, 4)):
        rows, columns = by_column[:, part].ravel(), type(batch)(*(x[:, part] for x in batch))
        expected[rows] = gradient_of(impala, space, policy[rows], value[rows], columns, IMPALA) / 2
    np.testing.assert_allclose(whole, expected, rtol=1e-5, atol=1e-7)


def test_at_ratio_1_the_gradient_of_ppo_is_that_of_a2c(space):
    policy, value = outputs(space, 24)
    batch = transitions(space, policy)
    on_policy = references.log_probs(space, policy, batch.action).astype(np.float32)
    batch = batch._replace(behaviour_log_prob=on_policy)
    gradient = gradient_of(ppo, space, policy, value, batch, PPO)
    np.testing.assert_allclose(gradient, gradient_of(a2c, space, policy, value, batch, A2C), rtol=1e-4, atol=1e-6)


def test_impala_on_policy_is_a2c_with_n_step_returns(space):
    """Through a real network, so that a row in the wrong place shows."""
    network = build_network(NetworkConfig(network="mlp"), (5,), np.float32, space)
    parameters = tf.constant(
        network.initial_parameters(0) + 0.1 * np.random.default_rng(0).standard_normal(network.size)
    )
    parameters = tf.cast(parameters, tf.float32)
    unroll, rows = unroll_of(space), STEPS * ENVIRONMENTS
    policy, value = network(parameters, tf.constant(unroll.observation.reshape(-1, 5)))
    actions = unroll.action.reshape(rows, *unroll.action.shape[2:])
    log_probs = references.log_probs(space, policy.numpy()[:rows], actions).astype(np.float32)
    value = value.numpy().reshape(STEPS + 1, ENVIRONMENTS)
    unroll = unroll._replace(behaviour_log_prob=log_probs.reshape(STEPS, ENVIRONMENTS), value=value)
    advantage, return_ = generalized_advantages(
        unroll.reward, unroll.discount, unroll.continues, unroll.valid, value, 1.0
    )
    batch = Transitions(
        unroll.observation[:-1].reshape(rows, 5),
        actions,
        advantage.ravel(),
        return_.ravel(),
        value[:-1].ravel(),
        log_probs,
        unroll.valid.ravel(),
        unroll.behaviour_version.ravel(),
    )
    gradients = []
    for module, data, config in ((a2c, batch, A2C), (impala, unroll, ImpalaConfig(**WEIGHTS))):
        with tf.GradientTape() as tape:
            tape.watch(parameters)
            output = module.loss(network, parameters, tensors(data), config, LossContext())
        gradients.append(tape.gradient(output.loss, parameters).numpy())
    np.testing.assert_allclose(*gradients, rtol=1e-3, atol=1e-5)
    assert np.linalg.norm(gradients[0]) > 0.1


@pytest.mark.parametrize(
    "value, return_, loss, gradient",
    [
        (1.05, 2.0, 0.95**2, -1.9),  # within the range of 0.1 around 1, the value when acting
        (1.5, 2.0, 0.9**2, 0.0),  # moved too far toward the return: no gradient
        (0.5, 2.0, 1.5**2, -3.0),  # moved away from it: its own square is larger
        (1.5, 0.0, 1.5**2, 3.0),
        (0.5, 0.0, 0.9**2, 0.0),
    ],
)
def test_value_clipping(value, return_, loss, gradient):
    batch = Transitions(
        np.zeros((1, 5), np.float32),
        np.zeros(1, np.int32),
        np.zeros(1, np.float32),
        np.array([return_], np.float32),
        np.ones(1, np.float32),
        np.zeros(1, np.float32),
        np.ones(1, np.float32),
        np.zeros(1, np.int64),
    )
    config = PPOConfig(value_clip_range=0.1, value_cost=1.0)
    policy, values = np.zeros((1, 3), np.float32), np.array([value], np.float32)
    output = output_of(ppo, Discrete(3), policy, values, batch, config)
    np.testing.assert_allclose(output.metrics["value_loss"], loss, rtol=1e-5)
    by_value = gradient_of(ppo, Discrete(3), policy, values, batch, config)[0, -1]
    np.testing.assert_allclose(by_value, gradient, rtol=1e-4)
    unclipped = output_of(ppo, Discrete(3), policy, values, batch, PPOConfig(value_clip_range=10.0))
    np.testing.assert_allclose(unclipped.metrics["value_loss"], (return_ - value) ** 2, rtol=1e-5)


@pytest.mark.parametrize("name", ON_TRANSITIONS)
@pytest.mark.parametrize("field", ["action", "advantage", "return_", "weight"])
def test_a_column_in_place_of_a_row_is_refused(name, field):
    (module, config), (policy, value) = ON_TRANSITIONS[name], outputs(SPACES["discrete"], 24)
    batch = transitions(SPACES["discrete"], policy)
    batch = batch._replace(**{field: getattr(batch, field)[:, None]})
    with pytest.raises(ValueError):
        output_of(module, SPACES["discrete"], policy, value, batch, config)
