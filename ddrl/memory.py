"""The memory that ranks need, and checks that replays, rollouts, and batches fit, before any of them is allocated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cluster.roles import COMPUTES, Assignment
from ddrl.algorithms import algorithm_of, network_for
from ddrl.apex.memory import prefetch_bytes, segment_format, shard_bytes
from ddrl.builders.replay import batches_ahead, period_steps, replay_size
from ddrl.config import TrainConfig
from ddrl.config.algorithm import FromDataPoints, FromRollouts
from ddrl.envs.base import GameFacts
from ddrl.errors import UsageError
from ddrl.exchange.sharding import shard_ranges
from ddrl.placement.resources import check_shards, rank_bytes
from ddrl.replay.replay import Replay, check_memory
from ddrl.sampling.pool import slots_of
from ddrl.wording import plural

# of ranks -------------------------------------------------------------------------------------------------------------


class Needs(NamedTuple):
    """What the memory of ranks depends on, besides their roles.

    Attributes:
        parameters: length of the flat vector.
        replay: bytes of the replay of a worker or shard.
        rollouts: bytes of a worker's rollouts and pool of data-points.
        prefetch: bytes of the batches that the learner of Ape-X has ready.
    """

    parameters: int
    replay: int
    rollouts: int
    prefetch: int


def needs_of(config: TrainConfig, environment: GameFacts) -> Needs:
    """What the ranks of a run need memory for.

    Raises:
        UsageError: the network does not suit the game, or there are fewer parameters than servers.
    """
    shape, dtype = environment.observation_shape, environment.observation_dtype
    count = network_for(config, shape, dtype, environment.action_space).size
    check_shards(count, config.exchange.servers)
    replay, rollouts = replay_bytes(config, environment), rollout_bytes(config, environment)
    return Needs(count, replay, rollouts, prefetch_bytes(config, environment))


def memory_of(config: TrainConfig, environment: GameFacts, assignments: Sequence[Assignment]) -> list[int]:
    """Bytes of memory that each rank needs, roughly.

    Raises:
        UsageError: as `needs_of`.
    """
    needs = needs_of(config, environment)
    shards = parameters_served(config, assignments, needs.parameters)
    return [memory_of_rank(config, rank, needs, shard) for rank, shard in zip(assignments, shards)]


def parameters_served(config: TrainConfig, assignments: Sequence[Assignment], parameters: int) -> list[int]:
    """How many of the parameters each rank serves; 0 for all ranks but parameter servers."""
    sizes = [stop - start for start, stop in shard_ranges(parameters, max(1, config.exchange.servers))]
    return [sizes[rank.index] if rank.role == "parameter_server" else 0 for rank in assignments]


def memory_of_rank(config: TrainConfig, rank: Assignment, needs: Needs, shard: int) -> int:
    """Bytes of memory that a rank needs, roughly.

    Args:
        config: settings of the run.
        rank: the rank, whose role matters.
        needs: as `needs_of` gives them.
        shard: number of parameters that it serves.
    """
    has_replay = rank.role == ("replay_shard" if config.apex.actors else "worker")
    kept = (needs.replay if has_replay else 0) + (needs.rollouts + needs.prefetch if rank.role == "worker" else 0)
    return int(rank_bytes(config, rank.role in COMPUTES, shard) + kept)


# of replays, rollouts and batches -------------------------------------------------------------------------------------


def replay_bytes(config: TrainConfig, environment: GameFacts) -> int:
    """Bytes of a worker's full replay and of its steps that are not in it yet; 0 if the algorithm has no replay.

    With Ape-X they are those of a full replay shard and of the batches that it sends.
    """
    if not config.has_replay:
        return 0
    if config.apex.actors:
        return shard_bytes(config, segment_format(config, environment))
    acted = config.replay_data.target_period if config.sampling.schedule == "concurrent" else 0
    return Replay.bytes_for(**replay_size(config, environment)) + acted * _observation_bytes(environment)


def rollout_bytes(config: TrainConfig, environment: GameFacts) -> int:
    """Bytes of the observations in a worker's rollouts and in its pool of data-points; 0 if it has neither."""
    return (_in_rollouts(config) + _in_pool(config)) * _observation_bytes(environment)


