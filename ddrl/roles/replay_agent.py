"""What algorithms with a replay have of their own when their agent is built: replay, targets, exploration."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

import numpy as np

from ddrl.algorithms import DPGConfig, DQNConfig, ReplayAlgorithm
from ddrl.config import TrainConfig
from ddrl.envs import VectorEnvironment
from ddrl.networks.network import Network
from ddrl.placement.resources import replay_size
from ddrl.replay import Replay
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.roles.replay_files import names_on_disk, worker_directory
from ddrl.sampling.actions import Draw, epsilon_greedy, noisy
from ddrl.sampling.crew import Crew
from ddrl.sampling.replay_actor import STEPS, PriorityValues
from ddrl.sampling.replay_batches import ReplayBatches
from ddrl.sampling.replay_schedules import Concurrent, ReplaySchedule, Standard
from ddrl.sampling.rollouts import empty_unroll
from ddrl.targets import CriticFunction, TargetFunction
from ddrl.types import ActionSpace, Regression, Unroll

AHEAD = 512  # transitions whose targets are computed at once, where they can be known ahead of the updates


def regression_template(
    algorithm: ReplayAlgorithm, network: Network, size: int, shape: tuple[int, ...], dtype: Any
) -> Regression:
    """An empty minibatch."""
    observation, space = np.zeros((size, *shape), dtype), network.action_space
    double = isinstance(algorithm, DQNConfig) and algorithm.double
    atoms = (algorithm.atoms,) if isinstance(algorithm, DQNConfig) and algorithm.atoms else ()
    return Regression(
        observation=observation,
        action=np.zeros((size, *space.action_shape), space.action_dtype),
        target=np.zeros((size, *((space.count,) if double else ()), *atoms), np.float32),
        weight=np.zeros(size, np.float32),
        behaviour_version=np.zeros(size, np.int64),
        key=np.zeros(size, np.int64),
        next_observation=observation if double else None,
    )


def exploration(config: TrainConfig, metrics: RankMetrics, space: ActionSpace) -> Draw:
    """Actions in training: random until the replay has its minimum, then epsilon-greedy by the algorithm's schedule, or
    with noise.

    A simulator's own count of draws tells the worker's agent steps, since all simulators step equally often. Actors of
    Ape-X do not know of the replay: none of their actions are random for its sake.
    """
    algorithm, minimum = config.algorithm, 0 if config.apex.actors else config.replay.replay_minimum
    if isinstance(algorithm, DPGConfig):
        return noisy(space, algorithm.noise, lambda ids, counts: counts * config.rows < minimum)
    last = max(1, (config.apex.actors or config.exchange.workers) * config.rows - 1)

    def epsilon(ids: np.ndarray, counts: np.ndarray) -> np.ndarray:
        probability = algorithm.epsilon(counts * config.rows - minimum, ids / last)
        metrics.gauge("epsilon", float(probability.mean()))
        return probability

    return epsilon_greedy(epsilon)


def priority_values(config: TrainConfig, network: Network, shape: tuple[int, ...], dtype: Any) -> PriorityValues:
    """What an actor's initial priorities are made of: the values that its policy gave already, and of DPG's noisy
    actions those that the critic gives."""

    def of_values(vector: Any, unroll: Unroll, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return unroll.value, np.take_along_axis(outputs, unroll.action[..., None], axis=-1)[..., 0]

    if not isinstance(config.algorithm, DPGConfig):
        return of_values
    critic = CriticFunction(network, shape, dtype, STEPS * config.rows)

    def of_critic(vector: Any, unroll: Unroll, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = (array.reshape(-1, *array.shape[2:]) for array in (unroll.observation[:-1], unroll.action))
        return unroll.value, critic(vector, *rows).reshape(unroll.reward.shape)

    return of_critic


def make_replay(config: TrainConfig, environment: VectorEnvironment) -> Replay:
    """A worker's empty replay."""
    return Replay(**replay_size(config, environment), priority_exponent=config.replay.priority_exponent)


def make_batches(
    config: TrainConfig,
    replay: Replay,
    network: Network,
    observations: tuple[tuple[int, ...], Any],
    updates: int,
    learner: tuple[int, ...],
) -> ReplayBatches:
    """Minibatches for `updates` updates in each period; `learner` makes their draws differ from those of others."""
    ahead = min(updates, max(1, AHEAD // config.batch_size))
    return ReplayBatches(
        replay,
        TargetFunction(network, config.algorithm, *observations, config.batch_size * ahead),
        batch_size=config.batch_size,
        updates=updates,
        ahead=ahead,
        importance=lambda updates: config.replay.importance(updates, config.agent_steps_per_update),
        seed=(config.run.seed, *learner),
    )


def replay_schedule(
    config: TrainConfig,
    crew: Crew,
    ended: threading.Event,
    network: Network,
    environment: VectorEnvironment,
    metrics: RankMetrics,
    worker: int,
) -> ReplaySchedule:
    """A worker's schedule over its groups."""
    algorithm, rows = config.algorithm, config.rows
    concurrent = config.sampling.schedule == "concurrent"
    steps = algorithm.target_period if concurrent else max(algorithm.steps_per_update, rows)
    updates = steps // algorithm.steps_per_update
    observations = environment.observation_shape, environment.observation_dtype
    batches = make_batches(config, make_replay(config, environment), network, observations, updates, (worker,))
    buffer = empty_unroll(steps // rows, rows, *observations, network.action_space)
    run_dir = Path(config.run.run_dir)
    directory = worker_directory(run_dir, worker)
    named = functools.partial(names_on_disk, run_dir, directory)
    common = (crew, buffer, batches, config.replay.replay_minimum, directory, metrics, ended, named)
    if concurrent:
        return Concurrent(*common)
    return Standard(*common, target_periods=algorithm.target_period // steps)
