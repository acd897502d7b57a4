"""The sum tree against a plain array, under random operations."""

from __future__ import annotations

import numpy as np
import pytest

from ddrl.replay.sum_tree import SumTree


@pytest.mark.parametrize("size", (1, 2, 3, 5, 16, 17, 100, 1023))
@pytest.mark.parametrize("seed", range(3))
def test_random_operations_agree_with_an_array(size, seed):
    random = np.random.default_rng([size, seed])
    tree, plain = SumTree(size), np.zeros(size)
    for _ in range(30):
        count = random.integers(1, 2 * size + 1)
        items = random.integers(size, size=count)  # with repetitions
        weights = random.random(count) * 10.0 ** random.integers(-8, 8, size=count) * (random.random(count) < 0.7)
        tree.set(items, weights)
        for item, weight in zip(items, weights, strict=True):  # the last of equal ones wins
            plain[item] = weight
        tree.check()
        np.testing.assert_array_equal(tree.weights, plain)
        assert tree.total == pytest.approx(plain.sum(), rel=1e-14)


@pytest.mark.parametrize("size", (1, 2, 7, 64, 100))
def test_find_is_the_inverse_of_the_cumulated_weights(size):
    random = np.random.default_rng(size)
    weights = random.integers(0, 5, size).astype(float)  # whole numbers: all sums are exact
    weights[random.integers(size)] = 3.0
    tree = SumTree(size)
    tree.set_all(weights)
    masses = np.concatenate([np.arange(weights.sum()), random.random(200) * weights.sum()])
    expected = np.searchsorted(np.cumsum(weights), masses, side="right")
    np.testing.assert_array_equal(tree.find(masses), expected)


def test_an_item_of_weight_0_is_never_found_however_sums_round():
    random = np.random.default_rng(0)
    for size in (3, 11, 50):
        weights = 10.0 ** random.uniform(-200, 200, size) * (random.random(size) < 0.3)
        weights[size // 2] = 1e-300
        tree = SumTree(size)
        tree.set(np.arange(size), weights)
        masses = np.concatenate([random.random(500) * tree.total, [0.0, tree.total, np.nextafter(tree.total, 0)]])
        assert (weights[tree.find(masses)] > 0).all()


def test_the_sums_do_not_depend_on_the_way_to_the_weights():
    random = np.random.default_rng(1)
    one, other = SumTree(37), SumTree(37)
    for _ in range(200):
        one.set(random.integers(37, size=5), random.random(5))
    other.set_all(one.weights)
    masses = random.random(1000) * one.total
    assert one.total == other.total
    np.testing.assert_array_equal(one.find(masses), other.find(masses))


def test_the_check_finds_a_wrong_sum():
    tree = SumTree(9)
    tree.set(np.array([2]), np.array([1.0]))
    tree.weights[3] = 1.0
    with pytest.raises(RuntimeError, match="level 1"):
        tree.check()


def test_an_empty_tree_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        SumTree(0)


def found_level_by_level(tree, masses):
    """What `find` does, with one NumPy operation after the other."""
    items = np.zeros(len(masses), np.int64)
    for parts in tree._levels()[-2::-1]:
        items = 2 * items
        left, right = parts[items], parts[items + 1]
        beyond = (masses >= left) & (right > 0.0)
        masses = masses - np.where(beyond, left, 0.0)
        items = items + beyond
    return items


@pytest.mark.parametrize("size", (1, 2, 3, 1000, 4097))
@pytest.mark.parametrize("count", (0, 1, 512))
def test_items_found_are_numpys_to_the_bit(size, count):
    random, tree = np.random.default_rng([size, count]), SumTree(size)
    tree.set_all(random.random(size) * 10.0 ** random.integers(-300, 300, size))
    masses = random.random(count) * tree.total
    np.testing.assert_array_equal(tree.find(masses), found_level_by_level(tree, masses))
    tree.set(random.integers(size, size=count), np.full(count, 5e-324))  # denormal
    tree.check()


@pytest.mark.parametrize("items", ([-1], [3, 9]))
def test_items_that_are_not_there_are_refused(items):
    with pytest.raises(IndexError, match=f"items {items[0]} to {items[-1]} of a sum tree of 9"):
        SumTree(9).set(np.array(items), np.ones(len(items)))
