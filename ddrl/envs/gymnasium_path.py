"""Games on the Gymnasium path: registered ids, and Atari under the protocols that the native path lacks."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium

from ddrl.envs.atari_frames import AtariFrames
from ddrl.envs.control import DM_CONTROL, FlatObservation, register_dm_control
from ddrl.envs.game_names import unknown_game
from ddrl.envs.gymnasium_environment import GymnasiumEnvironment, stamp_of, versions
from ddrl.envs.protocols import Protocol
from ddrl.envs.starts import Starts
from ddrl.errors import UsageError


def make_atari(
    rom: str,
    protocol: Protocol,
    num_envs: int,
    on_frame: Callable[[Any], None] | None = None,
    starts: Starts | None = None,
    **options: Any,
) -> GymnasiumEnvironment:
    """An Atari ROM under any protocol; AtariFrames explains on_frame and starts, GymnasiumEnvironment the options.

    Args:
        rom: name of the ROM.
        protocol: any.
        num_envs: simulators.
        on_frame, starts: as in AtariFrames.
        options: of GymnasiumEnvironment.
    """
    stamp: dict[str, Any] = {**protocol.stamp(), "game": rom, "backend": "gymnasium", **versions("ale-py")}
    stamp = stamp if starts is None else {**stamp, **starts.stamp}
    return GymnasiumEnvironment(lambda: AtariFrames(rom, protocol, on_frame, starts), num_envs, stamp, **options)


def make_gymnasium(game: str, num_envs: int, render_mode: str | None = None, **options: Any) -> GymnasiumEnvironment:
    """A registered Gymnasium id. Raises UsageError when it is unknown, lacks a package, or cannot render.

    Args:
        game: the id.
        num_envs: simulators.
        render_mode: of the environments; 'rgb_array' for pictures.
        options: of GymnasiumEnvironment.
    """
    rendering: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}

    def make() -> gymnasium.Env:
        with _clear_errors(game):  # the checker looks at every observation, which costs as much as CartPole's step
            env = gymnasium.make(game, disable_env_checker=True, **rendering)
        return FlatObservation(env) if isinstance(env.observation_space, gymnasium.spaces.Dict) else env

    packages: tuple[str, ...] = ()
    if game.startswith(DM_CONTROL):
        register_dm_control()
        packages = ("dm-control", "shimmy", "mujoco")
    with _clear_errors(game):
        spec = gymnasium.spec(game)
    if str(spec.entry_point).startswith("gymnasium.envs.mujoco") and importlib.util.find_spec("mujoco"):
        packages = ("mujoco",)
    stamp = stamp_of("gymnasium", game, spec.max_episode_steps or 0, *packages)
    return GymnasiumEnvironment(make, num_envs, stamp, **options)


@contextmanager
def _clear_errors(game: str) -> Iterator[None]:
    try:
        yield
    except gymnasium.error.DependencyNotInstalled as error:
        raise UsageError(f"{game} needs a package that is not installed: {error}") from error
    except gymnasium.error.UnregisteredEnv as error:
        raise unknown_game(game) from error
    except (gymnasium.error.Error, ModuleNotFoundError, TypeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        message = f"cannot make the game {game!r}: {reason}; `python -m ddrl.envs` lists games"
        raise UsageError(message) from error
