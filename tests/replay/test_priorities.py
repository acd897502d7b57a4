"""Proportional prioritization: what is drawn how often, with which weights, and what bad priorities do."""

from __future__ import annotations

import numpy as np
import pytest

from ddrl.errors import UsageError
from ddrl.replay.replay import Replay
from ddrl.replay.settings import ReplayConfig
from tests.replay.simulators import Simulators

GOES_ON = (1, 0, 0, 0, 0)


def filled(capacity=40, steps=30, exponent=0.6, n_step=1, seed=0, **options):
    simulators = Simulators(2, 1, frame=(1,), dtype=np.float32, seed=seed, **options)
    replay = Replay(capacity, 2, (1,), np.float32, n_step=n_step, priority_exponent=exponent)
    replay.add(simulators.unroll(steps))
    return replay, simulators


def all_keys(replay):
    random = np.random.default_rng(1)
    return np.unique(np.concatenate([replay.sample(random, 64).key for _ in range(100)]))


def chi_square(counts, expected):
    """Deviations from the mean of the chi-square statistic, in standard deviations: above 4 once in 30,000 tests."""
    statistic, freedom = ((counts - expected) ** 2 / expected).sum(), len(counts) - 1
    return (statistic - freedom) / np.sqrt(2 * freedom)


@pytest.mark.parametrize("exponent", (0.0, 0.5, 1.0))
@pytest.mark.parametrize("batch_size", (1, 32))
def test_transitions_are_drawn_in_proportion_to_their_priorities(exponent, batch_size):
    replay, _ = filled(exponent=exponent)
    keys = all_keys(replay)
    assert len(keys) == replay.size > 25
    priorities = np.random.default_rng(2).random(len(keys)) + 0.05
    replay.set_priorities(keys, priorities)
    random, draws = np.random.default_rng(3), 40_000 if batch_size > 1 else 10_000
    drawn = np.concatenate([replay.sample(random, batch_size).key for _ in range(draws // batch_size)])
    counts = np.array([(drawn == key).sum() for key in keys])
    assert counts.sum() == draws
    chances = priorities**exponent / (priorities**exponent).sum()
    assert chi_square(counts, draws * chances) < 4
    if exponent:
        assert chi_square(counts, np.full(len(keys), draws / len(keys))) > 10, "the test could not tell"


def test_a_stratified_batch_has_one_transition_of_each_part():
    """Equal priorities and as many draws as transitions: the strata are the transitions, in order."""
    replay, _ = filled(40, 40, exponent=1.0, chances=GOES_ON)
    assert replay.size == 40
    np.testing.assert_array_equal(np.sort(replay.sample(np.random.default_rng(0), 40).key), all_keys(replay))


def test_uniform_draws_are_independent_and_weigh_1():
    replay, _ = filled(40, 40, exponent=0.0, chances=GOES_ON)
    sample = replay.sample(np.random.default_rng(0), 40, importance_exponent=0.7)
    assert len(np.unique(sample.key)) < 35
    np.testing.assert_array_equal(sample.weight, np.ones(40, np.float32))


@pytest.mark.parametrize("beta", (0.0, 0.4, 1.0))
def test_importance_weights(beta):
    replay, _ = filled(exponent=0.7)
    keys = all_keys(replay)
    priorities = np.linspace(0.1, 3.0, len(keys))
    replay.set_priorities(keys, priorities)
    sample = replay.sample(np.random.default_rng(0), 16, beta)
    chances = dict(zip(keys.tolist(), priorities**0.7 / (priorities**0.7).sum(), strict=True))
    expected = np.array([(len(keys) * chances[key]) ** -beta for key in sample.key.tolist()])
    np.testing.assert_allclose(sample.weight, expected / expected.max(), rtol=1e-4)
    assert sample.weight.max() == 1 and sample.weight.dtype == np.float32


def test_new_transitions_get_the_largest_priority_so_far():
    replay, simulators = filled(1000, 10, exponent=1.0, chances=GOES_ON)
    old = all_keys(replay)
    replay.set_priorities(old[:2], np.array([7.0, 1.0]))
    replay.set_priorities(old[:1], np.array([0.5]))  # the largest so far stays 7
    replay.add(simulators.unroll(10))
    assert shares(replay, all_keys(replay)[20:]) == pytest.approx(20 * 7 / (20 * 7 + 18 + 1 + 0.5), abs=0.01)


def shares(replay, keys):
    random = np.random.default_rng(0)
    return np.mean([np.isin(replay.sample(random, 500).key, keys).mean() for _ in range(40)])


def test_the_last_of_equal_keys_wins():
    replay, _ = filled(exponent=1.0)
    keys = all_keys(replay)
    replay.set_priorities(keys, np.ones(len(keys)))
    replay.set_priorities(np.array([keys[3], keys[5], keys[3]]), np.array([1000.0, 1.0, 0.0]))
    assert shares(replay, keys[3:4]) == 0


def test_a_priority_of_0_can_be_drawn_again():
    replay, _ = filled(exponent=1.0)
    keys = all_keys(replay)
    replay.set_priorities(keys, np.zeros(len(keys)))
    np.testing.assert_array_equal(all_keys(replay), keys)


def test_keys_of_transitions_that_made_room_are_ignored_and_counted():
    replay, simulators = filled(20, 10, exponent=1.0, chances=GOES_ON)
    old = all_keys(replay)
    replay.add(simulators.unroll(6))
    before = replay._tree.weights.copy()
    replay.set_priorities(old[:12], np.full(12, 50.0))  # the transitions of 6 rows are gone
    assert replay.ignored == 12
    np.testing.assert_array_equal(replay._tree.weights, before)
    replay.set_priorities(old[10:14], np.full(4, 2.0))
    assert replay.ignored == 14
    assert np.count_nonzero(replay._tree.weights != before) == 2
    replay.check()
    replay.add(simulators.unroll(1))
    assert replay._tree.weights.max() == pytest.approx(2.0, abs=1e-5), "an ignored priority is not the largest so far"


@pytest.mark.parametrize("bad", (float("nan"), -0.1, float("inf"), 1e300))
def test_a_bad_priority_changes_nothing(bad):
    replay, _ = filled()
    keys, before = all_keys(replay), replay._tree.weights.copy()
    with pytest.raises(UsageError, match="not a number: 1 of 3, "):
        replay.set_priorities(keys[:3], np.array([1.0, bad, 2.0]))
    np.testing.assert_array_equal(replay._tree.weights, before)
    replay.check()


def test_keys_that_were_never_given_are_refused():
    replay, _ = filled(40, 30, n_step=3)
    for keys in ([-1], [2 * 28], [10_000]):
        with pytest.raises(ValueError, match="have been given out so far"):
            replay.set_priorities(np.array(keys), np.ones(1))
    with pytest.raises(ValueError, match="priorities"):
        replay.set_priorities(np.array([1, 2]), np.ones((2, 1)))


@pytest.mark.parametrize("seed", range(4))
def test_random_operations_keep_the_invariants(seed):
    """Additions, updates and samples in any order: the parts agree, and what is drawn can be updated."""
    random = np.random.default_rng(seed)
    replay, simulators = filled(30, 1, exponent=0.8, n_step=2, seed=seed)
    known = np.zeros(0, np.int64)
    for _ in range(150):
        if random.random() < 0.4:
            replay.add(simulators.unroll(int(random.integers(1, 25))))
        elif replay.size:
            sample = replay.sample(random, int(random.integers(1, 40)), 0.5)
            assert np.isfinite(sample.weight).all() and (sample.weight > 0).all()
            known = np.concatenate([known[-200:], sample.key])
            keys = random.choice(known, 20)
            replay.set_priorities(keys, random.exponential(size=20))
        replay.check()
    assert replay.ignored


def test_the_exponent_of_the_weights_goes_linearly_to_its_end():
    settings = {"importance_exponent": 0.4, "importance_exponent_end": 1.0, "importance_updates": 100}
    config = ReplayConfig(priority_exponent=0.6, **settings)
    assert [config.importance(updates, 4.0) for updates in (0, 50, 100, 1000)] == pytest.approx([0.4, 0.7, 1.0, 1.0])
    assert ReplayConfig(**settings).importance(50, 4.0) == 0.0, "uniform draws need no weights"
    by_steps = ReplayConfig(priority_exponent=0.6, importance_agent_steps=200, **settings)
    assert [by_steps.importance(updates, 4.0) for updates in (0, 25, 50, 100)] == pytest.approx([0.4, 0.7, 1.0, 1.0])
