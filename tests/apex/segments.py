"""Segments for the tests of Ape-X's replay: made of noise, or by actors that play."""

from __future__ import annotations

import numpy as np

from ddrl.apex.segment import Segment, SegmentFormat
from ddrl.apex.segment_builder import SegmentBuilder
from ddrl.apex.shard_replay import ShardReplay
from ddrl.types import Continuous, Discrete
from tests.replay.simulators import Simulators

IMAGES = SegmentFormat((8, 3), "uint8", Discrete(5), stack=4, n_step=3, length=10)
FEATURES = SegmentFormat((7,), "float32", Continuous((-1.0,) * 2, (1.0,) * 2), n_step=5, length=10)


def noise(
    format: SegmentFormat, random, *, actor=0, run_id=1, simulator=0, first_step=0, transitions=None, priority=None
):
    """A segment in the middle of an episode, every frame of which is another."""
    count = format.length if transitions is None else transitions
    frames = format.stack - 1 + count + format.n_step
    space = format.action_space
    return Segment(
        actor,
        run_id,
        simulator,
        first_step,
        frames=random.integers(1, 255, (frames, *format.frame_shape)).astype(format.observation_type),
        age=np.minimum(np.arange(frames), format.stack - 1).astype(np.uint8),
        row=np.arange(format.stack - 1, format.stack - 1 + count, dtype=np.int32),
        steps=np.full(count, format.n_step, np.int32),
        action=random.integers(space.count, size=count).astype(np.int32)
        if isinstance(space, Discrete)
        else random.standard_normal((count, *space.action_shape)).astype(np.float32),
        reward=random.standard_normal(count).astype(np.float32),
        discount=np.full(count, 0.9, np.float32),
        version=np.full(count, 7, np.int64),
        priority=random.exponential(size=count).astype(np.float32)
        if priority is None
        else np.full(count, priority, np.float32),
    )


class Player:
    """An actor whose simulators end episodes in every way, with Q-values of noise."""

    def __init__(self, format: SegmentFormat, simulators=2, actor=0, run_id=0, seed=0, **options):
        self.random = np.random.default_rng(seed + 1)
        frame = format.frame_shape
        self.simulators = Simulators(
            simulators, format.stack, frame, np.dtype(format.observation_type), seed=seed, **options
        )
        self.format = format
        self.builder = SegmentBuilder(format, simulators, actor, run_id)
        self.unroll, self.action_value = None, None  # the last ones

    def play(self, steps):
        """The segments that became full."""
        unroll = self.simulators.unroll(steps)
        random, shape = self.random, unroll.reward.shape
        if not isinstance(self.format.action_space, Discrete):
            size = self.format.action_space.action_shape
            unroll = unroll._replace(action=random.standard_normal((*shape, *size)).astype(np.float32))
        self.unroll = unroll._replace(value=random.standard_normal((steps + 1, shape[1])).astype(np.float32))
        self.action_value = random.standard_normal(shape).astype(np.float32)
        return self.builder.add(self.unroll, self.action_value)


def rest_of(builder: SegmentBuilder) -> list[Segment]:
    """Segments of the remaining steps whose n next ones are there, too few for a message."""
    return builder._cut(builder._ready()) if builder._ready() > builder._next else []


def remove(shard: ShardReplay, keys: np.ndarray) -> int:
    """Evicts these transitions, in whatever order they came; returns how many there were."""
    items = np.unique(shard._find(keys)[0])
    shard._evict(items)
    return len(items)


def transitions(format: SegmentFormat, segment: Segment):
    """Each transition of a segment as the slow replay gives it, read frame by frame."""
    return [
        (
            _stack(format, segment, segment.row[i]),
            segment.action[i],
            segment.reward[i],
            segment.discount[i],
            _stack(format, segment, segment.row[i] + segment.steps[i]),
            segment.version[i],
        )
        for i in range(len(segment.row))
    ]


def _stack(format, segment, newest):
    frames = [
        segment.frames[newest - back] if back <= segment.age[newest] else np.zeros_like(segment.frames[0])
        for back in reversed(range(format.stack))
    ]
    return np.stack(frames).reshape(format.observation_shape)
