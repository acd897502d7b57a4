"""Which of EnvPool's tasks a game is, with which settings, and what EnvPool cannot do of a protocol.

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

# Each was brought to the state of Gymnasium's or dm_control's own and played beside it, but for Box2D, whose states
# cannot be set: there, scores and lengths of random play agree. EnvPool has more tasks; some of those of the same name
# have other rewards (ball_in_cup) or starts (cartpole-two_poles), and others do not show the state to compare from.
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
        name: EnvPool's, such as HalfCheetah-v5.
        settings: for its maker.
        foreign_entries: names of observations that are not the task's own.
    """

    name: str
    settings: dict[str, Any]
    foreign_entries: tuple[str, ...] = ()


def import_envpool() -> ModuleType:
    """Raises UsageError where it is not installed."""
    try:
        import envpool
    except ImportError as error:
        raise UsageError(
            f'--backend envpool: EnvPool is not installed ({error}): pip install "ddrl[envpool]" with Python 3.11 or '
            "newer, or leave --backend out"
        ) from error
    return envpool


def find_task(game: str, protocol: Protocol) -> Task:
    """The task that `game` is, an Atari game under `protocol`.

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
    """Those that are no Atari games, sorted."""
    tasks = (f"{DM_CONTROL}{domain}-{task}-v0" for domain, tasks in _CONTROL_TASKS.items() for task in tasks)
    return sorted([*_SAME_NAME, *tasks])


def _control_task(game: str) -> Task:
    """EnvPool gives all tasks of a domain the entries that one of them has: the others' are left out."""
    words = re.split("[-_]", game.removeprefix(DM_CONTROL).removesuffix("-v0"))
    name = "".join(word[0].upper() + word[1:] for word in words) + "-v1"
    if name == "HumanoidRunPureState-v1":
        return Task(name, {}, ("com_velocity", "extremities", "head_height", "joint_angles", "torso_vertical"))
    return Task(name, {}, ("position",) if words[0] == "humanoid" else ())


def atari_settings(protocol: Protocol) -> dict[str, Any]:
    """EnvPool's for `protocol`; the no-ops begin at one, FIRE included, where those of ddrl's own paths may be none.

    Raises:
        UsageError: for what EnvPool cannot do.
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
        # Raw rewards and whole games are needed for scores; the returns deal with lives.
        "episodic_life": False,
        "reward_clip": False,
        "zero_discount_on_life_loss": False,
    }
