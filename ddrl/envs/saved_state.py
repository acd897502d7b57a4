"""State of single environments as arrays, so that a run resumes to the bit without pickle."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import TimeLimit

_WORD = (1 << 64) - 1


def generator_state(generator: np.random.Generator) -> np.ndarray:
    """<uint64>[6] of a PCG64 generator: state (high, low), increment (high, low), and its spare 32 bits."""
    state = generator.bit_generator.state
    if state["bit_generator"] != "PCG64":
        raise ValueError(f"expected a PCG64 generator, got {state['bit_generator']}")
    numbers = state["state"]["state"], state["state"]["inc"]
    words = [word for number in numbers for word in (number >> 64, number & _WORD)]
    return np.array([*words, state["has_uint32"], state["uinteger"]], np.uint64)


def set_generator_state(generator: np.random.Generator, words: np.ndarray) -> None:
    """Inverse of generator_state."""
    a, b, c, d, has_uint32, uinteger = (int(word) for word in words)
    generator.bit_generator.state = {
        "bit_generator": "PCG64", "state": {"state": a << 64 | b, "inc": c << 64 | d},
        "has_uint32": has_uint32, "uinteger": uinteger,
    }


class CartPoleState:
    """get_state and set_state for CartPole with its step limit; TimeLimit has no public counter."""

    def __init__(self, env: gymnasium.Env) -> None:
        self._pole, self._limit = env.unwrapped, _find(env, TimeLimit)

    def get_state(self) -> dict[str, np.ndarray]:
        """Position, steps and generator."""
        pole, limit = self._pole, self._limit
        beyond, elapsed = pole.steps_beyond_terminated, limit._elapsed_steps
        return {
            "started": np.array(pole.state is not None),
            "state": np.zeros(4) if pole.state is None else np.array(pole.state, np.float64),
            "steps": np.array([-1 if n is None else n for n in (beyond, elapsed)], np.int64),
            "generator": generator_state(pole.np_random),
        }

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Inverse of get_state."""
        pole, limit = self._pole, self._limit
        beyond, elapsed = (None if number < 0 else int(number) for number in state["steps"])
        limit.reset()  # tells the wrappers' order check that the environment was reset
        pole.state = np.array(state["state"], np.float64) if state["started"] else None
        pole.steps_beyond_terminated, limit._elapsed_steps = beyond, elapsed
        set_generator_state(pole.np_random, state["generator"])


def state_keeper(env: gymnasium.Env):
    """Something with get_state and set_state for `env`, or None when its state cannot be saved."""
    inner = env.unwrapped
    if hasattr(inner, "get_state") and hasattr(inner, "set_state"):
        return _Plain(env)
    if type(inner) is CartPoleEnv and _find(env, TimeLimit) is not None:
        return CartPoleState(env)
    return None


class _Plain:
    def __init__(self, env: gymnasium.Env) -> None:
        self._env = env
        self.get_state = env.unwrapped.get_state

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        self._env.reset()  # tells the wrappers' order check that the environment was reset
        self._env.unwrapped.set_state(state)


def _find(env: gymnasium.Env, kind: type) -> gymnasium.Env | None:
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, kind):
            return env
        env = env.env
    return None
