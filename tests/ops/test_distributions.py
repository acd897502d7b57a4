from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from ddrl.ops import distributions
from ddrl.ops.action_masks import ILLEGAL
from ddrl.ops.draws import draw_for
from ddrl.types import Continuous, Discrete, MultiDiscrete
from tests import references

RANDOM = np.random.default_rng(0)
SPACES = {
    "discrete": (Discrete(4), (3.0 * RANDOM.standard_normal((6, 4))), RANDOM.integers(4, size=6)),
    "continuous": (Continuous((-1.0,) * 3, (1.0,) * 3), RANDOM.standard_normal((6, 6)), RANDOM.standard_normal((6, 3))),
    "one component": (Continuous((-2.0,), (2.0,)), RANDOM.standard_normal((6, 2)), RANDOM.standard_normal((6, 1))),
}


def tensors(name):
    space, policy, action = SPACES[name]
    return space, tf.constant(policy, tf.float32), tf.constant(action, tf.int32 if name == "discrete" else tf.float32)


@pytest.mark.parametrize("name", SPACES)
def test_log_probs_and_entropy_equal_the_references(name):
    space, policy, action = tensors(name)
    log_probs = distributions.log_prob(space, policy, action)
    expected = references.log_probs(space, policy.numpy(), action.numpy())
    np.testing.assert_allclose(log_probs, expected, rtol=1e-4, atol=1e-5)
    entropy = distributions.entropy(space, policy)
    np.testing.assert_allclose(entropy, references.entropies(space, policy.numpy()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SPACES)
def test_kl_divergence_is_the_expected_difference_of_log_probabilities(name):
    space, policy, _ = tensors(name)
    other = policy + tf.constant(0.3 * np.random.default_rng(1).standard_normal(policy.shape), tf.float32)
    found = distributions.kl_divergence(space, policy, other).numpy()
    if name == "discrete":
        logs = [[math.log(p) for p in np.exp(row) / np.exp(row).sum()] for row in np.concatenate([policy, other])]
        rows = len(policy)
        expected = [sum(math.exp(a) * (a - b) for a, b in zip(logs[i], logs[rows + i])) for i in range(rows)]
    else:
        nodes, weights = np.polynomial.hermite_e.hermegauss(20)  # exact for the squares in a Gaussian's logarithm
        expected = np.zeros(len(policy))
        means, deviations, others, other_deviations = (
            x.numpy().astype(np.float64) for p in (policy, other) for x in tf.split(p, 2, axis=1)
        )
        for row, component in np.ndindex(means.shape):
            mean, deviation = means[row, component], deviations[row, component]
            x = mean + np.exp(deviation) * nodes
            gaussian = np.log(references.gaussian_density(mean, deviation, x))
            another = -0.5 * ((x - others[row, component]) * np.exp(-other_deviations[row, component])) ** 2
            another -= other_deviations[row, component] + 0.5 * np.log(2 * np.pi)
            expected[row] += np.sum(weights * (gaussian - another)) / weights.sum()
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
    np.testing.assert_array_equal(distributions.kl_divergence(space, policy, policy), np.zeros(len(policy)))


def test_kl_divergence_of_several_components_is_their_sum_and_illegal_actions_count_nothing():
    space, random = MultiDiscrete((2, 3)), np.random.default_rng(2)
    one, other = (tf.constant(random.standard_normal((4, 5)), tf.float32) for _ in range(2))
    parts = [distributions.kl_divergence(Discrete(n), one[:, a:b], other[:, a:b]) for n, a, b in ((2, 0, 2), (3, 2, 5))]
    np.testing.assert_allclose(distributions.kl_divergence(space, one, other), parts[0] + parts[1], rtol=1e-6)
    for illegal in (ILLEGAL, -math.inf):
        masks = [tf.concat([x[:, :2], tf.fill([4, 1], illegal)], axis=1) for x in (one, other)]
        with tf.GradientTape() as tape:
            tape.watch(masks[1])
            divergence = distributions.kl_divergence(Discrete(3), *masks)
        np.testing.assert_allclose(divergence, parts[0], rtol=1e-6)
        assert np.isfinite(tape.gradient(divergence, masks[1])).all()


def test_entropy_limits_of_the_categorical():
    uniform = distributions.entropy(Discrete(8), tf.zeros([1, 8]))
    certain = distributions.entropy(Discrete(3), tf.constant([[0.0, -1e4, -1e4]]))
    np.testing.assert_allclose(uniform, [math.log(8)], rtol=1e-6)
    np.testing.assert_array_equal(certain, [0.0])  # not NaN


INFINITE = {
    "one of -inf": ([1.0, -math.inf, 0.5], [1.0, 0.5]),
    "a spread beyond float32": ([3e38, -3e38, 0.0], [3e38]),
    "below what float32 tells from 0": ([0.0, 0.2, -200.0], [0.0, 0.2]),
    "one action left": ([-math.inf, 7.0, -math.inf], [7.0]),
}


@pytest.mark.parametrize("name", INFINITE)
def test_actions_without_probability_count_nothing_and_have_no_gradient(name):
    """0 log 0 is 0: the entropy and its gradient are those of the other actions alone."""
    logits, others = (tf.constant([row]) for row in INFINITE[name])
    rows, gradients = [], []
    for policy in (logits, others):
        with tf.GradientTape() as tape:
            tape.watch(policy)
            rows.append(distributions.entropy(Discrete(policy.shape[1]), policy))
        gradients.append(tape.gradient(rows[-1], policy).numpy()[0])
    np.testing.assert_allclose(rows[0], rows[1], rtol=1e-6)
    counted = np.exp(logits.numpy()[0].astype(np.float64) - logits.numpy().max()) > np.finfo(np.float32).tiny
    np.testing.assert_allclose(gradients[0][counted], gradients[1], rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(gradients[0][~counted], 0.0)


def test_values_of_the_standard_normal():
    space = Continuous((-1.0, -1.0), (1.0, 1.0))
    at_mean = distributions.log_prob(space, tf.zeros([1, 4]), tf.zeros([1, 2]))
    np.testing.assert_allclose(at_mean, [-math.log(2 * math.pi)], rtol=1e-6)
    np.testing.assert_allclose(distributions.entropy(space, tf.zeros([1, 4])), [1 + math.log(2 * math.pi)], rtol=1e-6)


def test_deviations_are_not_clipped_nor_actions_to_their_bounds():
    space = Continuous((-1.0,), (1.0,))
    policy, action = tf.constant([[0.0, -8.0], [0.0, 3.0]]), tf.constant([[0.0], [30.0]])
    expected = [8.0 - 0.5 * math.log(2 * math.pi), -0.5 * (30 / math.exp(3)) ** 2 - 3.0 - 0.5 * math.log(2 * math.pi)]
    np.testing.assert_allclose(distributions.log_prob(space, policy, action), expected, rtol=1e-5)


@pytest.mark.parametrize("name", SPACES)
def test_the_mean_gradient_of_the_log_prob_is_zero(name):
    """E grad log pi = 0 over actions of the policy, by the weights of a grid: the score function's identity."""
    space, policy, _ = tensors(name)
    row = policy[:1]
    if isinstance(space, Discrete):
        grid, weights = np.arange(4), references.softmax(row.numpy())[0]
        actions = tf.constant(grid, tf.int32)
    else:
        random, size = np.random.default_rng(1), len(space.low)
        normal = random.standard_normal((20_000, size))
        normal = np.concatenate([normal, -normal]) / np.sqrt((normal**2).mean(axis=0))
        actions = tf.constant(row[:, :size] + tf.exp(row[:, size:]) * normal.astype(np.float32))
        weights = np.full(len(normal), 1 / len(normal))
    with tf.GradientTape() as tape:
        tape.watch(row)
        repeated = tf.repeat(row, len(weights), axis=0)
        total = tf.reduce_sum(distributions.log_prob(space, repeated, actions) * weights.astype(np.float32))
    np.testing.assert_allclose(tape.gradient(total, row), np.zeros(row.shape), atol=1e-4)


@pytest.mark.parametrize("name", SPACES)
def test_shapes_are_checked(name):
    space, policy, action = tensors(name)
    with pytest.raises(ValueError):
        distributions.log_prob(space, policy[:, :-1], action)
    with pytest.raises(ValueError):
        distributions.entropy(space, policy[:, :-1])
    with pytest.raises(ValueError):
        distributions.log_prob(space, policy, action[:, None])
    with pytest.raises(ValueError):
        distributions.log_prob(space, policy, action[:3])


@pytest.mark.parametrize("name", SPACES)
def test_log_probs_recorded_when_acting_are_those_of_the_learner(name):
    """So that the ratio of a policy to itself is 1."""
    space, policy, _ = tensors(name)
    action, recorded = draw_for(space)(policy.numpy(), 1, np.arange(6), np.full(6, 3))
    learned = distributions.log_prob(space, policy, tf.constant(action))
    np.testing.assert_allclose(learned, recorded, rtol=1e-5, atol=1e-5)
