"""A tree of sums in one vector: its levels one after the other, from the weights to the root.

Args of every kernel:
    sums: <float64>[...] of all levels.
    starts: <int64>[L + 1] where levels begin in it, and the last one ends. A level's item i is the sum of the items 2i
        and 2i + 1 of the level below.
"""

from __future__ import annotations

import numpy as np

from ddrl.kernels.compiled import compiled_with_arrays


@compiled_with_arrays
def set_weights(sums: np.ndarray, starts: np.ndarray, items: np.ndarray, weights: np.ndarray) -> None:
    """Gives items <int64>[M] new weights <float64>[M], and computes the sums above them."""
    for j in range(len(items)):
        sums[items[j]] = weights[j]
    for level in range(1, len(starts) - 1):
        below, here = sums[starts[level - 1] : starts[level]], sums[starts[level] : starts[level + 1]]
        if len(here) <= len(items):  # near the root there are fewer sums than items
            for i in range(len(below) // 2):
                here[i] = below[2 * i] + below[2 * i + 1]
            continue
        for j in range(len(items)):
            i = items[j] >> level
            here[i] = below[2 * i] + below[2 * i + 1]


@compiled_with_arrays
def find(sums: np.ndarray, starts: np.ndarray, masses: np.ndarray) -> np.ndarray:
    """The first items <int64>[M] whose weights, with those before them, sum to more than the masses <float64>[M].

    All masses go down a level together: what they read there comes from memory at once, and not one after the other.
    """
    items, rest = np.zeros(len(masses), np.int64), masses.copy()
    for level in range(len(starts) - 3, -1, -1):
        parts = sums[starts[level] : starts[level + 1]]
        for j in range(len(items)):
            left, right = parts[2 * items[j]], parts[2 * items[j] + 1]
            beyond = (rest[j] >= left) and (right > 0.0)
            items[j] = 2 * items[j] + beyond
            rest[j] -= left if beyond else 0.0
    return items
