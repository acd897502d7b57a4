"""What acts and learns, built from the configuration. This is where TensorFlow is imported."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ddrl import algorithms
from ddrl.builders.replay import exploration, replay_schedule, replay_template
from ddrl.config import FromDataPoints, FromReplay, FromRollouts, FromUnrolls, TrainConfig
from ddrl.envs import VectorEnvironment, make_environment
from ddrl.envs.pinning import process_cores
from ddrl.errors import UsageError
from ddrl.exchange.learning_rates import anneal_of
from ddrl.learner import Learner, Policy
from ddrl.networks.network import Network
from ddrl.placement.ranks import groups_of
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.sampling.actor import PolicyFunction
from ddrl.sampling.actor_threads import ActorThreads
from ddrl.sampling.batcher import Batcher
from ddrl.sampling.data_points import DataPointActor, DataPointBuilder
from ddrl.sampling.minibatches import Minibatches
from ddrl.sampling.normalization import RunningReturns, Seen
from ddrl.sampling.pool import DataPointPool
from ddrl.sampling.predictors import Predictors
from ddrl.sampling.rewards import Transform, transform_of
from ddrl.sampling.rollout_schedules import DoubleBuffered, RolloutSchedule, SynchronizedRollouts
from ddrl.sampling.rollouts import RolloutActor, UnrollActor, UnrollBatcher, empty_unroll
from ddrl.sampling.schedules import Asynchronous, Schedule, Synchronized
from ddrl.structured import float_fields
from ddrl.types import Transitions


def network_for(config: TrainConfig, environment: VectorEnvironment) -> Network:
    """The network that fits the environment.

    Raises:
        UsageError: the algorithm takes no such actions.
    """
    space, shape, dtype = environment.action_space, environment.observation_shape, environment.observation_dtype
    return algorithms.network_for(config, shape, dtype, space)


def seed_of(seed: int, worker: int, version: int) -> int:
    """Seed of a worker's environments when they are reset at a version: 31 bits, all different."""
    return int(np.random.SeedSequence([seed, worker, version]).generate_state(1)[0] >> 1)


def make_environments(config: TrainConfig, worker: int = 0) -> list[VectorEnvironment]:
    """A worker's environments, one object per group.

    Raises:
        UsageError: the game cannot be made, or has several players and is not football.
    """
    sampling, environment = config.sampling, config.environment
    if worker == config.exchange.workers - 1:
        slowed = environment.step_time_mean_ms * environment.step_time_straggler
        environment = dataclasses.replace(environment, step_time_mean_ms=slowed)
    groups = groups_of(config)
    environments = [
        make_environment(
            environment,
            sampling.simulators // groups,
            batch_size=0 if sampling.predictors else sampling.predict_batch,
            threads=sampling.simulator_threads,
            cores=_cores_of(group, groups) if environment.pin_simulators else (),
        )
        for group in range(groups)
    ]
    _check_players(config, environments)
    return environments


def _check_players(config: TrainConfig, environments: list[VectorEnvironment]) -> None:
    """Raises UsageError if the environments do not have as many rows as the settings say, by which arrays are made."""
    if sum(each.num_envs for each in environments) == config.rows:
        return
    game, players = config.environment.game, environments[0].players
    for each in environments:
        each.close()
    raise UsageError(
        f"{game} has {players} in its attribute `players`, and only football trains with several players (evaluations "
        "work): rename the attribute if it means something else"
    )


def _cores_of(group: int, groups: int) -> tuple[int, ...]:
    """The cores of this process that a group's simulators are fixed to: shares, as equal as can be."""
    cores = sorted(process_cores())
    return tuple(cores[group::groups]) or (cores[group % len(cores)],)


def make_learner(config: TrainConfig, network: Network, shape: tuple[int, ...], dtype: Any) -> Learner:
    """The gradient of the algorithm's loss."""
    template = batch_template(config, network, shape, dtype)
    scale = float(config.effective_batch) if config.optimizer.loss_reduction == "sum" else 1.0
    known = algorithms.algorithm_of(config.algorithm)
    return Learner(network, known.loss, config.algorithm, config.optimizer, template, scale, known.context)


