"""Averages equal NumPy's to the bit; squared norms, whose sums have an order of their own, within 1e-13 of them."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from ddrl.exchange.averaging import average_of, squared_norm
from ddrl.kernels.updates import BLOCK

SIZES = [0, 1, 7, BLOCK - 1, BLOCK, 2 * BLOCK + 3]


def numpy_average(gradients):
    """Operation by operation, in the order of the gradients."""
    total = gradients[0].copy()
    for gradient in gradients[1:]:
        total += gradient
    return total * np.float32(1.0 / len(gradients))


def gradients_of(size, members, wild=False):
    random = np.random.default_rng([size, members])
    gradients = (random.standard_normal((members, size)) * 10.0 ** random.uniform(-30, 25, size)).astype(np.float32)
    for every, value in ((5, np.nan), (7, np.inf), (11, -np.inf), (3, 1e-40), (13, -0.0)) if wild else ():
        gradients[random.integers(members), ::every] = value
    return list(gradients)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("members", [1, 2, 5])
def test_an_average_and_its_squared_norm(size, members):
    gradients = gradients_of(size, members)
    average, squared = average_of(gradients, np.full(size, np.nan, np.float32))
    np.testing.assert_array_equal(average, numpy_average(gradients) if members > 1 else gradients[0])
    exact = np.square(average.astype(np.float64)).sum()
    assert np.isfinite(squared) and squared == pytest.approx(exact, rel=1e-13), "it leaves float32, and does not matter"


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("members", [1, 3])
def test_what_is_not_finite_is_in_the_average_and_in_its_norm(members):
    gradients = gradients_of(2 * BLOCK + 3, members, wild=True)
    average, squared = average_of(gradients, np.empty(2 * BLOCK + 3, np.float32))
    np.testing.assert_array_equal(average, numpy_average(gradients))
    assert not np.isfinite(squared)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 5, 16, 2 * BLOCK + 2])
def test_one_number_is_enough_for_a_norm_that_is_not_finite(value, place):
    vector = np.ones(2 * BLOCK + 3, np.float32)
    assert squared_norm(vector) == len(vector)
    vector[place] = value
    vector.flags.writeable = False
    assert not np.isfinite(squared_norm(vector))


def test_a_gradient_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"must be contiguous float32 of shape \(10,\)"):
        average_of([np.zeros(10, np.float32), np.zeros(9, np.float32)], np.zeros(10, np.float32))


def test_two_threads_at_once_do_not_disturb_each_other():
    gradients, sums = gradients_of(7 * BLOCK, 3), {}

    def work(name):
        out = np.empty(7 * BLOCK, np.float32)
        sums[name] = {average_of(gradients, out)[1] for _ in range(50)}

    threads = [threading.Thread(target=work, args=(name,)) for name in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    work("alone")
    assert sums[0] == sums[1] == sums["alone"] and len(sums["alone"]) == 1
