"""From Gymnasium's spaces to those of ddrl, actions that an environment takes, and random ones."""

from __future__ import annotations

import gymnasium
import numpy as np

from ddrl.errors import UsageError
from ddrl.types import ActionSpace, Continuous, Discrete

RANDOM_START = 0x5747  # keeps the stream of random first actions apart from others of the same seed


def action_space_of(game: str, space: gymnasium.Space) -> ActionSpace:
    """What the policy draws from. Raises UsageError unless `space` is Discrete or a Box of one dimension of floats."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1 and space.dtype.kind == "f":
        return Continuous(tuple(space.low.tolist()), tuple(space.high.tolist()))
    supported = "supported are Discrete and a Box of one dimension of floats"
    raise UsageError(f"{game} has the action space {_line(space)}; {supported}")


def observation_of(game: str, space: gymnasium.Space) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype (uint8 or float32) of an observation. Raises UsageError unless `space` is a Box of these."""
    if not isinstance(space, gymnasium.spaces.Box) or not (space.dtype == np.uint8 or space.dtype.kind == "f"):
        raise UsageError(f"{game} has the observation space {_line(space)}; supported is a Box of uint8 or of floats")
    return tuple(space.shape), np.dtype(np.uint8 if space.dtype == np.uint8 else np.float32)


def check_actions(actions: np.ndarray, space: ActionSpace, rows: int) -> np.ndarray:
    """A copy of `rows` actions as the environment takes them.

    Args:
        actions: <int32>[rows] of a Discrete space, <float32>[rows, A] of a Continuous one.

    Returns:
        <int32>[rows], or <float32>[rows, A] clipped to the bounds.

    Raises:
        ValueError: another shape, an action out of range, or one that is not finite.
    """
    if isinstance(space, Discrete):
        actions = np.array(actions, np.int32)
        if actions.shape != (rows,) or actions.min() < 0 or actions.max() >= space.count:
            raise ValueError(f"expected {rows} actions in 0..{space.count - 1}, got {actions}")
        return actions
    actions = np.array(actions, np.float32)
    if actions.shape != (rows, *space.action_shape) or not np.isfinite(actions).all():
        raise ValueError(f"expected {rows} actions of {space.action_shape[0]} finite numbers, got {actions}")
    return np.clip(actions, np.array(space.low, np.float32), np.array(space.high, np.float32))


def no_actions(space: ActionSpace, rows: int) -> np.ndarray:
    """Zeros of the shape and dtype of `rows` actions."""
    return np.zeros((rows, *space.action_shape), np.int32 if isinstance(space, Discrete) else np.float32)


def random_action(space: ActionSpace, generator: np.random.Generator) -> np.ndarray:
    """One action, uniform; a component that lacks a bound is standard normal, within the bound it has."""
    if isinstance(space, Discrete):
        return np.int32(generator.integers(space.count))
    low, high = np.array(space.low), np.array(space.high)
    bounded = np.isfinite(low) & np.isfinite(high)
    uniform = generator.uniform(np.where(bounded, low, 0.0), np.where(bounded, high, 1.0))
    normal = np.clip(generator.standard_normal(len(low)), low, high)
    return np.where(bounded, uniform, normal).astype(np.float32)


def _line(space: gymnasium.Space) -> str:
    return " ".join(str(space).split())
