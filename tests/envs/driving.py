"""Drive a vector environment with actions that depend on (environment, its own step number) only."""

from __future__ import annotations

import numpy as np

from ddrl.types import ActionSpace, Discrete


def own_action(env_id: int, step: int, num_actions: int) -> int:
    return (env_id * 7 + step * 5 + step // 3) % num_actions


def own_actions(space: ActionSpace, env_id: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """One for each row; continuous ones are five levels from below the lowest to above the highest."""
    if isinstance(space, Discrete):
        return np.array([own_action(i, taken[i], space.count) for i in env_id], np.int32)
    levels = np.array([own_action(i, taken[i], 5) for i in env_id], np.float32)[:, None] / 2 - 1
    return levels * np.float32(space.high) * 1.5


def drive(env, recvs: int, taken: np.ndarray | None = None) -> list:
    """`recvs` steps, each followed by a send; the rows as received."""
    taken = np.zeros(env.num_envs, np.int64) if taken is None else taken
    steps = []
    for _ in range(recvs):
        step = env.recv()
        steps.append(step)
        env.send(own_actions(env.action_space, step.env_id, taken))
        taken[step.env_id] += 1
    return steps


def by_environment(steps: list) -> dict[int, list[tuple]]:
    """Every environment's own rows: (observation bytes, reward, terminated, truncated, valid, life_lost)."""
    rows: dict[int, list[tuple]] = {}
    for step in steps:
        for k, i in enumerate(step.env_id):
            fields = (step.reward, step.terminated, step.truncated, step.valid, step.life_lost)
            row = (step.observation[k].tobytes(), *(field[k].item() for field in fields))
            rows.setdefault(int(i), []).append(row)
    return rows


def assert_same(a: list, b: list) -> None:
    """Two lists of steps are equal in every field, to the bit."""
    assert len(a) == len(b)
    for one, other in zip(a, b):
        for left, right in zip(one, other):
            assert left.dtype == right.dtype and np.array_equal(left, right)
