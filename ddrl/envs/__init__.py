"""Vector environments: many games at once, behind one pair of calls, `recv` and `send`.

The games run in ale-py's own vector environment for the Atari protocols that it supports, in Gymnasium for everything
else, or in EnvPool (--backend envpool). Read `base` first, the interface of all of them, then `gymnasium_environment`.
Of ddrl's packages only `config` may be imported here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ddrl import checks
from ddrl.config import EnvironmentConfig
from ddrl.envs.base import Step, VectorEnvironment, environment_seeds
from ddrl.envs.game_names import FOOTBALL, atari_rom
from ddrl.envs.pinning import process_cores
from ddrl.envs.protocols import PROTOCOLS, Protocol, find_protocol
from ddrl.envs.starts import Starts
from ddrl.envs.step_time import GammaTimes, StepTime
from ddrl.errors import UsageError

if TYPE_CHECKING:
    from ddrl.envs.gymnasium_environment import GymnasiumEnvironment

__all__ = [
    "PROTOCOLS",
    "Protocol",
    "Step",
    "VectorEnvironment",
    "environment_seeds",
    "find_protocol",
    "for_trial",
    "is_light",
    "make_environment",
    "make_for_trial",
    "make_in_thread",
    "plain_game",
]


def make_environment(
    config: EnvironmentConfig,
    num_envs: int,
    *,
    batch_size: int = 0,
    threads: int = 1,
    training: bool = True,
    cores: Sequence[int] = (),
    starts: Starts | None = None,
) -> VectorEnvironment:
    """The vector environment that `config` names.

    Args:
        config: game and protocol; the protocol applies to Atari games only.
        num_envs: number of simulators. A simulator has one row, or `football_players` rows in football.
        batch_size: simulators per recv (0: all).
        threads: simulator threads of the native backend and of EnvPool; the Gymnasium path uses the caller's.
        training: False makes the plain game, which ignores the settings of `config` for resets, starts, step times,
            pinning, and processes; its stamp then has the protocol's forced FIRE of evaluation.
        cores: with `pin_simulators`, the cores to which threads or processes are pinned in turn (none: all cores of
            this process).
        starts: recorded starts with which Atari games begin, for evaluation.

    Raises:
        UsageError: unknown game or protocol, a space that is not supported, impossible numbers, an option that the
            backend lacks.
    """
    if num_envs < 1:
        raise UsageError(f"num_envs is {num_envs}; at least 1 environment is needed")
    if not 0 <= batch_size <= num_envs:
        raise UsageError(f"predict batch {batch_size}: must be from 0 to {num_envs}, the simulators of the group")
    if threads < 1:
        raise UsageError(f"simulator threads {threads}; at least 1 is needed")
    if not training:
        config = plain_game(config)
    if starts is not None:
        return _make_recorded(config, num_envs, starts)
    cores = tuple(cores or sorted(process_cores())) if config.pin_simulators else ()
    env = _make(config, num_envs, batch_size, threads, cores)
    if training:
        env.stamp["repeat_fire_after"] = 0
    if config.step_time_mean_ms:
        env.stamp.update(step_time_mean_ms=config.step_time_mean_ms, step_time_cv=config.step_time_cv)
        env = StepTime(env, GammaTimes(config.step_time_mean_ms / 1000.0, config.step_time_cv, num_envs))
    return env


def for_trial(config: EnvironmentConfig) -> EnvironmentConfig:
    """What of `config` matters when the game is tried before a run starts.

    If it is light (`is_light`), it is the plain game, which as in training is stepped in the calling thread, or in a
    process with `simulator_processes`.
    """
    if not is_light(config):
        return config
    return dataclasses.replace(plain_game(config), simulator_processes=config.simulator_processes)


def make_for_trial(config: EnvironmentConfig) -> VectorEnvironment:
    """One game to be tried before a run starts, with settings from `for_trial`.

    If it is light, its environment is reset only once: the reset that shows whether it gives masks also begins the
    game.

    Raises:
        UsageError: as make_environment.
    """
    if not is_light(config):
        return make_environment(config, num_envs=1)
    return _make(config, 1, batch_size=0, threads=1, cores=(), trial=True)


def is_light(config: EnvironmentConfig) -> bool:
    """Whether a step of the game often takes less time than the work for each recv and send.

    That holds for games that are stepped in the calling thread in evaluation, and are neither Atari nor football.
    """
    return config.backend != "envpool" and atari_rom(config.game) is None and not config.game.startswith(FOOTBALL)


def _make_recorded(config: EnvironmentConfig, num_envs: int, starts: Starts) -> VectorEnvironment:
    """An Atari game whose episodes begin with recorded starts."""
    from ddrl.envs.gymnasium_path import make_atari

    rom = _rom(config)
    if rom is None:
        raise UsageError(f"--starts: {config.game} is not an Atari game, and has no recorded starts; leave it out")
    return make_atari(rom, _protocol(config), num_envs, starts=starts, wrappers=config.wrappers)


def plain_game(config: EnvironmentConfig) -> EnvironmentConfig:
    """`config` without what concerns training only."""
    kept = (
        "game", "game_options", "wrappers", "protocol", "backend", "life_loss_terminal", "football_view",
        "football_players",
    )  # fmt: skip
    return EnvironmentConfig(**{name: getattr(config, name) for name in kept})


def _make(
    config: EnvironmentConfig, num_envs: int, batch_size: int, threads: int, cores: tuple[int, ...], trial: bool = False
) -> VectorEnvironment:
    protocol, rom = _protocol(config), _rom(config)
    starts = config.random_start_steps
    if config.backend == "envpool":
        from ddrl.envs.envpool_environment import EnvPoolEnvironment

        return EnvPoolEnvironment(
            config.game,
            protocol,
            num_envs,
            batch_size=batch_size,
            threads=threads,
            random_start_steps=starts,
            cores=cores,
        )
    if rom is not None and protocol.native and not config.wrappers:
        from ddrl.envs.atari_native import NativeAtari

        _check_native(config, protocol)
        return NativeAtari(
            rom, protocol, num_envs, batch_size=batch_size, threads=threads, random_start_steps=starts, cores=cores
        )
    # A process can draw the pictures of only one game.
    processes = num_envs if config.football_view == "pixels" else min(config.simulator_processes, num_envs)
    if processes:
        from ddrl.envs.process_environment import ProcessEnvironment

        return ProcessEnvironment(config, num_envs, processes, batch_size=batch_size, cores=cores, trial=trial)
    return make_in_thread(config, num_envs, trial=trial, batch_size=batch_size, core=cores[0] if cores else None)


def _check_native(config: EnvironmentConfig, protocol: Protocol) -> None:
    native = f"Atari under the protocol {protocol.name!r} runs in ale-py's emulator threads"
    if config.reset != "at-once":
        raise UsageError(f"--reset {config.reset}: {native}, which reset games at once; leave it out")
    if config.simulator_processes:
        processes = f"--simulator-processes {config.simulator_processes}"
        raise UsageError(f"{processes}: {native}; leave it at 0, and give --simulator-threads")


def _rom(config: EnvironmentConfig) -> str | None:
    """The Atari ROM that `config` names, or None. Raises UsageError for a ROM with --game-options."""
    rom = atari_rom(config.game)
    if rom is not None:
        checks.unused(config, "the rules of Atari games are those of --protocol; leave it out", "game_options")
    return rom


def _protocol(config: EnvironmentConfig) -> Protocol:
    """The Atari protocol that `config` names, with episodes cut to `episode_frames` if that is set."""
    protocol = find_protocol(config.protocol)
    if not config.episode_frames:
        return protocol
    steps = max(1, config.episode_frames * protocol.max_agent_steps // protocol.max_frames)
    return dataclasses.replace(protocol, max_agent_steps=min(steps, protocol.max_agent_steps))


def make_in_thread(
    config: EnvironmentConfig, num_envs: int, *, trial: bool = False, **options: Any
) -> GymnasiumEnvironment:
    """Simulators on the Gymnasium path, stepped in the calling thread.

    Args:
        config: game and protocol.
        num_envs: simulators.
        trial: a light game is only tried; see `make_for_trial`.
        options: `batch_size`, `first`, and `core` as in GymnasiumEnvironment; also `render_mode` 'rgb_array' for
            pictures, except for Atari.
    """
    from ddrl.envs.gymnasium_path import make_atari, make_gymnasium

    options |= {"reset": config.reset, "random_start_steps": config.random_start_steps}
    rom = _rom(config)
    if rom is not None:
        return make_atari(rom, _protocol(config), num_envs, wrappers=config.wrappers, **options)
    if config.game.startswith(FOOTBALL):
        from ddrl.envs.football import make_football

        return make_football(config, num_envs, **options)
    return make_gymnasium(
        config.game, num_envs, game_options=config.game_options, wrappers=config.wrappers, trial=trial, **options
    )
