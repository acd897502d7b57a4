"""Named Atari evaluation protocols: every choice that changes what a score means, and how each protocol differs.

Nothing here imports Gymnasium or ALE.
"""

from __future__ import annotations

import dataclasses

from ddrl.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How an Atari game is presented, started, cut off and played in evaluation.

    Attributes:
        name: the preset's name, stamped into every result.
        fire_reset: press FIRE for one frame at the start of a game, in games that have this action.
        noop_max: no-op frames at the start of a game are uniform on 0..noop_max (inclusive); a FIRE
            that was pressed counts as one of them.
        max_agent_steps: a game is truncated after this many agent steps.
        frame_skip: frames per agent step; (low, high) draws them uniformly, both ends included.
        max_pool: observe the pixelwise maximum of the last two frames of a step, not the last frame.
        crop_rows: rows cut from the bottom of the 210x160 screen before resizing.
        height, width: pixels of the observation; resized by area averaging.
        color: RGB (3 channels per frame) or luminance (1).
        stickiness: probability, per frame, that the emulator repeats the previous action.
        full_action_space: all 18 actions, not the game's minimal set.
        stack: frames per observation, oldest first; frames from before the game are zero.
        repeat_fire_after: in evaluation, from this many identical greedy actions in a row on, action 1
            (FIRE where the game has it) is sent in their place; 0: never.
    """

    name: str
    fire_reset: bool
    noop_max: int
    max_agent_steps: int
    frame_skip: int | tuple[int, int]
    max_pool: bool
    crop_rows: int
    height: int
    width: int
    color: bool
    stickiness: float
    full_action_space: bool
    stack: int
    repeat_fire_after: int

    @property
    def max_frames(self) -> int:
        """The cap in frames: no game is longer. With a fixed skip it is the same cap as in agent steps."""
        skip = self.frame_skip if isinstance(self.frame_skip, int) else self.frame_skip[1]
        return self.max_agent_steps * skip

    @property
    def native(self) -> bool:
        """True when ale-py's native vector environment can do it (it has no random skip and no crop)."""
        return isinstance(self.frame_skip, int) and self.crop_rows == 0

    @property
    def observation_shape(self) -> tuple[int, int, int]:
        """(channels, height, width); channels are frame-major."""
        return (self.stack * (3 if self.color else 1), self.height, self.width)

    def stamp(self) -> dict:
        """Every setting by name, JSON-able, the cap in frames included."""
        fields = dataclasses.asdict(self)
        fields["protocol"] = fields.pop("name")
        if not isinstance(self.frame_skip, int):
            fields["frame_skip"] = list(self.frame_skip)
        return {**fields, "max_frames": self.max_frames}


# Mnih et al., Human-level control through deep reinforcement learning, 2015: no-ops up to 30, skip 4,
# maximum of two frames, 30 minutes of play. Fire at reset is a habit of later code, and the forced
# FIRE in evaluation, without which a greedy player that never serves plays for 30 minutes, is ours.
NATURE = Protocol(
    name="nature",
    fire_reset=True,
    noop_max=30,
    max_agent_steps=27_000,
    frame_skip=4,
    max_pool=True,
    crop_rows=0,
    height=84,
    width=84,
    color=False,
    stickiness=0.0,
    full_action_space=False,
    stack=4,
    repeat_fire_after=30,
)

# Machado et al., Revisiting the Arcade Learning Environment, 2018: sticky actions are the only
# randomness, all 18 actions. The cap of 30 minutes is ours, so that scores compare with the other
# protocols, and so is showing the frames as `nature` does.
MACHADO18 = dataclasses.replace(
    NATURE, name="machado18", fire_reset=False, noop_max=0, stickiness=0.25, full_action_space=True, repeat_fire_after=0
)

# Adamski et al., Distributed Deep Reinforcement Learning: Learn how to play Atari games in 21 minutes,
# 2018: Gym's Breakout-v0 of that time. Area averaging is ours; their code resized bilinearly.
BA3C = dataclasses.replace(
    NATURE,
    name="ba3c",
    fire_reset=False,
    noop_max=0,
    max_agent_steps=10_000,
    frame_skip=(2, 4),
    max_pool=False,
    color=True,
    stickiness=0.25,
)

# Stooke and Abbeel, Accelerated Methods for Deep Reinforcement Learning, 2018: two rows cropped, then
# halved, so that every pixel is the mean of a 2x2 block.
STOOKE = dataclasses.replace(
    NATURE, name="stooke", fire_reset=False, crop_rows=2, height=104, width=80, repeat_fire_after=0
)

PROTOCOLS = {protocol.name: protocol for protocol in (NATURE, MACHADO18, BA3C, STOOKE)}


def find_protocol(name: str) -> Protocol:
    """The preset of this name. Raises UsageError naming the known ones."""
    if name not in PROTOCOLS:
        raise UsageError(f"unknown protocol {name!r}; known: {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]
