"""Checks that replays, rollouts, and batches fit into memory, before any of them is allocated."""

from __future__ import annotations

import math

import numpy as np

from ddrl.apex.memory import segment_format, shard_bytes
from ddrl.builders.replay import replay_size
from ddrl.config import TrainConfig
from ddrl.config.algorithm import FromDataPoints, FromRollouts
from ddrl.envs import VectorEnvironment
from ddrl.errors import UsageError
from ddrl.replay.replay import Replay, check_memory
from ddrl.sampling.pool import slots_of


def replay_bytes(config: TrainConfig, environment: VectorEnvironment) -> int:
    """Bytes of a worker's full replay and of its steps that are not in it yet; 0 if the algorithm has no replay.

    With Ape-X they are those of a full replay shard and of the batches that it sends.
    """
    if not config.has_replay:
        return 0
    if config.apex.actors:
        return shard_bytes(config, segment_format(config, environment))
    acted = config.replay_data.target_period if config.sampling.schedule == "concurrent" else 0
    observation = math.prod(environment.observation_shape) * np.dtype(environment.observation_dtype).itemsize
    return Replay.bytes_for(**replay_size(config, environment)) + acted * observation


def check_replay(config: TrainConfig, environment: VectorEnvironment, replays: int, available: float) -> None:
    """Checks that so many replays, of workers or shards, together fit into the `available` bytes.

    Raises:
        UsageError: they do not; nothing was allocated.
    """
    owners = "replay shards" if config.apex.actors else "workers"
    whose = f"the replays of {replays} {owners} need" if replays > 1 else "the replay needs"
    check_memory(replays * replay_bytes(config, environment), available, whose)


def check_rollouts(config: TrainConfig, environment: VectorEnvironment, available: float) -> None:
    """Checks that what a worker acts before it learns from it, and a batch, each fit into the `available` bytes.

    Raises:
        UsageError: one of them does not; nothing was allocated.
    """
    observation = math.prod(environment.observation_shape) * np.dtype(environment.observation_dtype).itemsize
    storages = 2 if config.sampling.schedule == "double-buffered" else 1
    data = config.algorithm.learns_from
    rollout = 0 if config.has_replay else storages * config.rows * (config.rollout_length + 1)
    length = "--rollout-length" if config.sampling.rollout_length else "--unroll-length"
    for count, whose, remedy in (
        (
            rollout,
            f"rollouts of {config.rollout_length} steps of {config.rows} simulators",
            f"{length} or --simulators",
        ),
        (
            slots_of(config.batch_size, data.epochs, data.pool_batches) if isinstance(data, FromDataPoints) else 0,
            f"pools of {getattr(data, 'pool_batches', 0)} batches of {config.batch_size} data-points",
            "--pool-batches or --batch-size",
        ),
        (
            0 if isinstance(data, FromRollouts) else config.batch_size,
            f"batches of {config.batch_size} data-points",
            "--batch-size",
        ),
    ):
        if count * observation > available:
            raise UsageError(
                f"{whose} need {count * observation / 1e9:,.1f} GB of memory for observations alone, and "
                f"{available / 1e9:.1f} GB are free here: lower {remedy}"
            )
