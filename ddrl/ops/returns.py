"""n-step returns. Plain operators only, so the same code serves NumPy arrays and tensors."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np


def n_step_returns(rewards: Any, discounts: Any, bootstrap: Any, stack: Callable = np.stack) -> Any:
    """Return of each step of a segment, bootstrapped at the segment's end.

    R_t = r_t + discount_t R_(t+1), with R_T = bootstrap: the longest return that the segment allows
    (Mnih et al. 2016, Asynchronous Methods for Deep Reinforcement Learning, algorithm S3).

    Args:
        rewards: <float32>[T, ...] reward of the action taken at step t, already transformed.
        discounts: <float32>[T, ...] gamma, or 0 where the episode terminated at step t. A truncation
            is not a termination: its segment ends there, and bootstraps with the value of the last observation.
        bootstrap: <float32>[...] value of the state after the last step.
        stack: joins the T results; `tf.stack` for tensors.

    Returns:
        <float32>[T, ...].
    """
    if tuple(rewards.shape) != tuple(discounts.shape) or tuple(rewards.shape[1:]) != tuple(bootstrap.shape):
        raise ValueError(
            f"rewards {rewards.shape} and discounts {discounts.shape} must be equal [T, ...], "
            f"and bootstrap {bootstrap.shape} must be [...]"
        )
    returns = []
    return_t = bootstrap
    for t in reversed(range(rewards.shape[0])):
        return_t = rewards[t] + discounts[t] * return_t
        returns.append(return_t)
    return stack(returns[::-1])
