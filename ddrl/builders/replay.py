"""What algorithms with a replay have of their own when their agent is built: replay, targets, exploration."""

from __future__ import annotations

import functools
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from ddrl.algorithms import Exploration, algorithm_of
from ddrl.config import AlgorithmConfig, TrainConfig
from ddrl.envs import VectorEnvironment
from ddrl.envs.base import GameFacts, frames_of
from ddrl.errors import UsageError
from ddrl.kept_checkpoints import KeptCheckpoints
from ddrl.networks.network import Network
from ddrl.ops.draws import Draw
from ddrl.replay.replay import Replay
from ddrl.replay_files import worker_directory
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.sampling.actor_threads import ActorThreads
from ddrl.sampling.replay_batches import ReplayBatches
from ddrl.sampling.replay_schedules import Concurrent, ReplaySchedule, Standard
from ddrl.sampling.rollouts import empty_unroll
from ddrl.targets import TargetFunction
from ddrl.types import ActionSpace, Replayed

AHEAD = 512  # transitions whose targets are computed at once, where they can be known ahead of the updates


def replay_template(
    settings: AlgorithmConfig, space: ActionSpace, size: int, shape: tuple[int, ...], dtype: Any
) -> Replayed:
    """An empty minibatch with the fields that the loss reads.

    Args:
        settings: of the algorithm.
        space: of the actions.
        size: M.
        shape, dtype: of an observation.
    """
    observation, column, key = np.zeros((size, *shape), dtype), np.zeros(size, np.float32), np.zeros(size, np.int64)
    action = np.zeros((size, *space.action_shape), space.action_dtype)
    ahead = algorithm_of(settings).targets
    if ahead is None:
        return Replayed(observation, action, column, column, observation, column, key, key)
    following = observation if ahead.loss_reads_next(settings) else None
    target = np.zeros((size, *ahead.shape(settings, space)), np.float32)
    return Replayed(observation, action, None, None, following, column, key, key, target)


def exploration(config: TrainConfig, metrics: RankMetrics, space: ActionSpace) -> Draw | None:
    """Actions in training: by the algorithm, or None for draws from the policy's distribution.

    A simulator's own count of draws tells the worker's agent steps, since all simulators step equally often. Actors of
    Ape-X do not know of the replay: none of their actions are random for its sake.
    """
    draw = algorithm_of(config.algorithm).draw
    if draw is None:
        return None
    minimum = config.replay.replay_minimum if config.has_replay_in_workers else 0
    last = max(1, config.acting_ranks * config.rows - 1)
    known = Exploration(space, lambda counts: counts * config.rows - minimum, lambda ids: ids / last, metrics.mean)
    return draw(config.algorithm, known)


def target_function(
    config: TrainConfig, network: Network, observations: tuple[tuple[int, ...], Any], chunk: int
) -> TargetFunction | None:
    """The targets of the algorithm in chunks of so many transitions, where they can be computed ahead of the updates.

    Args:
        network: of the algorithm.
        observations: shape of one, and its dtype.
        chunk: transitions at once.

    Raises:
        UsageError: the target networks are averaged, so that each update has others.
    """
    ahead = algorithm_of(config.algorithm).targets
    if ahead is not None and config.replay_data.target_average:
        raise UsageError(
            f"{config.algorithm.name} averages its target networks with every update, and its targets are computed "
            "ahead of many: compute them in the loss, from `target` of its context, and register it without `targets`"
        )
    return ahead and TargetFunction(network, ahead.of, config.algorithm, *observations, chunk)


def replay_size(config: TrainConfig, environment: GameFacts) -> dict[str, Any]:
    """The arguments of a worker's `Replay` that its memory depends on."""
    return {
        "capacity": config.replay.replay_capacity,
        "simulators": config.rows,
        "observation_shape": environment.observation_shape,
        "observation_dtype": environment.observation_dtype,
        "stack": frames_of(environment),
        "n_step": config.replay_data.n_step,
        "action": (environment.action_space.action_shape, environment.action_space.action_dtype),
    }


def make_replay(config: TrainConfig, environment: VectorEnvironment) -> Replay:
    """A worker's empty replay."""
    return Replay(**replay_size(config, environment), priority_exponent=config.replay.priority_exponent)


def period_steps(config: TrainConfig) -> int:
    """Agent steps of a worker in a period, after which it learns from its replay."""
    data = config.replay_data
    return data.target_period if config.sampling.schedule == "concurrent" else max(data.steps_per_update, config.rows)


def batches_ahead(config: TrainConfig, updates: int) -> int:
    """Minibatches whose targets are computed at once, of those for the `updates` of a period."""
    return min(updates, max(1, AHEAD // config.batch_size))


def make_batches(
    config: TrainConfig,
    replay: Replay,
    network: Network,
    observations: tuple[tuple[int, ...], Any],
    updates: int,
    learner: tuple[int, ...],
) -> ReplayBatches:
    """Minibatches for `updates` updates in each period; `learner` makes their draws differ from those of others."""
    ahead = batches_ahead(config, updates)
    return ReplayBatches(
        replay,
        target_function(config, network, observations, config.batch_size * ahead),
        batch_size=config.batch_size,
        updates=updates,
        ahead=ahead,
        importance=lambda updates: config.replay.importance(updates, config.agent_steps_per_update),
        seed=(config.run.seed, *learner),
    )


def replay_schedule(
    config: TrainConfig,
    actor_threads: ActorThreads,
    ended: threading.Event,
    network: Network,
    environment: VectorEnvironment,
    metrics: RankMetrics,
    worker: int,
) -> ReplaySchedule:
    """A worker's schedule over its groups."""
    data, rows, steps = config.replay_data, config.rows, period_steps(config)
    updates = steps // data.steps_per_update
    observations = environment.observation_shape, environment.observation_dtype
    batches = make_batches(config, make_replay(config, environment), network, observations, updates, (worker,))
    buffer = empty_unroll(steps // rows, rows, *observations, network.action_space)
    run_dir = Path(config.run.run_dir)
    directory = worker_directory(run_dir, worker)
    named = functools.partial(KeptCheckpoints(run_dir).names_in, directory)
    common = (actor_threads, buffer, batches, config.replay.replay_minimum, directory, metrics, ended, named)
    statistics = network.normalization.size
    if config.sampling.schedule == "concurrent":
        return Concurrent(*common, statistics=statistics)
    target_periods = sys.maxsize if data.target_average else data.target_period // steps
    return Standard(*common, average=data.target_average, target_periods=target_periods, statistics=statistics)
