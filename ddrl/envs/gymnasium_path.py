"""Games on the Gymnasium path: registered ids, and Atari under the protocols that the native path lacks."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium

from ddrl import plugin_modules, plugins
from ddrl.envs.adapted import Tried, adapted, gives_masks, may_give_masks
from ddrl.envs.atari_frames import AtariFrames
from ddrl.envs.control import DM_CONTROL, FlatObservation, register_dm_control
from ddrl.envs.game_names import unknown_game
from ddrl.envs.gymnasium_environment import GymnasiumEnvironment, stamp_of, versions
from ddrl.envs.protocols import Protocol
from ddrl.envs.starts import Starts
from ddrl.errors import UsageError, in_one_line, raised_at, raised_by_user, says_what_to_do


def make_atari(
    rom: str,
    protocol: Protocol,
    num_envs: int,
    on_frame: Callable[[Any], None] | None = None,
    starts: Starts | None = None,
    wrappers: Sequence[str] = (),
    **options: Any,
) -> GymnasiumEnvironment:
    """An Atari ROM under any protocol; AtariFrames explains on_frame and starts, GymnasiumEnvironment the options.

    Args:
        rom: name of the ROM.
        protocol: any protocol.
        num_envs: simulators.
        on_frame, starts: as in AtariFrames.
        wrappers: names of wrappers; the first is around the frames, and each next one around the one before.
        options: those of GymnasiumEnvironment.
    """
    stamp: dict[str, Any] = {**protocol.stamp(), "game": rom, "backend": "gymnasium", **versions("ale-py")}
    stamp = stamp if starts is None else {**stamp, **starts.stamp}

    def make() -> gymnasium.Env:
        return _wrapped(AtariFrames(rom, protocol, on_frame, starts), wrappers)

    if wrappers:
        stamp["wrappers"] = list(wrappers)
        make = _adapting(rom, make)
    return GymnasiumEnvironment(make, num_envs, stamp, **options)


def make_gymnasium(
    game: str,
    num_envs: int,
    render_mode: str | None = None,
    game_options: Sequence[str] = (),
    wrappers: Sequence[str] = (),
    trial: bool = False,
    **options: Any,
) -> GymnasiumEnvironment:
    """Simulators of an environment that a plugin registered, or of one of Gymnasium's ids.

    Args:
        game: a plugin's name, an id, or `module:id` to import the module first.
        num_envs: simulators.
        render_mode: of the environments; 'rgb_array' for pictures.
        game_options: arguments with which they are made, KEY=VALUE each.
        wrappers: names of wrappers; the first is around the environment, and each next one around the one before.
        trial: they are only tried; see `Tried`.
        options: those of GymnasiumEnvironment.

    Raises:
        UsageError: the game is unknown, lacks a package, cannot render, refuses an option, or has an unsupported space.
    """
    rendering: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
    own = game in plugins.environments.names()
    name = game if own else _imported(game)
    packages: tuple[str, ...] = ()

    def make() -> gymnasium.Env:
        arguments = plugins.game_arguments(game_options) | rendering  # read anew: no two environments share a list
        with _clear_errors(game, game_options):  # without Gymnasium's checker, which takes as long as a CartPole step
            if own:
                env = plugins.environments.get(game)(**arguments)
            else:
                env = gymnasium.make(name, disable_env_checker=True, **arguments)
        env = _wrapped(_checked(env, game), wrappers)
        return FlatObservation(env) if game.startswith(DM_CONTROL) and _is_dict(env) else env

    limit = 0
    if not own:
        packages, limit = _packages_and_limit(game, name)
        asked = plugins.game_arguments(game_options).get("max_episode_steps")
        limit = max(asked, 0) if isinstance(asked, int) else limit  # -1 asks for no limit
    settings = {key: list(texts) for key, texts in (("game_options", game_options), ("wrappers", wrappers)) if texts}
    stamp = stamp_of("gymnasium", game, limit, *packages, **settings)
    adapt = _adapting_tried if trial else _adapting
    return GymnasiumEnvironment(adapt(game, make), num_envs, stamp, **options)


def _imported(game: str) -> str:
    """Imports the module of `module:id`, or registers dm_control's tasks, and returns the id."""
    if game.startswith(DM_CONTROL):
        register_dm_control()
    module, colon, name = game.rpartition(":")
    if colon:
        try:
            plugin_modules.import_named_module(module)
        except UsageError as error:
            raise UsageError(f"--game {game}: {error}") from error
        except Exception as error:
            raise UsageError(f"--game {game}: {module} cannot be imported: {in_one_line(error)}") from error
    return name


