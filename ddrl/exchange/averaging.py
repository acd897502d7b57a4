"""The average of gradients, its norm, and when that refuses a step; `ddrl.kernels.updates` has the loops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ddrl.exchange.statistics import Statistics
from ddrl.lazy import lazy_module

if TYPE_CHECKING:
    from ddrl.kernels import compiled, updates
else:
    compiled, updates = lazy_module("ddrl.kernels.compiled"), lazy_module("ddrl.kernels.updates")


def average_of(
    gradients: Sequence[np.ndarray], out: np.ndarray, statistics: Statistics | None = None
) -> tuple[np.ndarray, float]:
    """The average of gradients <float32>[size], added in their order, and its squared norm.

    The average is in `out`, or is the gradient itself where there is only one. Statistics in them are merged, and no
    part of the norm.
    """
    if len(gradients) == 1:
        return gradients[0], squared_norm(gradients[0], statistics)
    if statistics is not None:
        norm = 0.0
        for part in _around(statistics, out.size):
            norm += average_of([gradient[part] for gradient in gradients], out[part])[1]
        statistics.of(out)[:] = statistics.merged([statistics.of(gradient) for gradient in gradients])
        return out, norm
    table, scale = compiled.addresses(gradients, out.size), np.float32(1.0 / len(gradients))
    where = compiled.address(out, out.size, written=True)
    return out, updates.average(out.size, np.uint64(table.ctypes.data), len(gradients), scale, where)


def squared_norm(vector: np.ndarray, statistics: Statistics | None = None) -> float:
    """The sum of the squares of <float32>[size], without those of its statistics."""
    if statistics is not None:
        return sum(squared_norm(vector[part]) for part in _around(statistics, vector.size))
    return updates.squared_norm(vector.size, compiled.address(vector, vector.size))


def refused_by(squared_norm: float, members: int) -> int:
    """Bitmap of the workers for whose gradients a step is refused, by the squared norm of their average: all members
    where it is not finite, though each of their gradients is; else nobody."""
    return 0 if math.isfinite(squared_norm) else members


def _around(statistics: Statistics, size: int) -> list[slice]:
    return [slice(a, b) for a, b in ((0, statistics.start), (statistics.stop, size)) if a < b]
