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

_ATARI = "envpool.atari"
_CONTROL_SUITE = "envpool.mujoco.dmc"
# Of EnvPool's packages: those whose games were compared with the Gymnasium path.
_COMPARED = ("envpool.classic_control", "envpool.box2d", "envpool.mujoco.gym")
KINDS = "Atari, classic control, Box2D, MuJoCo's Gymnasium tasks, dm_control"

# EnvPool gives the tasks of a domain all entries that one of them has; those that the task itself lacks are left out.
_FOREIGN_ENTRIES = (
    (r"Dog(Stand|Walk|Trot|Run)-", ("ball_state", "target_position")),
    (r"FingerSpin-", ("dist_to_target", "target_position")),
    (r"FishUpright-", ("target",)),
    (r"Humanoid(Stand|Walk|Run)-", ("position",)),
    (r"HumanoidRunPureState-", ("com_velocity", "extremities", "head_height", "joint_angles", "torso_vertical")),
    (r"Quadruped(Walk|Run)-", ("ball_state", "origin", "rangefinder", "target_position")),
    (r"QuadrupedEscape-", ("ball_state", "target_position")),
    (r"QuadrupedFetch-", ("origin", "rangefinder")),
)


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
            f'--backend envpool: EnvPool is not there ({error}): pip install "ddrl[envpool]" with Python 3.11 or '
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
        tasks = {settings["task"]: name for name, (package, _, settings) in specs.items() if package == _ATARI}
        if rom in tasks:
            return Task(tasks[rom], atari_settings(protocol))
    elif game.startswith(DM_CONTROL):
        name = _control_suite_name(game.removeprefix(DM_CONTROL))
        if name in specs and specs[name][0] == _CONTROL_SUITE:
            foreign = [names for pattern, names in _FOREIGN_ENTRIES if re.match(pattern, name)]
            return Task(name, {}, *foreign)
    elif game in specs and specs[game][0] in _COMPARED:
        return Task(game, {})
    raise UsageError(f"--backend envpool: it has no game {game!r} among {KINDS}; leave --backend out")


def _control_suite_name(name: str) -> str:
    """EnvPool's for dm_control's: ball_in_cup-catch-v0 is BallInCupCatch-v1."""
    words = re.split("[-_]", re.sub(r"-v\d+$", "", name))
    return "".join(word[:1].upper() + word[1:] for word in words) + "-v1"


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
        remedy = "give --protocol nature, or leave --backend out"
        raise UsageError(f"--protocol {protocol.name}: EnvPool does not have {lacking}; {remedy}")
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
