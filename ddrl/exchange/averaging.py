"""The average of gradients, its norm, and the rule that refuses a step by this norm.

The loops are in `ddrl.kernels.updates`.
"""

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
    """The average of gradients <float32>[size], added in the order given, and the average's squared norm.

    The average is written to `out`; a single gradient is returned as it is, and `out` is not used. Running statistics
    in the gradients are merged instead of averaged, and do not count in the norm.
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
    """The sum of the squares of a vector <float32>[size], without those of its running statistics."""
    if statistics is not None:
        return sum(squared_norm(vector[part]) for part in _around(statistics, vector.size))
    return updates.squared_norm(vector.size, compiled.address(vector, vector.size))


def refused_by(squared_norm: float, members: int) -> int:
    """Bitmap of the workers because of whom a step is refused, given the squared norm of their average.

    If that norm is not finite, although each of the gradients is, they are all `members`; else there are none.
    """
    return 0 if math.isfinite(squared_norm) else members


def _around(statistics: Statistics, size: int) -> list[slice]:
    return [slice(a, b) for a, b in ((0, statistics.start), (statistics.stop, size)) if a < b]
