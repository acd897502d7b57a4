"""`ddrl bench replay --kind shard-...`: one replay shard of Ape-X on one core, beside DeepMind's Reverb."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddrl.apex.segment import Segment, SegmentFormat, renumbered
from ddrl.apex.shard_replay import ShardReplay
from ddrl.bench.phases import random_actions
from ddrl.bench.timing import rate, work_for
from ddrl.placement.resources import available_memory
from ddrl.replay.replay import check_memory
from ddrl.types import Continuous, Discrete

SIMULATORS = 64  # simulators that the segments come from
FRAMES = 600  # frames of each recorded game
GAMES = 4
NOTES = {
    "inserts_per_s_ratio": "ours on one core / Reverb on all cores of this process",
    "samples_per_s_ratio": "likewise",
}
PEER_SECONDS = 300.0  # allowed for the peer to fill its table, besides its start and its measurements
TRIM_EVERY = 100  # batches between two trims of a shard


class Kind(NamedTuple):
    """The kind of transitions that a shard is measured with.

    Attributes:
        format: format of the segments.
        batch_size: transitions drawn at once.
        eviction_exponent: exponent of the priorities by which transitions are evicted; None: the oldest go first.
        inserts_per_sample: transitions inserted for each one drawn, the ratio that a shard must sustain.
    """

    format: SegmentFormat
    batch_size: int
    eviction_exponent: float | None
    inserts_per_sample: float


# Horgan et al. 2018: 12,500 inserts and 9,700 samples a second with 360 actors; the humanoid's 67 features, 21 actions.
KINDS = {
    "shard-images": Kind(SegmentFormat((4, 84, 84), "uint8", Discrete(6), 4, 3), 512, None, 12_500 / 9_700),
    "shard-features": Kind(
        SegmentFormat((67,), "float32", Continuous((-1.0,) * 21, (1.0,) * 21), 1, 5), 256, -0.4, 14_000 / 22_000
    ),
}


def measure(kind: str, capacity: int, seconds: float, peer_python: str = "") -> dict[str, Any]:
    """Measures the rates of a full shard, and those of the peer with the same frames; the ratios are ours / peer.

    Everything runs in one thread. Segments arrive as bytes, as they come from actors; giving recorded segments new
    numbers takes half a percent of an insert's time. Priorities are set after every batch, and every 100 batches the
    shard is trimmed.

    Raises:
        UsageError: the shard does not fit into memory, its capacity is out of range, or the peer cannot be run.
    """
    settings = KINDS[kind]
    check_memory(ShardReplay.bytes_for(settings.format, capacity, settings.eviction_exponent), available_memory())
    frames = recorded_frames() if kind == "shard-images" else noise()
    peer = _peer(peer_python, kind, capacity, seconds, frames) if peer_python else None
    ours = _rates(settings, capacity, frames, seconds)
    if peer is None:
        return ours
    names = ("inserts_per_s", "samples_per_s")
    ratios = {f"{name}_ratio": ours[name] / peer[name] for name in names if peer.get(name)}
    return ours | {"peer": peer} | ratios


def recorded_frames() -> np.ndarray:
    """Frames of Breakout, played at random, <uint8>[GAMES, FRAMES, 1, 84, 84]: they compress as real frames do."""
    from ddrl.config import EnvironmentConfig
    from ddrl.envs import make_environment

    environment = make_environment(EnvironmentConfig(game="breakout", protocol="nature"), GAMES, threads=1)
    random, frames = np.random.default_rng(0), np.zeros((GAMES, FRAMES, 1, 84, 84), np.uint8)
    environment.reset(seed=0)
    for step in range(FRAMES):
        received = environment.recv()
        frames[received.env_id, step, 0] = received.observation[:, -1]
        environment.send(random.integers(environment.action_space.head_size, size=GAMES).astype(np.int32))
    environment.close()
    return frames


def noise() -> np.ndarray:
    """Normally distributed features in place of frames, <float32>[GAMES, FRAMES, 67]."""
    return np.random.default_rng(0).standard_normal((GAMES, FRAMES, 67)).astype(np.float32)


def rates(
    draw: Callable[[], int], insert: Callable[[], int], inserts_per_sample: float, seconds: float
) -> dict[str, Any]:
    """Samples and inserts per second, in turns and each alone, in one thread.

    Args:
        draw: draws a batch and gives it new priorities; returns its transitions.
        insert: returns how many transitions it inserted.
        inserts_per_sample: transitions inserted for each that is drawn.
    """
    due, inserted = 0.0, 0

    def both() -> int:
        nonlocal due, inserted
        drawn = draw()
        due += inserts_per_sample * drawn
        while due > 0.0:
            count = insert()
            due, inserted = due - count, inserted + count
        return drawn

    sampled, elapsed = work_for(both, seconds)
    return {
        "samples_per_s": round(sampled / elapsed),
        "inserts_per_s": round(inserted / elapsed),
        "samples_per_s_alone": round(rate(draw, seconds)),
        "inserts_per_s_alone": round(rate(insert, seconds)),
        "cores": 1,
    }


def _rates(kind: Kind, capacity: int, frames: np.ndarray, seconds: float) -> dict[str, Any]:
    """Fills a shard and measures its rates."""
    random, length = np.random.default_rng(0), kind.format.length
    replay = ShardReplay(kind.format, capacity, eviction_exponent=kind.eviction_exponent)
    recorded = [kind.format.encode(recorded_segment(kind.format, frames, i, random)) for i in range(SIMULATORS)]
    shape, dtype = (kind.batch_size, *kind.format.observation_shape), kind.format.observation_type
    memory, inserts, draws = (np.empty(shape, dtype), np.empty(shape, dtype)), itertools.count(), itertools.count()

    def insert() -> int:
        round_, simulator = divmod(next(inserts), SIMULATORS)
        replay.insert(renumbered(recorded[simulator], 0, 1, simulator, round_ * length))
        return length

    def draw() -> int:
        drawn = replay.sample(random, kind.batch_size, 0.4, memory)
        replay.set_priorities(drawn.key, random.random(kind.batch_size, np.float32))
        if next(draws) % TRIM_EVERY == 0:
            replay.trim()
        return kind.batch_size

    while replay.size < capacity:
        insert()
    return rates(draw, insert, kind.inserts_per_sample, seconds)


def recorded_segment(format: SegmentFormat, frames: np.ndarray, simulator: int, random: np.random.Generator) -> Segment:
    """A segment with frames of a recorded game and random actions, rewards and priorities."""
    count, older = format.length, format.stack - 1
    first = 7 * simulator % (FRAMES - format.most_frames)
    ones = np.ones(count, np.float32)
    return Segment(
        actor=0,
        run_id=1,
        simulator=simulator,
        first_step=0,
        frames=frames[simulator % GAMES, first : first + format.most_frames],
        age=np.full(format.most_frames, older, np.uint8),
        row=np.arange(older, older + count, dtype=np.int32),
        steps=np.full(count, format.n_step, np.int32),
        action=random_actions(format.action_space, (count,), random),
        reward=random.random(count, np.float32),
        discount=0.97 * ones,
        version=np.zeros(count, np.int64),
        priority=random.random(count, np.float32),
    )


def _peer(python: str, kind: str, capacity: int, seconds: float, frames: np.ndarray) -> dict[str, Any]:
    """The rates of Reverb with the same frames, on all cores of this process."""
    from ddrl.bench.peers import peer_command, peer_result

    settings = KINDS[kind]
    with tempfile.TemporaryDirectory(prefix="ddrl-") as directory:
        path = Path(directory, "frames.npy")
        options = {
            "frames": str(path), "capacity": capacity, "seconds": seconds, "batch_size": settings.batch_size,
            "inserts_per_sample": settings.inserts_per_sample, "stack": settings.format.stack,
            "n_step": settings.format.n_step, "actions": sum(settings.format.action_space.action_shape),
        }  # fmt: skip
        command = peer_command(python, "reverb", "peer_reverb.py", json.dumps(options))
        np.save(path, frames)
        return peer_result(command, "reverb", PEER_SECONDS + 6 * seconds)
