"""Vector environments: ale-py's native one for Atari where it can, Gymnasium for everything else."""

from __future__ import annotations

from ddrl.config import EnvironmentConfig
from ddrl.envs.base import Step, VectorEnvironment, environment_seeds
from ddrl.envs.games import atari_rom
from ddrl.envs.protocols import PROTOCOLS, Protocol, find_protocol
from ddrl.errors import UsageError

__all__ = [
    "PROTOCOLS", "Protocol", "Step", "VectorEnvironment",
    "environment_seeds", "find_protocol", "make_environment",
]


def make_environment(
    config: EnvironmentConfig, num_envs: int, *, batch_size: int = 0, threads: int = 1, training: bool = True
) -> VectorEnvironment:
    """The vector environment that `config` names.

    Args:
        config: game and protocol; the protocol applies to Atari games only.
        num_envs: environments.
        batch_size: rows per recv (0: all). Only the native backend takes fewer than num_envs; the Gymnasium
            path steps all of them in turn and gives all rows.
        threads: emulator threads of the native backend; the Gymnasium path uses the caller's.
        training: the games are the same; the forced FIRE of evaluation is stamped only when False.

    Raises:
        UsageError: unknown game or protocol, an action space that is not discrete, impossible numbers.
    """
    if num_envs < 1:
        raise UsageError(f"num_envs is {num_envs}; at least 1 environment is needed")
    if not 0 <= batch_size <= num_envs:
        raise UsageError(f"predict batch {batch_size} is not in 0..{num_envs}, the environments of the group")
    if threads < 1:
        raise UsageError(f"simulator threads {threads}; at least 1 is needed")
    protocol = find_protocol(config.protocol)
    rom = atari_rom(config.game)
    if rom is None:
        from ddrl.envs.gymnasium_path import make_gymnasium

        env = make_gymnasium(config.game, num_envs)
    elif protocol.native:
        from ddrl.envs.atari_native import NativeAtari

        env = NativeAtari(rom, protocol, num_envs, batch_size=batch_size, threads=threads)
    else:
        from ddrl.envs.gymnasium_path import make_atari

        env = make_atari(rom, protocol, num_envs)
    if training:
        env.stamp["repeat_fire_after"] = 0
    return env
