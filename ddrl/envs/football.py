"""Google Research Football (Kurach et al. 2020), the second domain of Liu, Yeh and Schwing 2020: an optional package.

One game has a row for each player that the policy controls. The rows share the game's episodes and its score, which is
the goals for minus those against. The engine holds the GIL, so games of one process never step at the same time.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import io
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

from ddrl.config import EnvironmentConfig
from ddrl.envs.game_names import FOOTBALL, football_games, unknown_game
from ddrl.envs.gymnasium_environment import GymnasiumEnvironment, stamp_of
from ddrl.errors import UsageError

HEIGHT, WIDTH, STACK = 72, 96, 4
ACTIONS = 19
DRAWN = {"render_resolution_x": 320, "render_resolution_y": 180}
"""Size in pixels of the picture that is shrunk to the observation; to draw 1280 x 720 takes eight times as long."""


class FootballGame(gymnasium.Env):
    """One game of a scenario.

    Observation: <uint8>[C, 72, 96], oldest frame first. C is 16 for the map (players of the left team, of the right,
    ball, controlled player; 4 frames), 12 for pixels (RGB). With more than one player both observations and rewards
    have a leading axis for the players, and so have the actions. Every episode draws the engine's seed.

    Args:
        scenario: a name without the prefix football/.
        players: number of players of the left team that the policy controls.
        view: 'map' or 'pixels'.
        checkpoints: whether to add the rewards for moving toward the goal.
        render_mode: 'rgb_array' for `render`.

    Raises:
        UsageError: the package is missing, or the scenario has fewer players.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, scenario: str, players: int, view: str, checkpoints: bool, render_mode: str | None) -> None:
        football = _package()
        limit = sum(player.controllable for player in _scenario(scenario).left_team)
        if players > limit:
            raise UsageError(
                f"--football-players {players}: must be at most {limit}, the left team's players in {scenario}"
            )
        self.players, self.render_mode = players, render_mode
        with _quiet():
            self._env = football.create_environment(
                scenario,
                stacked=True,
                representation="extracted" if view == "map" else "pixels",
                rewards="scoring,checkpoints" if checkpoints else "scoring",
                channel_dimensions=(WIDTH, HEIGHT),
                number_of_left_players_agent_controls=players,
                other_config_options=dict(DRAWN),
                render=view == "pixels" or render_mode is not None,
            )
        channels = STACK * (4 if view == "map" else 3)
        self.observation_space = gymnasium.spaces.Box(0, 255, (channels, HEIGHT, WIDTH), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(ACTIONS)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """A new game from the next seed."""
        super().reset(seed=seed)
        engine_seed = int(self.np_random.integers(1 << 31))
        settings = self._env.unwrapped._config  # noqa: SLF001 - there is no public way to seed one episode
        settings["game_engine_random_seed"] = engine_seed
        settings["reverse_team_processing"] = bool(engine_seed % 2)
        return self._channels_first(self._env.reset()), {}

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, dict]:
        """Step the game. The end of a scenario's time is part of its rules, so it is a termination."""
        actions = action.tolist() if self.players > 1 else [int(action)]
        observation, reward, done, info = self._env.step(actions)
        return self._channels_first(observation), reward, bool(done), False, {"score_reward": info["score_reward"]}

    def render(self) -> np.ndarray:
        """<uint8>[180, 320, 3]."""
        return np.asarray(self._env.unwrapped.render(mode="rgb_array"), np.uint8)

    def close(self) -> None:
        """Close the engine."""
        self._env.close()

    def _channels_first(self, observation: np.ndarray) -> np.ndarray:
        return np.moveaxis(observation, -1, -3)


def make_football(
    config: EnvironmentConfig, num_envs: int, render_mode: str | None = None, **options: Any
) -> GymnasiumEnvironment:
    """Games of the scenario that `config` names; see GymnasiumEnvironment for the options.

    Raises UsageError for an unknown scenario, a missing package, or a scenario with fewer players.

    Args:
        config: names the scenario, its players, view and rewards.
        num_envs: games.
        render_mode: 'rgb_array' for pictures.
        options: those of GymnasiumEnvironment.
    """
    if config.game not in football_games():
        raise unknown_game(config.game)
    scenario = config.game.removeprefix(FOOTBALL)
    players, view, checkpoints = config.football_players, config.football_view, config.football_checkpoints
    _package()
    settings = {"players": players, "view": view, "checkpoints": checkpoints}
    stamp = stamp_of("football", config.game, _scenario(scenario).game_duration, "gfootball", **settings)
    return GymnasiumEnvironment(
        lambda: FootballGame(scenario, players, view, checkpoints, render_mode), num_envs, stamp, **options
    )


def _scenario(name: str) -> Any:
    with _quiet():
        return importlib.import_module("gfootball.env.config").Config({"level": name}).ScenarioConfig()


def _package() -> Any:
    try:
        with _quiet():
            return importlib.import_module("gfootball.env")
    except ImportError as error:
        raise UsageError(
            f"Google Research Football cannot be loaded ({error}); docs/environments.md explains how to build the "
            "extra `football`"
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences the old Gym, which prints a greeting and a warning about its age in every process."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
