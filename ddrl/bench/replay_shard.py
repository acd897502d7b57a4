"""`ddrl bench replay --kind shard-...`: one replay shard of Ape-X on one core, beside DeepMind's Reverb."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddrl.apex.segment import Segment, SegmentFormat
from ddrl.apex.shard_replay import ShardReplay
from ddrl.types import Continuous, Discrete

SIMULATORS = 64  # that the segments come from
FRAMES = 600  # of each recorded game
GAMES = 4
NOTES = {
    "inserts_per_s": "transitions, arriving as bytes of segments",
    "samples_per_s": "drawn, gathered and given new priorities, at the same time on the same core",
    "inserts_per_s_alone": "nothing is sampled",
    "samples_per_s_alone": "nothing is inserted",
    "inserts_per_s_ratio": "ours on one core / Reverb on all cores of this process",
    "samples_per_s_ratio": "likewise",
}
PEER_SECONDS = 300.0  # allowed for a peer beyond its start and what it measures: filling its table
TRIM_EVERY = 100  # batches


class Kind(NamedTuple):
    """What the transitions are.

    Attributes:
        format: of the segments.
        batch_size: transitions drawn at once.
        eviction_exponent: None where the oldest go first.
        inserts_per_sample: transitions inserted for each that is drawn, as asked of a shard.
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
    """Rates of a full shard, and those of the peer with the same frames; the ratios are ours / peer.

    Segments arrive as bytes, as they come from actors; making them is not measured. Priorities are set after every
    batch, and every 100 batches the shard is trimmed. One thread.

    Raises:
        UsageError: the peer cannot be run.
    """
    frames = recorded_frames() if kind == "shard-images" else noise()
    peer = _peer(peer_python, kind, capacity, seconds, frames) if peer_python else None
    ours = _Shard(KINDS[kind], capacity, frames).rates(seconds)
    if peer is None:
        return ours
    names = ("inserts_per_s", "samples_per_s")
    ratios = {f"{name}_ratio": ours[name] / peer[name] for name in names if peer.get(name)}
    return ours | {"peer": peer} | ratios


def recorded_frames() -> np.ndarray:
    """<uint8>[GAMES, FRAMES, 1, 84, 84] of Breakout, played at random: what compresses as frames of games do."""
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
    """<float32>[GAMES, FRAMES, 67]."""
    return np.random.default_rng(0).standard_normal((GAMES, FRAMES, 67)).astype(np.float32)


class _Shard:
    """A full shard, and segments without end for it."""

    def __init__(self, kind: Kind, capacity: int, frames: np.ndarray):
        self.kind, self.random = kind, np.random.default_rng(0)
        self.replay = ShardReplay(kind.format, capacity, eviction_exponent=kind.eviction_exponent)
        self._segments = [recorded_segment(kind.format, frames, i, self.random) for i in range(SIMULATORS)]
        self._count = 0
        shape = (kind.batch_size, *kind.format.observation_shape)
        self._memory = (np.empty(shape, kind.format.observation_type), np.empty(shape, kind.format.observation_type))
        while self.replay.size < capacity:
            self.replay.insert(self._next())

    def rates(self, seconds: float) -> dict[str, Any]:
        """Both at once, then each alone."""
        inserts, samples = self._run(seconds, self.kind.inserts_per_sample)
        return {
            "inserts_per_s": round(inserts),
            "samples_per_s": round(samples),
            "inserts_per_s_alone": round(self._run(seconds / 2, None)[0]),
            "samples_per_s_alone": round(self._run(seconds / 2, 0.0)[1]),
            "cores": 1,
        }

    def _run(self, seconds: float, inserts_per_sample: float | None) -> tuple[float, float]:
        """Inserts/s and samples/s; None: inserts only. The clock stands still while segments are made."""
        length, batch = self.kind.format.length, self.kind.batch_size
        elapsed = due = 0.0
        inserted = sampled = 0
        while elapsed < seconds:
            due += length if inserts_per_sample is None else inserts_per_sample * batch
            coming = [self.kind.format.encode(self._next()) for _ in range(int(due // length))]
            began = time.perf_counter()
            if inserts_per_sample is not None:
                self._draw(sampled // batch)
                sampled += batch
            for data in coming:
                self.replay.insert(data)
            elapsed += time.perf_counter() - began
            due -= len(coming) * length
            inserted += len(coming) * length
        return inserted / elapsed, sampled / elapsed

    def _draw(self, number: int) -> None:
        drawn = self.replay.sample(self.random, self.kind.batch_size, 0.4, self._memory)
        self.replay.set_priorities(drawn.key, self.random.random(self.kind.batch_size, np.float32))
        if number % TRIM_EVERY == 0:
            self.replay.trim()

    def _next(self) -> Segment:
        """The next segment of the next simulator."""
        round_, simulator = divmod(self._count, SIMULATORS)
        self._count += 1
        return self._segments[simulator]._replace(first_step=round_ * self.kind.format.length)


def recorded_segment(format: SegmentFormat, frames: np.ndarray, simulator: int, random: np.random.Generator) -> Segment:
    """A segment of the frames of a recorded game; the rest of it is random."""
    count, older = format.length, format.stack - 1
    first = 7 * simulator % (FRAMES - format.most_frames)
    ones = np.ones(count, np.float32)
    action = (
        random.integers(format.action_space.count, size=count).astype(np.int32)
        if isinstance(format.action_space, Discrete)
        else random.random((count, *format.action_space.action_shape), np.float32)
    )
    return Segment(
        actor=0,
        run_id=1,
        simulator=simulator,
        first_step=0,
        frames=frames[simulator % GAMES, first : first + format.most_frames],
        age=np.full(format.most_frames, older, np.uint8),
        row=np.arange(older, older + count, dtype=np.int32),
        steps=np.full(count, format.n_step, np.int32),
        action=action,
        reward=random.random(count, np.float32),
        discount=0.97 * ones,
        version=np.zeros(count, np.int64),
        priority=random.random(count, np.float32),
    )


def _peer(python: str, kind: str, capacity: int, seconds: float, frames: np.ndarray) -> dict[str, Any]:
    """What Reverb makes of the same frames, on all cores of this process."""
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