def _packages_and_limit(game: str, name: str) -> tuple[tuple[str, ...], int]:
    """The packages to stamp, and the agent steps of an episode (0: no limit that Gymnasium knows of)."""
    with _clear_errors(game):
        spec = gymnasium.spec(name)
    if game.startswith(DM_CONTROL):
        return ("dm-control", "shimmy", "mujoco"), spec.max_episode_steps or 0
    mujoco = str(spec.entry_point).startswith("gymnasium.envs.mujoco") and importlib.util.find_spec("mujoco")
    return ("mujoco",) if mujoco else (), spec.max_episode_steps or 0


def _checked(env: Any, game: str) -> gymnasium.Env:
    """`env` itself. Raises UsageError if a user's function made something that is no environment or lacks a space."""
    if not isinstance(env, gymnasium.Env):
        raise UsageError(f"--game {game} gave {env!r:.80}: have it return a gymnasium.Env")
    for name in ("observation_space", "action_space"):
        if getattr(env, name, None) is None:
            raise UsageError(f"--game {game} has no {name}: set it where the environment is made")
    return env


def _wrapped(env: gymnasium.Env, wrappers: Sequence[str]) -> gymnasium.Env:
    """`env` in these wrappers. Raises UsageError for one that is not registered, fails, or gives no environment."""
    for name in wrappers:
        wrap = plugins.wrappers.with_options("wrappers", name)
        try:
            env = wrap(env)
        except (Exception, SystemExit) as error:
            raise UsageError(f"--wrappers {name} failed: {in_one_line(error)}{raised_at(error)}") from error
        if not isinstance(env, gymnasium.Env):
            raise UsageError(f"--wrappers {name} gave {env!r:.80}: have it return a gymnasium.Env")
    return env


def _adapting(game: str, make: Callable[[], gymnasium.Env]) -> Callable[[], gymnasium.Env]:
    """`make`, with its environments adapted; an extra one, which is closed again, shows whether they give masks."""

    @functools.cache
    def masked() -> bool:
        with contextlib.closing(make()) as env:
            return gives_masks(env, game)

    def make_adapted() -> gymnasium.Env:
        env = make()
        return adapted(env, game, may_give_masks(env, game) and masked())

    return make_adapted


def _adapting_tried(game: str, make: Callable[[], gymnasium.Env]) -> Callable[[], gymnasium.Env]:
    """As `_adapting`, for a trial: each environment shows itself whether it gives masks, and none is extra."""

    def make_tried() -> gymnasium.Env:
        with contextlib.ExitStack() as if_refused:
            env = if_refused.enter_context(contextlib.closing(Tried(make(), game)))
            tried = adapted(env, game, gives_masks(env, game))
            if_refused.pop_all()
        return tried

    return make_tried


def _is_dict(env: gymnasium.Env) -> bool:
    return isinstance(env.observation_space, gymnasium.spaces.Dict)


@contextlib.contextmanager
def _clear_errors(game: str, game_options: Sequence[str] = ()) -> Iterator[None]:
    try:
        yield
    except gymnasium.error.DependencyNotInstalled as error:
        missing = str(error).replace("gymnasium[mujoco]", "ddrl[control]")  # with a MuJoCo that Gymnasium knows
        raise UsageError(f"{game} needs a package that is not installed: {missing}") from error
    except gymnasium.error.UnregisteredEnv as error:
        raise unknown_game(game) from error
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        if "No registered env" in str(error):  # an id without a version
            raise unknown_game(game) from error
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        message = f"cannot make the game {game!r}: {reason}; `python -m ddrl.envs` lists games"
        raise UsageError(message) from error
    except (Exception, SystemExit) as error:  # whatever an environment of a user raises
        if says_what_to_do(error):
            raise
        given = f"--game-options {' '.join(game_options):.80}: " if game_options else ""
        remedy = "fix the options or the environment" if game_options else "fix the environment"
        if isinstance(error, TypeError) and "missing" in str(error) and not raised_by_user(error):
            remedy = "give it with --game-options NAME=VALUE, or have the environment give it a default"
        message = f"{given}cannot make the game {game!r}: {in_one_line(error)}{raised_at(error)}; {remedy}"
        raise UsageError(message) from error
