"""The state of single environments as arrays, so that a run resumes bit for bit without pickle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import wrappers
from gymnasium.envs import classic_control
from gymnasium.wrappers import TimeLimit

from ddrl.envs.adapted import Adapted
from ddrl.envs.simulators import PausingSimulator, Simulator

CLASSIC_CONTROL = (
    classic_control.CartPoleEnv,
    classic_control.PendulumEnv,
    classic_control.AcrobotEnv,
    classic_control.MountainCarEnv,
    classic_control.Continuous_MountainCarEnv,
)
STATELESS = {
    Adapted, TimeLimit, wrappers.OrderEnforcing, wrappers.PassiveEnvChecker, wrappers.ClipAction, wrappers.ClipReward,
    wrappers.DtypeObservation, wrappers.FilterObservation, wrappers.FlattenObservation, wrappers.GrayscaleObservation,
    wrappers.RescaleAction, wrappers.RescaleObservation, wrappers.ReshapeObservation, wrappers.ResizeObservation,
    wrappers.TransformAction, wrappers.TransformObservation, wrappers.TransformReward,
}  # fmt: skip
"""Wrappers that keep nothing on which later steps depend, except the step count of TimeLimit, which is saved."""
LIMITED = "time_limit_steps"
OWN = "simulator/"  # before the names of what a simulator adds to the state of its game, which may have the same names
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
    """Inverse of generator_state: `words` is <uint64>[6]."""
    a, b, c, d, has_uint32, uinteger = (int(word) for word in words)
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": a << 64 | b, "inc": c << 64 | d},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }


class ClassicControlState:
    """get_state and set_state for a game of CLASSIC_CONTROL with its step limit; TimeLimit has no public counter."""

    def __init__(self, env: gymnasium.Env) -> None:
        self._game: Any = env.unwrapped  # one of five classes that share attributes and no base
        self._limit: Any = _find(env, TimeLimit)

    def get_state(self) -> dict[str, np.ndarray]:
        """Position, steps and generator."""
        game = self._game
        beyond, elapsed = getattr(game, "steps_beyond_terminated", None), self._limit._elapsed_steps  # noqa: SLF001
        started = getattr(game, "state", None) is not None
        return {
            "started": np.array(started),
            "state": np.array(game.state) if started else np.zeros(0),
            "steps": np.array([-1 if n is None else n for n in (beyond, elapsed)], np.int64),
            "generator": generator_state(game.np_random),
        }

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Inverse of get_state."""
        game = self._game
        beyond, elapsed = (None if number < 0 else int(number) for number in state["steps"])
        self._limit.reset()  # tells the wrappers' order check that the environment was reset
        game.state = np.array(state["state"]) if state["started"] else None
        if hasattr(game, "steps_beyond_terminated"):
            game.steps_beyond_terminated = beyond
        self._limit._elapsed_steps = elapsed  # noqa: SLF001
        set_generator_state(game.np_random, state["generator"])


class OwnState:
    """get_state and set_state of a game that has both, and the steps of its limit, if it has one."""

    def __init__(self, env: gymnasium.Env) -> None:
        self._env = env
        self._game: Any = env.unwrapped
        self._limit: Any = _find(env, TimeLimit)

    def get_state(self) -> dict[str, np.ndarray]:
        """Everything that decides the future, as copies, since a game may change its own arrays in place."""
        elapsed = None if self._limit is None else self._limit._elapsed_steps  # noqa: SLF001
        limited = {} if elapsed is None else {LIMITED: np.array(elapsed, np.int64)}
        return {name: np.array(value) for name, value in self._game.get_state().items()} | limited

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Inverse of get_state."""
        self._env.reset()  # tells the wrappers' order check that the environment was reset
        if self._limit is not None and LIMITED in state:
            self._limit._elapsed_steps = int(state[LIMITED])  # noqa: SLF001
        self._game.set_state({name: value for name, value in state.items() if name != LIMITED})


StateKeeper = ClassicControlState | OwnState


def state_keeper(env: gymnasium.Env) -> StateKeeper | None:
    """An object with get_state and set_state for `env`, or None if the state cannot be saved.

    The state of an environment with wrappers that are not among STATELESS cannot be saved, since it is not known.
    """
    inner = env.unwrapped
    if any(type(wrapper) not in STATELESS for wrapper in _wrappers(env)):
        return None
    if hasattr(inner, "get_state") and hasattr(inner, "set_state"):
        return OwnState(env)
    if type(inner) in CLASSIC_CONTROL and _find(env, TimeLimit) is not None:
        return ClassicControlState(env)
    return None


def gives_state(env: gymnasium.Env) -> bool:
    """Whether the state of an environment, whose game has begun, can be saved: a `get_state` of its own gives a dict of
    arrays. One of this name in an environment that was made for something else may give anything, or want arguments."""
    keeper = state_keeper(env)
    if not isinstance(keeper, OwnState):
        return keeper is not None
    try:
        state = keeper.get_state()
        return all(isinstance(name, str) and not np.asanyarray(value).dtype.hasobject for name, value in state.items())
    except Exception:  # noqa: BLE001  (whatever an environment of a user raises)
        return False


def get_simulator_state(simulator: Simulator) -> dict[str, np.ndarray]:
    """The state of a simulator whose `env` has a state keeper, and which has no spare instance."""
    own = {"ended": np.array(simulator.ended)}
    if isinstance(simulator, PausingSimulator):
        if simulator.final is not None:
            own["final"] = simulator.final
        if simulator.fresh is not None:
            observation, info = simulator.fresh
            own["fresh"], own["fresh_lives"] = np.array(observation), np.array(info.get("lives", 0))
    return {**_keeper_of(simulator).get_state(), **{OWN + name: value for name, value in own.items()}}


def set_simulator_state(simulator: Simulator, state: dict[str, np.ndarray]) -> None:
    """Inverse of get_simulator_state."""
    prefix = OWN if f"{OWN}ended" in state else ""  # which older checkpoints do not have
    names = {prefix + name: name for name in ("ended", "final", "fresh", "fresh_lives")}
    own = {names[name]: value for name, value in state.items() if name in names}
    _keeper_of(simulator).set_state({name: value for name, value in state.items() if name not in names})
    simulator.ended = bool(own["ended"])
    if isinstance(simulator, PausingSimulator):
        fresh = "fresh" in own
        simulator.fresh = (own["fresh"], {"lives": own["fresh_lives"]}) if fresh else None
        simulator.final = own.get("final")


def _keeper_of(simulator: Simulator) -> StateKeeper:
    keeper = state_keeper(simulator.env)
    assert keeper is not None, "who saves asked can_save_state"
    return keeper


def _wrappers(env: gymnasium.Env) -> Iterator[gymnasium.Wrapper]:
    """The wrappers around an environment, from the outermost to the innermost."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env


def _find(env: gymnasium.Env, kind: type) -> gymnasium.Env | None:
    return next((wrapper for wrapper in _wrappers(env) if isinstance(wrapper, kind)), None)
