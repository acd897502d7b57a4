"""A game as a Gymnasium environment with the observations of a run, for loops outside of ddrl."""

from __future__ import annotations

import os
from typing import Any

import gymnasium
import numpy as np

from ddrl import rundir
from ddrl.envs import make_in_thread, plain_game
from ddrl.envs.adapted import Adapted
from ddrl.envs.game_names import atari_rom


def make_environment(run: str | os.PathLike[str], render_mode: str | None = None) -> gymnasium.Env:
    """One game of a run with the observations that its agent learned from, and whole games and raw rewards.

    Args:
        run: a run, or its directory.
        render_mode: of the game; Atari games have rgb_array always.

    Raises:
        UsageError: no run, or a game that cannot be made.
    """
    config = rundir.load_config(os.fspath(run)).environment
    options: dict[str, Any] = {} if render_mode is None or atari_rom(config.game) else {"render_mode": render_mode}
    simulators = make_in_thread(plain_game(config), 1, **options)
    game = simulators.game
    if isinstance(game, Adapted):
        game.takes_native_actions = True
    return ObservationsOfRun(game, simulators.observation_shape, simulators.observation_dtype)


class ObservationsOfRun(gymnasium.ObservationWrapper):
    """Converts observations to the type that networks take; what a game of several players gives is [players, ...].

    Observations of several entries are structured arrays of shape (), for which Gymnasium has no space.

    Args:
        env: the game.
        shape: of one observation.
        dtype: uint8, float32 or bool, or of several entries.
    """

    def __init__(self, env: gymnasium.Env, shape: tuple[int, ...], dtype: Any) -> None:
        super().__init__(env)
        self._dtype = np.dtype(dtype)
        if self._dtype.names:
            return
        low, high = {"u": (0, 255), "b": (0, 1)}.get(self._dtype.kind, (-np.inf, np.inf))
        self.observation_space = gymnasium.spaces.Box(low, high, shape, dtype)

    def observation(self, observation: Any) -> np.ndarray:
        return np.asarray(observation, self._dtype)
