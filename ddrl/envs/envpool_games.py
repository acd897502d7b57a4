"""Finds EnvPool's task and its settings for a game, and refuses protocols that EnvPool cannot follow.

Weng et al., EnvPool: A Highly Parallel Reinforcement Learning Environment Execution Engine, 2022.
"""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any, NamedTuple

from ddrl.envs.control import DM_CONTROL
from ddrl.envs.game_names import atari_rom
from ddrl.envs.protocols import Protocol
from ddrl.errors import UsageError

# Each task was set to the state of Gymnasium's or dm_control's own task and played beside it. Box2D's states cannot be
# set; there, scores and lengths of random play agree. EnvPool has more tasks, but some of them have other rewards
# (ball_in_cup) or starts (cartpole-two_poles) than the tasks of the same name, and others do not show the state that a
# comparison begins with.
_MUJOCO = ("Ant", "HalfCheetah", "Hopper", "Humanoid", "InvertedPendulum", "InvertedDoublePendulum", "Reacher")
_SAME_NAME = {
    *("CartPole-v0", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "Acrobot-v1"),
    *("LunarLander-v3", "LunarLanderContinuous-v3", "BipedalWalker-v3"),
    *(f"{name}-v{version}" for name in (*_MUJOCO, "Swimmer", "Walker2d") for version in (4, 5)),
}
_CONTROL_TASKS = {
    "acrobot": ("swingup", "swingup_sparse"),
    "cartpole": ("balance", "balance_sparse", "swingup", "swingup_sparse"),
    "cheetah": ("run",),
    "hopper": ("stand", "hop"),
    "humanoid": ("stand", "walk", "run", "run_pure_state"),
    "pendulum": ("swingup",),
    "point_mass": ("easy",),
    "reacher": ("easy", "hard"),
    "walker": ("stand", "walk", "run"),
}


class Task(NamedTuple):
    """A task of EnvPool.

    Attributes:
        name: EnvPool's name, such as HalfCheetah-v5.
        settings: keyword arguments with which EnvPool makes it.
        foreign_entries: entries of the observations that belong to other tasks, and are left out.
    """

    name: str
    settings: dict[str, Any]
    foreign_entries: tuple[str, ...] = ()


def import_envpool() -> ModuleType:
    """Imports EnvPool. Raises UsageError if it is not installed."""
    try:
        import envpool
    except ImportError as error:
        raise UsageError(
            f'--backend envpool: EnvPool is not installed ({error}): pip install "ddrl[envpool]" with Python 3.11 or '
            "newer, or leave --backend out"
        ) from error
    return envpool


def find_task(game: str, protocol: Protocol) -> Task:
    """EnvPool's task for `game`; Atari games have the settings of `protocol`.

    Raises:
        UsageError: EnvPool is not installed, does not have the game, or cannot do what the protocol says.
    """
    specs = import_envpool().registration.registry.specs
    rom = atari_rom(game)
    if rom is not None:
        tasks = {settings["task"]: name for name, (package, _, settings) in specs.items() if package == "envpool.atari"}
        if rom in tasks:
            return Task(tasks[rom], atari_settings(protocol))
    elif game in envpool_games():
        return _control_task(game) if game.startswith(DM_CONTROL) else Task(game, {})
    raise UsageError(
        f"--backend envpool: {game!r} is not one of its games, which `python -m ddrl.envs` lists; leave --backend out"
    )


def envpool_games() -> list[str]:
    """The games that can run in EnvPool and are not Atari games, sorted."""
    tasks = (f"{DM_CONTROL}{domain}-{task}-v0" for domain, tasks in _CONTROL_TASKS.items() for task in tasks)
    return sorted([*_SAME_NAME, *tasks])


def _control_task(game: str) -> Task:
    """The task of a dm_control game, without observation entries that EnvPool adds from other tasks of its domain."""
    words = re.split("[-_]", game.removeprefix(DM_CONTROL).removesuffix("-v0"))
    name = "".join(word[0].upper() + word[1:] for word in words) + "-v1"
    if name == "HumanoidRunPureState-v1":
        return Task(name, {}, ("com_velocity", "extremities", "head_height", "joint_angles", "torso_vertical"))
    return Task(name, {}, ("position",) if words[0] == "humanoid" else ())


def atari_settings(protocol: Protocol) -> dict[str, Any]:
    """EnvPool's settings for `protocol`.

    A game in EnvPool begins with at least one no-op, FIRE included; on ddrl's own paths it may begin with none.

    Raises:
        UsageError: EnvPool cannot follow the protocol.
    """
    lacks = (
        (not isinstance(protocol.frame_skip, int), "a random number of frames per step"),
        (protocol.crop_rows > 0, "a crop"),
        (protocol.noop_max < 1, "games without a no-op frame at their start"),
        (not protocol.max_pool and protocol.frame_skip != 1, "steps without the maximum of the last two frames"),
    )
    if lacking := ", ".join(what for needed, what in lacks if needed):
        remedy = "use --protocol nature, or leave --backend out"
        raise UsageError(f"--protocol {protocol.name}: EnvPool lacks {lacking}; {remedy}")
    return {
        "frame_skip": protocol.frame_skip,
        "noop_max": protocol.noop_max,
        "use_fire_reset": protocol.fire_reset,
        "max_episode_steps": protocol.max_agent_steps,
        "repeat_action_probability": protocol.stickiness,
        "full_action_space": protocol.full_action_space,
        "img_height": protocol.height,
        "img_width": protocol.width,
        "gray_scale": not protocol.color,
        "use_inter_area_resize": True,
        "stack_num": protocol.stack,
        # Scores need raw rewards and whole games; lost lives count where returns are computed.
        "episodic_life": False,
        "reward_clip": False,
        "zero_discount_on_life_loss": False,
    }
