"""Returns and advantages. Plain operators, so the same code serves NumPy arrays and tensors; but for arrays of float32
the loop over steps is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ddrl.lazy import lazy_module

if TYPE_CHECKING:
    from ddrl.kernels import returns as kernels
else:
    kernels = lazy_module("ddrl.kernels.returns")


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
    if all(isinstance(x, np.ndarray) and x.dtype == np.float32 for x in (rewards, discounts, bootstrap)):
        return _compiled(rewards, discounts, bootstrap)
    returns = []
    return_t = bootstrap
    for t in reversed(range(rewards.shape[0])):
        return_t = rewards[t] + discounts[t] * return_t
        returns.append(return_t)
    return stack(returns[::-1])


def lambda_returns(rewards: Any, discounts: Any, next_values: Any, lambda_: float) -> Any:
    """Mean of the returns of 1, 2, and more steps to the segment's end, each weighted lambda times the one before it.

    R_t = r_t + discount_t ((1 - lambda) V_(t+1) + lambda R_(t+1)), with R_T = V_T (Sutton and Barto 2018, section
    12.1). R_t - V_t is the advantage of `generalized_advantages`; lambda 1 is `n_step_returns`.

    Args:
        rewards, discounts: see `n_step_returns`.
        next_values: <float32>[T, ...] value of the state after step t; the last one is the bootstrap.
        lambda_: weight of longer returns, in [0, 1].

    Returns:
        <float32>[T, ...].
    """
    mixed = rewards + discounts * ((1.0 - lambda_) * next_values)
    return n_step_returns(mixed, discounts * lambda_, next_values[-1])


def _compiled(rewards: np.ndarray, discounts: np.ndarray, bootstrap: np.ndarray) -> np.ndarray:
    """The same operations, without a step of Python for each step of the segment."""
    steps = len(rewards)
    flat = (np.ascontiguousarray(array).reshape(steps, -1) for array in (rewards, discounts))
    out = np.empty(rewards.shape, np.float32)
    kernels.n_step_returns(*flat, np.ascontiguousarray(bootstrap).reshape(-1), out.reshape(steps, -1))
    return out


def generalized_advantages(
    reward: Any, discount: Any, continues: Any, valid: Any, value: Any, lambda_: float, stack: Callable = np.stack
) -> tuple[Any, Any]:
    """Advantages and returns of an unroll (fields as in `ddrl.types.Unroll`).

    A_t = delta_t + discount_t lambda A_(t+1), with delta_t = r_t + discount_t V_(t+1) - V_t and A_T = 0
    (Schulman et al. 2016, High-Dimensional Continuous Control Using Generalized Advantage Estimation, equation 16).
    The sum ends where the episode does: after a truncation delta_t still holds the value of the final
    observation, after a termination discount_t is 0. lambda 1 is the n-step return minus the value, lambda 0
    the one-step error.

    Args:
        reward, discount, continues, valid: <float32>[T, B].
        value: <float32>[T+1, B].
        lambda_: weight of longer returns, in [0, 1].
        stack: joins the T results; `tf.stack` for tensors.

    Returns:
        Advantages <float32>[T, B], 0 where not valid; and returns <float32>[T, B], advantages + value[:T].
    """
    check_unroll(reward, discount, continues, valid, value)
    errors = valid * (reward + discount * value[1:] - value[:-1])
    nothing = np.zeros(tuple(reward.shape[1:]), np.float32)
    advantages = n_step_returns(errors, valid * continues * discount * lambda_, nothing, stack)
    return advantages, advantages + value[:-1]


def check_unroll(reward: Any, discount: Any, continues: Any, valid: Any, value: Any) -> None:
    """Raises ValueError unless reward, discount, continues and valid are [T, ...], all alike, and value [T+1, ...]."""
    steps, *rest = reward.shape
    alike = all(tuple(x.shape) == tuple(reward.shape) for x in (discount, continues, valid))
    if not alike or tuple(value.shape) != (steps + 1, *rest):
        raise ValueError(
            f"reward {reward.shape}, discount {discount.shape}, continues {continues.shape} and valid {valid.shape} "
            f"must be equal [T, ...], and value {value.shape} must be [T+1, ...]"
        )