def batch_template(config: TrainConfig, network: Network, shape: tuple[int, ...], dtype: Any) -> Any:
    """An empty batch of the shapes that the algorithm learns from."""
    size, data = config.batch_size, config.algorithm.learns_from
    if isinstance(data, FromDataPoints):
        return Batcher(size, shape, dtype, network.action_space.action_shape).empty
    if isinstance(data, FromUnrolls):
        return empty_unroll(data.unroll_length, size // data.unroll_length, shape, dtype, network.action_space)
    if isinstance(data, FromReplay):
        return replay_template(config.algorithm, network.action_space, size, shape, dtype)
    unroll = empty_unroll(size, 1, shape, dtype, network.action_space)
    columns = dict.fromkeys(
        ("advantage", "return_", "value", "behaviour_log_prob", "weight"), np.zeros(size, np.float32)
    )
    return Transitions(
        observation=unroll.observation[:size, 0],
        action=unroll.action[:, 0],
        behaviour_version=unroll.behaviour_version[:, 0],
        **columns,
    )


def make_schedule(
    config: TrainConfig, environments: list[VectorEnvironment], network: Network, metrics: RankMetrics, worker: int
) -> Schedule:
    """A worker's schedule over its environments."""
    transform_reward = transform_of(config, metrics)
    returns = running_returns(config, environments, transform_reward) if network.normalization.rewards else []
    if returns:  # they transform rewards, which nobody does after them then
        transform_reward = as_they_are
    schedule = _schedule(config, environments, network, metrics, worker, returns, transform_reward)
    if network.normalization.size:
        shape, dtype = environments[0].observation_shape, environments[0].observation_dtype
        components = sum(float_fields(shape, dtype).values())
        schedule.seen = Seen(network.normalization, components, returns, metrics)
    return schedule


def running_returns(
    config: TrainConfig, environments: list[VectorEnvironment], transform_reward: Transform
) -> list[RunningReturns]:
    """Of each group."""
    from_replay = config.has_replay
    of_rewards = config.algorithm.discount, transform_reward, config.environment.life_loss_terminal
    return [RunningReturns(environment.num_envs, *of_rewards, scales=not from_replay) for environment in environments]


def _schedule(
    config: TrainConfig,
    environments: list[VectorEnvironment],
    network: Network,
    metrics: RankMetrics,
    worker: int,
    returns: list[RunningReturns],
    transform_reward: Transform,
) -> Schedule:
    shape, dtype = environments[0].observation_shape, environments[0].observation_dtype
    draw = exploration(config, metrics, network.action_space)
    of_groups: Sequence[RunningReturns | None] = returns or [None] * len(environments)
    common = [
        actor_arguments(config, environment, group, worker) | {"draw": draw, "returns": own}
        for group, (environment, own) in enumerate(zip(environments, of_groups, strict=True))
    ]
    data = config.algorithm.learns_from
    if isinstance(data, FromDataPoints):
        of_points = Policy(network, shape, dtype, (environments[0].batch_size,))
        return _on_data_points(config, data, environments, of_points, metrics, common, transform_reward, worker)
    ended = threading.Event()
    policies = _policies_of_groups(config, environments, network, ended)
    rollout_arguments: dict[str, Any] = {
        "discount": discount_of(config),
        "transform_reward": transform_reward,
        "life_loss_terminal": config.environment.life_loss_terminal,
        "ended": ended,
        "last_value": not isinstance(data, FromReplay),
    }
    common = [arguments | rollout_arguments for arguments in common]
    if isinstance(data, FromUnrolls):
        return _on_unrolls(config, data, environments, policies, network, metrics, common, ended)
    actors = [
        RolloutActor(environment, policy, metrics, **arguments)
        for environment, policy, arguments in zip(environments, policies, common, strict=True)
    ]
    if isinstance(data, FromReplay):
        return replay_schedule(config, ActorThreads(actors, ended), ended, network, environments[0], metrics, worker)
    return _on_rollouts(config, data, ActorThreads(actors, ended), ended, network, (shape, dtype), worker)


def discount_of(config: TrainConfig) -> Callable[[Any], Any]:
    """Discount of agent steps by the version that chose their actions, so that it is the same whoever takes them."""
    anneal = anneal_of(config.optimizer, config.agent_steps_per_update)
    return lambda version: config.algorithm.discount_when(anneal(version))


def as_they_are(rewards: np.ndarray) -> np.ndarray:
    """Rewards that are transformed already."""
    return rewards


def _policies_of_groups(
    config: TrainConfig, environments: list[VectorEnvironment], network: Network, ended: threading.Event
) -> list[PolicyFunction]:
    """What each group queries: the policy itself, or predictors in front of it."""
    sampling, one = config.sampling, environments[0]
    shape, dtype = one.observation_shape, one.observation_dtype
    if not sampling.predictors:
        return [Policy(network, shape, dtype, (one.num_envs,))] * len(environments)
    size = sampling.predict_batch or config.rows
    policy = Policy(network, shape, dtype, (size,))
    predictors = Predictors(policy, sampling.predictors, size, one.num_envs, ended)
    return [predictors.of_group(group) for group in range(len(environments))]


def actor_arguments(config: TrainConfig, environment: VectorEnvironment, group: int, worker: int) -> dict[str, Any]:
    """What the actor of a group's environment is told of its place among all."""
    return {
        "first_id": worker * config.rows + group * environment.num_envs,
        "seed": config.run.seed,
        "frames_per_step": float(np.mean(environment.stamp.get("frame_skip", 1))),  # a range: its mean
    }


def _on_data_points(
    config: TrainConfig,
    data: FromDataPoints,
    environments: list[VectorEnvironment],
    policy: Policy,
    metrics: RankMetrics,
    common: list[dict[str, Any]],
    transform_reward: Transform,
    worker: int,
) -> Schedule:
    shape, dtype = environments[0].observation_shape, environments[0].observation_dtype
    action_shape = environments[0].action_space.action_shape
    once = Batcher(config.batch_size, shape, dtype, action_shape)
    batcher: Batcher | DataPointPool = once
    if data.epochs > 1:
        batcher = DataPointPool(once.empty, data.epochs, data.pool_batches, (config.run.seed, worker))
    actors = []
    for environment, arguments in zip(environments, common, strict=True):
        segments = DataPointBuilder(
            environment.num_envs,
            data.unroll_length,
            shape,
            dtype,
            discount_of(config),
            transform_reward,
            config.environment.life_loss_terminal,
            action_shape,
            data.gae_lambda,
        )
        actors.append(DataPointActor(environment, policy, metrics, segments=segments, batcher=batcher, **arguments))
    if config.sampling.schedule == "synchronized":
        return Synchronized(actors[0])
    return Asynchronous(actors, config.sampling.queue_batches, metrics)


def _on_unrolls(
    config: TrainConfig,
    data: FromUnrolls,
    environments: list[VectorEnvironment],
    policies: list[PolicyFunction],
    network: Network,
    metrics: RankMetrics,
    common: list[dict[str, Any]],
    ended: threading.Event,
) -> Schedule:
    one, length = environments[0], data.unroll_length
    observations = one.observation_shape, one.observation_dtype
    make_unroll = functools.partial(empty_unroll, length, one.num_envs, *observations, network.action_space)
    batcher = UnrollBatcher(config.batch_size // length)
    actors = [
        UnrollActor(environment, policy, metrics, make_unroll=make_unroll, batcher=batcher, **arguments)
        for environment, policy, arguments in zip(environments, policies, common, strict=True)
    ]
    return Asynchronous(actors, config.sampling.queue_batches, metrics, ended)


def _on_rollouts(
    config: TrainConfig,
    data: FromRollouts,
    actor_threads: ActorThreads,
    ended: threading.Event,
    network: Network,
    observations: tuple[tuple[int, ...], Any],
    worker: int,
) -> Schedule:
    minibatches = Minibatches(
        data.unroll_length,
        data.gae_lambda,
        config.batch_size,
        epochs=data.epochs,
        shuffle=data.shuffle,
        normalize=data.normalize_advantages,
        seed=(config.run.seed, worker),
    )
    learning = empty_unroll(config.rollout_length, config.rows, *observations, network.action_space)
    schedule: RolloutSchedule
    if config.sampling.schedule == "double-buffered":
        spare = empty_unroll(config.rollout_length, config.rows, *observations, network.action_space)
        schedule = DoubleBuffered(actor_threads, learning, spare, minibatches, ended, network.normalization.size)
    else:
        refresh_every = config.sampling.refresh_every_steps
        schedule = SynchronizedRollouts(actor_threads, learning, minibatches, ended, refresh_every)
    schedule.saves_target = "target" in algorithms.algorithm_of(config.algorithm).context
    return schedule
