"""A tree of float64 sums, to draw items in proportion to their weights (Schaul et al. 2016, appendix B.2.1)."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ddrl.lazy import lazy_module

if TYPE_CHECKING:
    from ddrl.kernels import sums as kernels
else:
    kernels = lazy_module("ddrl.kernels.sums")


class SumTree:
    """Weights of `size` items; `set` and `find` take time proportional to log2(size), for whole batches.

    Every sum is computed from its two parts and never adjusted by a difference: it is a function of the weights alone,
    whatever the order of the updates, and collects no rounding errors.

    Args:
        size: number of items, at least 1; all weights are 0.
    """

    def __init__(self, size: int):
        if size < 1:
            raise ValueError(f"a sum tree of {size} items; at least 1 is needed")
        self.size = size
        # Sums over 1, 2, 4, ... items. All levels but the root have an even length; what is past the end stays 0.
        lengths = []
        while size > 1:
            lengths.append(size + size % 2)
            size = (size + 1) // 2
        lengths.append(1)
        self._starts = np.cumsum([0, *lengths])
        self._sums = np.zeros(self._starts[-1])

    @staticmethod
    def bytes_for(size: int) -> int:
        """Bytes of a tree, at most."""
        return 16 * size + 8 * 64

    @property
    def weights(self) -> np.ndarray:
        """<float64>[size], a view: `set` changes it, nothing else should."""
        return self._sums[: self.size]

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return float(self._sums[-1])

    def set(self, items: np.ndarray, weights: np.ndarray) -> None:
        """Gives items <int64>[M] new weights <float64>[M], finite and not negative. The last of equal items wins."""
        if len(items) and not (items.min() >= 0 and items.max() < self.size):
            raise IndexError(f"items {items.min()} to {items.max()} of a sum tree of {self.size}")
        kernels.set_weights(self._sums, self._starts, items, np.broadcast_to(weights, items.shape).astype(np.float64))

    def set_all(self, weights: np.ndarray) -> None:
        """Replaces all weights by <float64>[size]; the sums are bit for bit those that `set` would have made."""
        self.weights[:] = weights
        for parts, sums in pairwise(self._levels()):
            sums[: len(parts) // 2] = parts[0::2] + parts[1::2]

    def find(self, masses: np.ndarray) -> np.ndarray:
        """Items <int64>[M] in whose part of the sum the masses <float64>[M] lie: the first with w_0 + .. + w_i > mass.

        Masses are in [0, total], and the total is positive. An item of weight 0 is never found, however sums round.
        """
        return kernels.find(self._sums, self._starts, masses)

    def check(self) -> None:
        """Raises RuntimeError where a weight is not finite or negative, or a sum is not that of its parts."""
        if not (np.isfinite(self._sums).all() and (self.weights >= 0.0).all()):
            raise RuntimeError("a weight of the sum tree is negative or not finite")
        for depth, (parts, sums) in enumerate(pairwise(self._levels())):
            count = len(parts) // 2
            if (sums[:count] != parts[0::2] + parts[1::2]).any() or sums[count:].any():
                raise RuntimeError(f"level {depth + 1} of the sum tree does not hold the sums of level {depth}")

    def _levels(self) -> list[np.ndarray]:
        return np.split(self._sums, self._starts[1:-1])