def _in_rollouts(config: TrainConfig) -> int:
    """Observations in the rollouts that a worker keeps; 0 with a replay."""
    storages = 2 if config.sampling.schedule == "double-buffered" else 1
    return 0 if config.has_replay else storages * config.rows * (config.rollout_length + 1)


def _in_pool(config: TrainConfig) -> int:
    """Observations in a worker's pool of data-points; 0 if it has none."""
    data = config.algorithm.learns_from
    return slots_of(config.batch_size, data.epochs, data.pool_batches) if isinstance(data, FromDataPoints) else 0


def _observation_bytes(environment: GameFacts) -> int:
    return math.prod(environment.observation_shape) * np.dtype(environment.observation_dtype).itemsize


def replays_of(config: TrainConfig) -> int:
    """Ranks of a run that have a replay if the algorithm has one: the replay shards of Ape-X, else the workers."""
    return config.apex.replay_shards if config.apex.actors else config.exchange.workers


def check_replay(config: TrainConfig, environment: GameFacts, replays: int, available: float) -> None:
    """Checks that so many replays, of workers or shards, together fit into the `available` bytes.

    Raises:
        UsageError: they do not; nothing was allocated.
    """
    owners = "replay shards" if config.apex.actors else "workers"
    whose = f"the replays of {replays} {owners} need" if replays > 1 else "the replay needs"
    check_memory(replays * replay_bytes(config, environment), available, whose)


def check_rollouts(config: TrainConfig, environment: GameFacts, workers: int, available: float) -> None:
    """Checks that what so many workers act before they learn from it, and their batches, fit into the `available`
    bytes together, and so do a worker's targets that are distributions.

    Raises:
        UsageError: they do not; nothing was allocated. It names what takes most.
    """
    _check_distributions(config, environment, available)
    observation, data = _observation_bytes(environment), config.algorithm.learns_from
    length = "--rollout-length" if config.sampling.rollout_length else "--unroll-length"
    steps, pool = plural("step", config.rollout_length), getattr(data, "pool_batches", 0)
    points = f"{config.batch_size} {plural('data-point', config.batch_size)}"
    parts = [
        (
            _in_rollouts(config),
            f"rollouts of {config.rollout_length} {steps} of {config.rows} {plural('simulator', config.rows)}",
            f"{length} or --simulators",
        ),
        (_in_pool(config), f"pools of {pool} {plural('batch', pool)} of {points}", "--pool-batches or --batch-size"),
        (0 if isinstance(data, FromRollouts) else config.batch_size, f"batches of {points}", "--batch-size"),
    ]
    needed = workers * observation * sum(count for count, _, _ in parts)
    if needed <= available:
        return
    count, whose, remedy = max(parts)
    most, several = observation * count, workers > 1
    owners = f"{workers} workers" if several else "the worker"
    in_all = f" ({needed / 1e9:,.1f} GB with all else of {owners})" if needed > most else ""
    raise UsageError(
        f"{whose} need {most / 1e9:,.1f} GB of memory for observations alone{in_all}, and {available / 1e9:.1f} GB "
        f"are free here: lower {remedy}{', or --workers' if several else ''}"
    )


def _check_distributions(config: TrainConfig, environment: GameFacts, available: float) -> None:
    """Checks the targets that are computed at once: a projection compares each of their atoms with all of them."""
    atoms, ahead = getattr(config.algorithm, "atoms", 0), algorithm_of(config.algorithm).targets
    if not atoms or ahead is None:
        return
    batches = 1  # Ape-X learns from each as it comes
    if not config.apex.actors:
        batches = batches_ahead(config, period_steps(config) // config.replay_data.steps_per_update)
    rows = config.batch_size * batches
    shape = ahead.shape(config.algorithm, environment.action_space)
    needed = rows * math.prod(shape) * atoms * np.dtype(np.float32).itemsize
    if needed > available:
        raise UsageError(
            f"--atoms {atoms}: the targets of {rows} transitions need {needed / 1e9:,.1f} GB of memory while they are "
            f"computed, and {available / 1e9:.1f} GB are free here: lower --atoms"
        )
