"""The average of gradients and its norm in one pass, and the norm of one vector.

Squares are added in float64, in an order that the compiler chooses, so that the loop is vectorized.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

from ddrl.kernels.compiled import compiled, reassociated

BLOCK = 4_096  # float32 values: of a block's sum the squares are taken while it is in the first-level cache


@compiled
def average(gradients: np.ndarray, scale: np.float32, out: np.ndarray) -> float:
    """out = scale (g_0 + g_1 + ...), added in their order; the sum of its squares.

    Args:
        gradients: addresses <uint64>[K] of g_k <float32>[size].
        scale: factor on the sum.
        out: <float32>[size].
    """
    size, total = len(out), 0.0
    for start in range(0, size, BLOCK):
        block = out[start : start + BLOCK]
        first = _vector_at(gradients[0], size)[start : start + BLOCK]
        for i in range(len(block)):
            block[i] = first[i]
        for gradient in gradients[1:]:
            more = _vector_at(gradient, size)[start : start + BLOCK]
            for i in range(len(block)):
                block[i] += more[i]
        for i in range(len(block)):
            block[i] *= scale
        total += _squares(block)
    return total


@compiled
def squared_norm(address: np.uint64, size: int) -> float:
    """The sum of the squares of a vector <float32>[size] at an address; it may be read-only."""
    return _squares(_vector_at(address, size))


@reassociated
def _squares(vector: np.ndarray) -> float:
    total = 0.0
    for i in range(len(vector)):
        value = np.float64(vector[i])
        total += value * value
    return total


@intrinsic
def _pointer(context: Any, address: Any) -> Any:
    """A number as the address that it is."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


@compiled
def _vector_at(address: np.uint64, size: int) -> np.ndarray:
    """The vector <float32>[size] at an address."""
    return numba.carray(_pointer(address), (size,), np.float32)  # type: ignore[attr-defined, call-arg]
