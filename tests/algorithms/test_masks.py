"""Losses and targets with legal-action masks, against references that leave illegal actions out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

from ddrl.algorithms import a2c, ba3c, dqn, impala, ppo
from ddrl.config import NetworkConfig
from ddrl.networks import build_network
from ddrl.structured import ACTION_MASK, tensors_of
from ddrl.types import DataPoints, Discrete, LossContext, MultiDiscrete, Replayed, Transitions
from tests import references
from tests.ops.test_action_masks import masked_outputs
from tests.unrolls import random_unroll

ROWS, ACTIONS = 40, 5
SPACES = {"discrete": Discrete(ACTIONS), "multidiscrete": MultiDiscrete((3, 2))}
CONFIG = NetworkConfig(network="mlp")


def components(space):
    return space.counts if isinstance(space, MultiDiscrete) else (space.count,)


def observed(space, shape, seed=0):
    """Observations <structured>[*shape] with masks."""
    rows, random = int(np.prod(shape)), np.random.default_rng(seed)
    _, mask = masked_outputs(rows, components(space), seed)
    array = np.zeros(rows, [("numbers", "f4", (3,)), (ACTION_MASK, "?", (ACTIONS,))])
    array["numbers"], array[ACTION_MASK] = random.standard_normal((rows, 3)), mask
    return array.reshape(shape)


def legal_draws(space, observation, seed=1):
    """Legal actions <int32>[..., (K)] drawn uniformly."""
    random, mask = np.random.default_rng(seed), observation[ACTION_MASK].reshape(-1, ACTIONS)
    starts = np.cumsum([0, *components(space)])
    drawn = [
        [random.choice(np.flatnonzero(row[start:stop])) for start, stop in itertools.pairwise(starts)] for row in mask
    ]
    return np.array(drawn, np.int32).reshape(*observation.shape, *space.action_shape)


def network_and_outputs(space, observation, head=None):
    """A network, its parameters, and what its heads give without masks, in float64."""
    network = build_network(CONFIG, (), observation.dtype, space, head)
    parameters = network.initial_parameters(1) + 0.2 * np.random.default_rng(3).standard_normal(network.size)
    parameters = tf.constant(parameters.astype(np.float32))
    heads = network.outputs(network.prepare(parameters), fields(observation))
    return network, parameters, {name: x.numpy().astype(np.float64) for name, x in heads.items()}


def fields(observation):
    return dict(zip(sorted(observation.dtype.names), tensors_of(observation), strict=True))


def tensors(batch):
    return type(batch)(*(None if x is None else fields(x) if x.dtype.names else tf.constant(x) for x in batch))


def log_probs_and_entropies(space, logits, mask, action):
    """Of distributions over the legal actions alone, one row after the other."""
    starts, log_probs, entropies = np.cumsum([0, *components(space)]), np.zeros(len(logits)), np.zeros(len(logits))
    for row, drawn in enumerate(action.reshape(len(logits), -1)):
        for k, (start, stop) in enumerate(itertools.pairwise(starts)):
            numbers = np.flatnonzero(mask[row, start:stop])
            exponentials = np.exp(logits[row, start + numbers])
            chances = exponentials / exponentials.sum()
            log_probs[row] += np.log(chances[list(numbers).index(drawn[k])])
            entropies[row] -= (chances * np.log(chances)).sum()
    return log_probs, entropies


@pytest.fixture(params=SPACES)
def space(request):
    return SPACES[request.param]


@pytest.mark.parametrize("name", ["a2c", "ppo", "ba3c"])
def test_losses_on_rows(name, space):
    observation, random = observed(space, (ROWS,)), np.random.default_rng(5)
    action = legal_draws(space, observation)
    network, parameters, heads = network_and_outputs(space, observation)
    log_probs, entropies = log_probs_and_entropies(space, heads["policy"], observation[ACTION_MASK], action)
    noise = lambda: random.standard_normal(ROWS).astype(np.float32)
    behavior = (log_probs + 0.2 * random.standard_normal(ROWS)).astype(np.float32)
    advantage, return_, value, version = noise(), noise(), heads["value"][:, 0], np.zeros(ROWS, np.int64)
    if name == "ba3c":
        config = ba3c.BA3CConfig(entropy_cost=0.1)
        batch, module = DataPoints(observation, action, return_, behavior, version), ba3c
        losses = -np.log(np.exp(log_probs) + config.log_epsilon) * (return_ - value)
    else:
        weight = np.ones(ROWS, np.float32)
        batch = Transitions(observation, action, advantage, return_, noise(), behavior, weight, version)
        module = a2c if name == "a2c" else ppo
        config = a2c.A2CConfig(entropy_cost=0.1) if name == "a2c" else ppo.PPOConfig(entropy_cost=0.1)
        ratios = np.exp(log_probs - behavior)
        surrogate = [references.clipped_surrogate(*pair, 0.2) for pair in zip(ratios, advantage)]
        losses = -log_probs * advantage if name == "a2c" else -np.array(surrogate)
    expected = losses.mean() + config.value_cost * ((return_ - value) ** 2).mean() - 0.1 * entropies.mean()
    output = module.loss(network, parameters, tensors(batch), config, LossContext())
    np.testing.assert_allclose(output.loss, expected, rtol=1e-4)


def test_the_loss_of_impala(space):
    unroll = random_unroll(5, 4, seed=2)
    observation = observed(space, (6, 4))
    action = legal_draws(space, observation[:-1])
    network, parameters, heads = network_and_outputs(space, observation.ravel())
    log_probs, entropies = log_probs_and_entropies(
        space, heads["policy"][:20], observation[:-1][ACTION_MASK].reshape(-1, ACTIONS), action
    )
    behavior = (log_probs.reshape(5, 4) + 0.1).astype(np.float32)
    unroll = unroll._replace(observation=observation, action=action, behaviour_log_prob=behavior)
    config, value = impala.ImpalaConfig(entropy_cost=0.1), heads["value"].reshape(6, 4)
    vs, advantages = references.vtrace(log_probs.reshape(5, 4) - behavior, unroll, value, 1.0, 1.0)
    valid = unroll.valid.ravel()
    expected = -(valid * advantages.ravel() * log_probs).mean() - 0.1 * (valid * entropies).mean()
    expected += config.value_cost * (valid * (vs - value[:-1]).ravel() ** 2).mean()
    output = impala.loss(network, parameters, tensors(unroll), config, LossContext())
    np.testing.assert_allclose(output.loss, expected, rtol=1e-4)


VARIANTS = {
    "dqn": dqn.DQNConfig(),
    "double": dqn.DQNConfig(double=True, dueling=True),
    "categorical": dqn.DQNConfig(atoms=7, value_min=-2.0, value_max=2.0),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_targets_take_the_best_legal_action(variant):
    space, config = SPACES["discrete"], VARIANTS[variant]
    observation = observed(space, (ROWS,))
    network, parameters, _ = network_and_outputs(space, observation, config.head)
    other = tf.constant(parameters.numpy()[::-1].copy())  # theta^-, of other values
    prepared, target = network.prepare(parameters), network.prepare(other)
    column, action = np.ones(ROWS, np.float32), legal_draws(space, observation)
    batch = Replayed(observation, action, column, 0.9 * column, observation, column, None, None)
    given = dqn.targets(network, target, tensors(batch), config)
    values, online = (network.action_values(p, fields(observation)) for p in (target, prepared))
    chooser = network.expected(online if config.double else values).numpy()
    best = [max(np.flatnonzero(row), key=lambda a: q[a]) for row, q in zip(observation[ACTION_MASK], chooser)]
    assert (best != chooser.argmax(axis=1)).any(), "some best action is illegal"
    if config.double:
        given = dqn._chosen_target(network, prepared, tensors(batch)._replace(target=given))
    if config.atoms:
        logits = values.numpy()[np.arange(ROWS), best]
        atoms = np.linspace(-2.0, 2.0, 7).astype(np.float32)
        expected = dqn.q_learning.projected_targets(*map(tf.constant, (column, 0.9 * column, logits)), atoms)
    else:
        expected = 1.0 + 0.9 * values.numpy()[np.arange(ROWS), best]
    np.testing.assert_allclose(given, expected, rtol=1e-5)


def test_the_loss_of_q_learning_and_what_acting_sees():
    space, config = SPACES["discrete"], VARIANTS["dqn"]
    observation = observed(space, (ROWS,))
    network, parameters, heads = network_and_outputs(space, observation, config.head)
    action, column = legal_draws(space, observation), np.ones(ROWS, np.float32)
    target = np.random.default_rng(0).standard_normal(ROWS).astype(np.float32)
    batch = Replayed(observation, action, None, None, None, column, None, None, target)
    errors = np.abs(target - heads["q"][np.arange(ROWS), action])
    expected = np.where(errors > 1.0, errors - 0.5, errors**2 / 2.0).mean()
    output = dqn.loss(network, parameters, tensors(batch), config, LossContext())
    np.testing.assert_allclose(output.loss, expected, rtol=1e-5)
    q, value = network.apply(network.prepare(parameters), fields(observation))
    best = [heads["q"][row][observation[ACTION_MASK][row]].max() for row in range(ROWS)]
    np.testing.assert_allclose(value, best, rtol=1e-5)
    assert observation[ACTION_MASK][np.arange(ROWS), q.numpy().argmax(axis=1)].all()
