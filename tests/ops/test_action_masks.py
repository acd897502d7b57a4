"""Masks are never violated: a million draws of each kind, and numbers at the edges."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

from ddrl.evaluation.actions import GreedyActions, GreedyComponents
from ddrl.ops import distributions
from ddrl.ops.action_masks import ILLEGAL, legal, masked, nth_legal
from ddrl.ops.draws import draw_actions, draw_epsilon_greedy, draw_for, epsilon_greedy, uniforms
from ddrl.types import Discrete, MultiDiscrete

DRAWS, ACTIONS = 1_000_000, 6
SPACE = MultiDiscrete((4, 2))


def masked_outputs(rows, counts, seed=0, scale=3.0):
    """Outputs <float32>[rows, sum of counts], and masks that allow at least one action of each component."""
    random = np.random.default_rng(seed)
    masks = []
    for count in counts:
        mask = random.random((rows, count)) < 0.4
        mask[np.arange(rows), random.integers(count, size=rows)] = True
        masks.append(mask)
    mask = np.concatenate(masks, axis=1)
    outputs = (scale * random.standard_normal(mask.shape)).astype(np.float32)
    return np.where(mask, outputs, np.float32(ILLEGAL)), mask


def allowed(mask, actions, counts):
    """Whether each component of the actions is."""
    starts = np.cumsum([0, *counts[:-1]])
    return np.take_along_axis(mask, actions.reshape(len(actions), -1) + starts, axis=1)


@pytest.mark.parametrize("space", [Discrete(ACTIONS), SPACE])
def test_draws_from_the_policy(space):
    counts = space.counts if space is SPACE else (ACTIONS,)
    outputs, mask = masked_outputs(DRAWS, counts)
    actions, log_prob = draw_for(space)(outputs, 3, np.arange(DRAWS), np.zeros(DRAWS, np.int64))
    assert allowed(mask, actions, counts).all() and np.isfinite(log_prob).all()
    expected = distributions.log_prob(space, tf.constant(outputs), tf.constant(actions))
    np.testing.assert_allclose(log_prob, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
def test_epsilon_greedy_draws(epsilon):
    outputs, mask = masked_outputs(DRAWS, (ACTIONS,))
    draw = epsilon_greedy(lambda ids, counts: np.full(len(ids), epsilon))
    with np.errstate(divide="ignore"):  # log 0 of what greedy draws never do
        actions, log_prob = draw(outputs, 3, np.arange(DRAWS), np.zeros(DRAWS, np.int64))
    assert allowed(mask, actions, (ACTIONS,)).all()
    chance = epsilon / mask.sum(axis=1) + (1.0 - epsilon) * (actions == outputs.argmax(axis=1))
    np.testing.assert_allclose(np.exp(log_prob), chance, rtol=1e-5)


def test_evaluation():
    outputs, mask = masked_outputs(DRAWS, (ACTIONS,))
    rows = np.arange(DRAWS)
    for epsilon, repeat in ((0.0, 1), (0.5, 0)):  # action 1 is forced from the first choice on, where it is legal
        act = GreedyActions(lambda seen: outputs, DRAWS, repeat, epsilon)
        actions = act(outputs, rows)
        assert allowed(mask, actions, (ACTIONS,)).all()
    assert (GreedyActions(lambda seen: outputs, DRAWS, 1)(outputs, rows) == 1).mean() == mask[:, 1].mean()
    outputs, mask = masked_outputs(DRAWS, SPACE.counts)
    for epsilon in (0.0, 0.5):
        actions = GreedyComponents(lambda seen: outputs, SPACE, DRAWS, epsilon)(outputs, rows)
        assert actions.dtype == np.int32 and allowed(mask, actions, SPACE.counts).all()


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2.0**-53])
def test_numbers_at_the_ends(uniform):
    """Rounding must not carry a draw over the first or last legal action."""
    outputs, mask = masked_outputs(20_000, (ACTIONS,), scale=0.1)
    numbers = np.full(len(outputs), uniform)
    for actions in (
        draw_actions(outputs, numbers)[0],
        draw_epsilon_greedy(outputs, 1.0, np.zeros(len(outputs)), numbers)[0],
        nth_legal(outputs, numbers),
    ):
        assert allowed(mask, actions, (ACTIONS,)).all()
    expected = mask.argmax(axis=1) if uniform == 0.0 else ACTIONS - 1 - mask[:, ::-1].argmax(axis=1)
    np.testing.assert_array_equal(draw_actions(outputs, numbers)[0], expected)


def test_random_actions_are_uniform_among_the_legal():
    outputs = np.float32([[1.0, ILLEGAL, 0.0, ILLEGAL, -5.0]]).repeat(30_000, axis=0)
    actions = nth_legal(outputs, uniforms(0, np.arange(30_000), np.ones(30_000, np.int64)))
    np.testing.assert_allclose(np.bincount(actions, minlength=5) / 30_000, [1 / 3, 0, 1 / 3, 0, 1 / 3], atol=0.01)


@pytest.mark.parametrize("space", [Discrete(ACTIONS), SPACE])
def test_entropies_and_gradients_know_legal_actions_alone(space):
    counts = space.counts if space is SPACE else (ACTIONS,)
    outputs, mask = masked_outputs(50, counts)
    raw = tf.constant(np.random.default_rng(2).standard_normal(outputs.shape).astype(np.float32))
    with tf.GradientTape() as tape:
        tape.watch(raw)
        policy = masked(raw, tf.constant(mask))
        entropies = distributions.entropy(space, policy)
    expected, starts = np.zeros(50), np.cumsum([0, *counts])
    for row, start, stop in ((b, s, e) for b in range(50) for s, e in itertools.pairwise(starts)):
        logits = raw.numpy()[row, start:stop][mask[row, start:stop]].astype(np.float64)
        chances = np.exp(logits) / np.exp(logits).sum()
        expected[row] -= (chances * np.log(chances)).sum()
    np.testing.assert_allclose(entropies, expected, atol=1e-5)
    gradient = tape.gradient(entropies, raw).numpy()
    assert np.isfinite(gradient).all() and not gradient[~mask].any() and gradient[mask].any()
    np.testing.assert_array_equal(legal(policy.numpy()), mask)
