"""Targets of Q-learning, the categorical projection, and the losses."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from ddrl.algorithms.dqn import DQNConfig
from ddrl.ops import q_learning
from tests import q_references, references

ATOMS, ACTIONS, ROWS = 11, 4, 40
CONFIG = DQNConfig(atoms=ATOMS, value_min=-3.0, value_max=2.0)
Z = q_learning.support(CONFIG.value_min, CONFIG.value_max, ATOMS)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def transitions(seed=0):
    """Rewards, some beyond the support, and discounts of 1 to 3 steps, some 0; as tensors."""
    random = np.random.default_rng(seed)
    reward = random.choice([-5.0, -1.0, 0.0, 0.25, 1.0, 4.0], ROWS).astype(np.float32)
    discount = random.choice([0.0, 0.99, 0.99**3, 1.0], ROWS).astype(np.float32)
    return tf.constant(reward), tf.constant(discount)


def test_support():
    np.testing.assert_allclose(Z, q_references.support(CONFIG), rtol=1e-6)
    published = q_learning.support(-10.0, 10.0, 51)
    assert published.dtype == np.float32 and published[25] == 0.0 and len(published) == 51


@pytest.mark.parametrize("double", [False, True])
def test_targets_equal_the_reference(double):
    config, (reward, discount) = DQNConfig(double=double), transitions()
    target, online = normal(ROWS, ACTIONS), normal(ROWS, ACTIONS, seed=1)
    chosen = q_learning.greedy(tf.constant(online if double else target))
    expected = q_references.targets(target, online, reward, discount, config)
    found = q_learning.n_step_targets(reward, discount, q_learning.of_action(tf.constant(target), chosen))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    each = q_learning.n_step_targets(reward, discount, tf.constant(target))
    np.testing.assert_array_equal(q_learning.of_action(each, chosen), found)


@pytest.mark.parametrize("double", [False, True])
def test_projected_targets_equal_the_reference(double):
    config, (reward, discount) = DQNConfig(atoms=ATOMS, value_min=-3.0, value_max=2.0, double=double), transitions()
    target, online = 2 * normal(ROWS, ACTIONS, ATOMS), 2 * normal(ROWS, ACTIONS, ATOMS, seed=1)
    chosen = q_learning.greedy(q_learning.expected_values(tf.constant(online if double else target), Z))
    found = q_learning.projected_targets(reward, discount, q_learning.of_action(tf.constant(target), chosen), Z)
    np.testing.assert_allclose(found, q_references.targets(target, online, reward, discount, config), atol=2e-6)
    each = q_learning.projected_targets(reward, discount, tf.constant(target), Z)
    assert each.shape == target.shape
    np.testing.assert_allclose(q_learning.of_action(each, chosen), found, atol=1e-6)
    np.testing.assert_allclose(np.sum(found, axis=1), 1.0, rtol=2e-6)


def test_the_lowest_of_equal_actions_is_chosen():
    assert q_learning.greedy(tf.constant([[0.0, 5.0, 5.0]])).numpy().tolist() == [1]


def test_projection_keeps_mass_and_mean_within_the_support():
    random = np.random.default_rng(2)
    probabilities = references.softmax(3 * normal(200, 7)).astype(np.float32)
    returns = random.uniform(Z[0], Z[-1], (200, 7)).astype(np.float32)
    found = q_learning.project(tf.constant(probabilities), tf.constant(returns), Z).numpy()
    assert (found >= 0).all()
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=2e-6)
    np.testing.assert_allclose(found @ Z, (probabilities * returns).sum(axis=1), atol=1e-5)


def test_projection_of_returns_that_are_atoms_is_exact():
    support = q_learning.support(-10.0, 10.0, 51)
    probabilities = tf.eye(51)
    found = q_learning.project(probabilities, tf.constant(np.tile(support, (51, 1))), support)
    np.testing.assert_allclose(found, np.eye(51), atol=5e-6)


@pytest.mark.parametrize("beyond, end", [(-50.0, 0), (50.0, -1)])
def test_returns_beyond_the_support_count_as_its_ends(beyond, end):
    probabilities = references.softmax(normal(3, ATOMS)).astype(np.float32)
    found = q_learning.project(tf.constant(probabilities), tf.fill([3, ATOMS], beyond), Z).numpy()
    np.testing.assert_allclose(found[:, end], 1.0, rtol=1e-6)


def test_a_terminal_transition_is_its_reward():
    logits = tf.constant(normal(1, ACTIONS, ATOMS))
    reward, zero = tf.constant([0.75]), tf.zeros(1)
    found = q_learning.projected_targets(reward, zero, logits[:, 0], Z).numpy()[0]
    expected = np.zeros(ATOMS)
    expected[[7, 8]] = 0.5  # of the atoms at 0.5 and 1.0
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("count", [2, 51])
def test_the_mean_of_a_projected_target_is_the_target_of_the_means(count):
    """As long as the support holds all returns; with two atoms a distribution is nothing but its mean."""
    atoms, (reward, discount) = q_learning.support(-100.0, 100.0, count), transitions()
    discount *= 0.9
    logits = tf.constant(normal(ROWS, ACTIONS, count))
    q = q_learning.expected_values(logits, atoms)
    found = tf.linalg.matvec(q_learning.projected_targets(reward, discount, logits, atoms), atoms)
    np.testing.assert_allclose(found, q_learning.n_step_targets(reward, discount, q), atol=1e-4)


def test_no_gradient_flows_through_targets():
    values, logits = tf.constant(normal(ROWS, ACTIONS)), tf.constant(normal(ROWS, ACTIONS, ATOMS))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([values, logits])
        plain = q_learning.n_step_targets(*transitions(), values)
        projected = q_learning.projected_targets(*transitions(), logits, Z)
    assert tape.gradient(plain, values) is None and tape.gradient(projected, logits) is None


@pytest.mark.parametrize("more", [(), (ATOMS,)])
def test_dueling(more):
    value, advantage = normal(ROWS, 1, *more), normal(ROWS, ACTIONS, *more, seed=1)
    found = q_learning.dueling_values(tf.constant(value), tf.constant(advantage)).numpy()
    for row in range(ROWS):
        np.testing.assert_allclose(found[row], q_references.dueling(value[row], advantage[row]), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.mean(axis=1), value[:, 0], atol=1e-5)
    with pytest.raises(ValueError):
        q_learning.dueling_values(tf.constant(advantage), tf.constant(advantage))


def test_expected_values():
    logits = normal(5, ACTIONS, ATOMS)
    expected = [q_references.expected(row, CONFIG) for row in logits]
    np.testing.assert_allclose(q_learning.expected_values(tf.constant(logits), Z), expected, rtol=1e-4, atol=1e-6)


def test_of_action():
    values = normal(ROWS, ACTIONS, ATOMS)
    action = np.random.default_rng(0).integers(ACTIONS, size=ROWS).astype(np.int32)
    np.testing.assert_array_equal(
        q_learning.of_action(tf.constant(values), tf.constant(action)), values[np.arange(ROWS), action]
    )


def test_huber_and_its_gradient():
    errors = tf.constant([-3.0, -1.0, -0.5, 0.0, 0.25, 1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(errors)
        losses = q_learning.huber(errors)
    np.testing.assert_allclose(losses, [2.5, 0.5, 0.125, 0.0, 0.03125, 0.5, 1.5])
    np.testing.assert_allclose(tape.gradient(losses, errors), [-1.0, -1.0, -0.5, 0.0, 0.25, 1.0, 1.0])
    np.testing.assert_allclose(q_learning.squared(errors)[:3], [4.5, 0.5, 0.125])


def test_the_divergence_of_a_perfect_prediction_is_zero():
    logits = 3 * normal(ROWS, ATOMS)
    target = references.softmax(logits).astype(np.float32)
    losses, divergences = q_learning.cross_entropies(tf.constant(target), tf.constant(logits))
    np.testing.assert_allclose(losses, references.entropy(logits), rtol=1e-4)
    assert (divergences.numpy() >= 0).all() and divergences.numpy().max() < 1e-5


def test_certain_targets_and_far_predictions_stay_finite():
    target, logits = np.eye(ATOMS, dtype=np.float32)[:2], np.zeros((2, ATOMS), np.float32)
    logits[0, 1], logits[1, 0] = 200.0, -300.0
    losses, divergences = q_learning.cross_entropies(tf.constant(target), tf.constant(logits))
    np.testing.assert_allclose(losses[0], 200.0, rtol=1e-6)
    assert np.isfinite(divergences).all()
