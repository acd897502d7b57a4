from __future__ import annotations

import numpy as np
import pytest

from ddrl.ops.draws import draw_actions, draw_epsilon_greedy, draw_for, epsilon_greedy, noisy, uniforms
from ddrl.types import Continuous
from tests import references


def test_a_draw_depends_on_seed_environment_and_counter_only():
    ids, counters = np.arange(50), np.arange(50) * 3
    whole = uniforms(7, ids, counters)
    order = np.random.default_rng(0).permutation(50)
    np.testing.assert_array_equal(uniforms(7, ids[order], counters[order]), whole[order])
    alone = [uniforms(7, ids[i : i + 1], counters[i : i + 1])[0] for i in range(50)]
    np.testing.assert_array_equal(alone, whole)
    assert not (uniforms(8, ids, counters) == whole).any()


def test_seeds_above_64_bits_count_modulo_2_to_the_64():
    """An evaluation adds to the seed of its run, which may be the largest one."""
    ids, counters = np.arange(50), np.arange(50) * 3
    for seed in (0, 3, 2**64 - 1):
        np.testing.assert_array_equal(uniforms(2**64 + seed, ids, counters), uniforms(seed, ids, counters))
    assert not (uniforms(2**64 - 1, ids, counters) == uniforms(0, ids, counters)).any()


def test_streams_do_not_repeat_each_other():
    ids, counters = (grid.ravel() for grid in np.meshgrid(np.arange(200), np.arange(200)))
    numbers = np.concatenate([uniforms(seed, ids, counters) for seed in (0, 1, 2)])
    assert len(np.unique(numbers)) == len(numbers)
    assert numbers.min() >= 0.0 and numbers.max() < 1.0


@pytest.mark.parametrize("along", ["counters", "environments", "seeds"])
def test_uniform_along_each_argument(along):
    n, bins = 50_000, 50
    zeros, numbers = np.zeros(n, np.int64), np.arange(n)
    if along == "seeds":
        drawn = np.array([uniforms(seed, zeros[:1], zeros[:1])[0] for seed in range(5_000)])
    else:
        arguments = (zeros, numbers) if along == "counters" else (numbers, zeros)
        drawn = uniforms(3, *arguments)
    counts = np.histogram(drawn, bins, (0.0, 1.0))[0]
    expected = len(drawn) / bins
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert 20.0 < chi_square < 86.0  # 0.01% and 99.9% of 49 degrees of freedom
    correlation = np.corrcoef(drawn[:-1], drawn[1:])[0, 1]
    assert abs(correlation) < 4.5 / np.sqrt(len(drawn))


def test_frequencies_and_log_probabilities_are_those_of_the_softmax():
    logits = np.array([[1.0, -2.0, 0.5, 3.0]], np.float32).repeat(40_000, axis=0)
    uniform = uniforms(1, np.zeros(40_000, np.int64), np.arange(40_000))
    actions, log_prob = draw_actions(logits, uniform)
    probabilities = references.softmax(logits[0])
    counts = np.bincount(actions, minlength=4)
    chi_square = ((counts - 40_000 * probabilities) ** 2 / (40_000 * probabilities)).sum()
    assert chi_square < 16.3  # 99.9% of 3 degrees of freedom
    np.testing.assert_allclose(log_prob, np.log(probabilities)[actions], rtol=1e-6)
    assert actions.dtype == np.int32 and log_prob.dtype == np.float32


def test_extremes():
    logits = np.array([[0.0, -200.0, 0.0], [1e4, 0.0, 0.0], [-1e4, -1e4, 0.0]], np.float32)
    for uniform in (0.0, np.nextafter(1.0, 0.0)):
        actions, log_prob = draw_actions(logits, np.full(3, uniform))
        assert actions[0] in (0, 2) and actions[1] == 0 and actions[2] == 2
        assert np.isfinite(log_prob).all()
    assert draw_actions(np.zeros((1, 1), np.float32), np.array([0.9]))[0] == 0


def test_gaussian_actions_have_the_policys_moments_and_densities():
    policy = np.tile(np.float32([0.5, -2.0, np.log(0.3), np.log(2.0)]), (20_000, 1))
    draw = draw_for(Continuous((-1.0, -1.0), (1.0, 1.0)))
    actions, log_prob = draw(policy, 3, np.arange(20_000), np.full(20_000, 11))
    assert actions.dtype == log_prob.dtype == np.float32 and actions.shape == (20_000, 2)
    np.testing.assert_allclose(actions.mean(axis=0), [0.5, -2.0], atol=0.05)
    np.testing.assert_allclose(actions.std(axis=0), [0.3, 2.0], rtol=0.03)
    assert abs(np.corrcoef(actions.T)[0, 1]) < 0.03
    density = 1.0
    for i, (mean, deviation) in enumerate([(0.5, 0.3), (-2.0, 2.0)]):
        density = (
            density * np.exp(-((actions[:, i] - mean) ** 2) / (2 * deviation**2)) / (deviation * np.sqrt(2 * np.pi))
        )
    np.testing.assert_allclose(np.exp(log_prob), density, rtol=1e-4)


