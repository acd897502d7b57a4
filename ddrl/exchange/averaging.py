"""The average of gradients and its norm, in one pass over blocks that stay in the cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

BLOCK = 65_536  # float32 elements: a block of two vectors fits the second-level cache


def average_of(gradients: Sequence[np.ndarray], out: np.ndarray) -> tuple[np.ndarray, float]:
    """The average of gradients <float32>[size], added in their order, and its squared norm.

    The average is in `out`, or is the gradient itself where there is only one.
    """
    if len(gradients) == 1:
        blocks = (gradients[0][start : start + BLOCK] for start in range(0, len(out), BLOCK))
        return gradients[0], sum(float(np.dot(block, block)) for block in blocks)
    scale, squared_norm = np.float32(1.0 / len(gradients)), 0.0
    for start in range(0, len(out), BLOCK):
        block = slice(start, start + BLOCK)
        total = out[block]
        np.copyto(total, gradients[0][block])
        for gradient in gradients[1:]:
            total += gradient[block]
        total *= scale
        squared_norm += float(np.dot(total, total))
    return out, squared_norm
