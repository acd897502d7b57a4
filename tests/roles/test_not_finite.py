"""What is said of a gradient that is not finite."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from ddrl.roles.not_finite import where_not_finite

TENSORS = ("hidden/kernel", (2, 2)), ("hidden/bias", (2,)), ("normalization/return", (3,))
FINE = np.zeros(9, np.float32)
NAN = np.float32(np.nan)
PARTS = np.dtype([("picture", np.uint8, (2,)), ("speed", np.float32, (2,))])


class Batch(NamedTuple):
    observation: Any
    reward: Any = np.zeros(3, np.float32)
    target: Any = None


PICTURES = Batch(np.zeros((3, 4), np.uint8))


def with_nan(array: np.ndarray, *places: int) -> np.ndarray:
    array = array.copy()
    array.flat[list(places)] = NAN
    return array


def structured() -> np.ndarray:
    array = np.zeros(3, PARTS)
    array["speed"][1] = np.inf
    return array


@pytest.mark.parametrize(
    ("places", "tensors"),
    [
        ([5], "1 of 2 values of hidden/bias"),
        ([1, 2, 4], "2 of 4 values of hidden/kernel, and some of 1 other tensor"),
        (range(9), "4 of 4 values of hidden/kernel, and some of 2 other tensors"),
        ([6, 8], "2 of 3 values of normalization/return"),
        ([], "its values are, but its norm is not"),
    ],
)
def test_the_first_tensor_is_named(places, tensors):
    text = where_not_finite(TENSORS, with_nan(FINE, *places), FINE, PICTURES, {"loss": 1.0, "gradient_norm": NAN})
    assert text == f"{tensors}; parameters, batch, and loss were finite"


@pytest.mark.parametrize(
    ("parameters", "batch", "loss", "causes"),
    [
        (with_nan(FINE, 3), PICTURES, 1.0, "1 of 9 values of the parameters"),
        (FINE, Batch(structured()), 1.0, "2 of 6 values of the batch's observation"),
        (FINE, Batch(FINE[:3], with_nan(FINE[:3], 0)), NAN, "1 of 3 values of the batch's reward, its loss"),
        (FINE, PICTURES, np.inf, "its loss"),
    ],
)
def test_what_was_not_finite_before_it_is_named(parameters, batch, loss, causes):
    text = where_not_finite(TENSORS, with_nan(FINE, 0), parameters, batch, {"loss": loss, "gradient_norm": NAN})
    assert text == f"1 of 4 values of hidden/kernel; not finite before it: {causes}"