def test_gaussian_draws_depend_on_nothing_but_environment_and_count():
    draw = draw_for(Continuous((-1.0,) * 3, (1.0,) * 3))
    policy = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)
    whole = draw(policy, 3, np.arange(5), np.arange(5) * 2)
    for i in range(5):
        alone = draw(policy[i : i + 1], 3, np.array([i]), np.array([i * 2]))
        np.testing.assert_array_equal(alone[0][0], whole[0][i])
        np.testing.assert_array_equal(alone[1][0], whole[1][i])
    assert (draw(policy, 3, np.arange(5), np.arange(5) * 2 + 1)[0] != whole[0]).all()


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_frequencies_and_log_probabilities_are_those_of_epsilon_greedy(epsilon):
    count = 30_000
    q = np.tile(np.float32([1.0, -2.0, 3.0, 0.0]), (count, 1))
    actions, log_prob = epsilon_greedy(lambda ids, counts: epsilon)(q, 5, np.arange(count), np.full(count, 3))
    assert actions.dtype == np.int32 and log_prob.dtype == np.float32
    probabilities = np.full(4, epsilon / 4)
    probabilities[2] += 1.0 - epsilon
    np.testing.assert_allclose(np.bincount(actions, minlength=4) / count, probabilities, atol=0.012)
    np.testing.assert_allclose(np.exp(log_prob), probabilities[actions], rtol=1e-6)


def test_the_lowest_of_equal_values_is_greedy():
    q = np.float32([[2.0, 2.0, 1.0], [0.0, 5.0, 5.0], [0.0, 0.0, 0.0]])
    half = np.full(3, 0.5)
    assert draw_epsilon_greedy(q, 0.5, half, half)[0].tolist() == [0, 1, 0]  # explores below epsilon only


def test_random_actions_are_within_range_and_epsilon_may_differ_by_environment():
    q = np.tile(np.float32([9.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]), (3, 1))
    last = np.full(3, np.nextafter(1.0, 0.0))
    actions, log_prob = draw_epsilon_greedy(q, np.array([0.0, 0.2, 1.0]), np.full(3, 0.1), last)
    assert actions.tolist() == [0, 6, 6]
    np.testing.assert_allclose(np.exp(log_prob), [1.0, 0.2 / 7, 1 / 7], rtol=1e-6)


def test_epsilon_greedy_draws_depend_on_nothing_but_environment_and_count():
    draw, q = (
        epsilon_greedy(lambda ids, counts: 0.5),
        np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32),
    )
    whole = draw(q, 3, np.arange(50), np.arange(50) * 2)[0]
    alone = [draw(q[i : i + 1], 3, np.array([i]), np.array([i * 2]))[0][0] for i in range(50)]
    np.testing.assert_array_equal(alone, whole)
    assert (draw(q, 3, np.arange(50), np.arange(50) * 2 + 1)[0] != whole).any()


def noise_of(policy, space, deviation, at_random=False, seed=1, count=0):
    ids = np.arange(len(policy))
    return noisy(space, deviation, lambda ids, counts: at_random)(policy, seed, ids, np.full(len(policy), count))


def test_noise_has_its_deviation_in_units_of_half_the_range_and_no_density():
    space = Continuous((-2.0, 0.0), (2.0, 20.0))
    policy = np.tile(np.float32([0.3, 9.0]), (20_000, 1))
    actions, log_prob = noise_of(policy, space, 0.1)
    np.testing.assert_allclose(actions.mean(axis=0), [0.3, 9.0], atol=0.05)
    np.testing.assert_allclose(actions.std(axis=0), [0.2, 1.0], rtol=0.02)
    assert actions.dtype == np.float32 and not log_prob.any()
    np.testing.assert_array_equal(noise_of(policy, space, 0.0)[0], policy)


def test_noisy_actions_are_clipped_to_their_bounds():
    space = Continuous((-1.0,), (1.0,))
    actions, _ = noise_of(np.full((1000, 1), 0.9, np.float32), space, 0.5)
    assert actions.max() == 1.0 and (np.abs(actions) <= 1.0).all() and 0.3 < (actions == 1.0).mean() < 0.55


def test_actions_at_random_are_uniform_within_the_bounds_whatever_the_policy():
    space = Continuous((-2.0, 0.0), (2.0, 20.0))
    actions, _ = noise_of(np.full((20_000, 2), 1.5, np.float32), space, 0.3, at_random=True)
    for column, low, high in zip(actions.T, space.low, space.high):
        shares, _ = np.histogram(column, bins=10, range=(low, high))
        np.testing.assert_allclose(shares / len(column), 0.1, atol=0.01)


def test_noisy_draws_depend_on_nothing_but_environment_and_count():
    space, policy = Continuous((-1.0,) * 2, (1.0,) * 2), np.zeros((6, 2), np.float32)
    draw, ids, counts = noisy(space, 0.3, lambda ids, counts: counts < 2), np.arange(6), np.arange(6)
    whole, _ = draw(policy, 3, ids, counts)
    assert len(np.unique(whole)) == whole.size
    order = np.array([4, 0, 2])
    np.testing.assert_array_equal(draw(policy[:3], 3, ids[order], counts[order])[0], whole[order])
    assert not np.array_equal(draw(policy, 4, ids, counts)[0], whole)
