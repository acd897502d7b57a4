"""Returns of unrolls, step by step from the last."""

from __future__ import annotations

import numpy as np

from ddrl.kernels.compiled import compiled_with_arrays


@compiled_with_arrays
def n_step_returns(rewards: np.ndarray, discounts: np.ndarray, bootstrap: np.ndarray, out: np.ndarray) -> None:
    """out_t = rewards_t + discounts_t out_(t+1), with `bootstrap` for out_T; see `ddrl.ops.returns`.

    Args:
        rewards, discounts: <float32>[T, B].
        bootstrap: <float32>[B].
        out: <float32>[T, B].
    """
    steps, count = rewards.shape
    for t in range(steps - 1, -1, -1):
        after = bootstrap if t == steps - 1 else out[t + 1]
        for i in range(count):
            out[t, i] = rewards[t, i] + discounts[t, i] * after[i]
