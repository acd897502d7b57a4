"""What acts and learns, built from the configuration. This is where TensorFlow is imported."""

from __future__ import annotations

import numpy as np

from ddrl.algorithms.ba3c import transform_reward
from ddrl.config import TrainConfig
from ddrl.envs import VectorEnvironment, make_environment
from ddrl.launch.placement import groups_of
from ddrl.learner import Policy
from ddrl.networks import build_network
from ddrl.networks.network import Network
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.sampling.actor import Actor
from ddrl.sampling.batcher import Batcher
from ddrl.sampling.schedules import Asynchronous, Schedule, Synchronized
from ddrl.sampling.segments import SegmentBuilder


def network_for(config: TrainConfig, environment: VectorEnvironment) -> Network:
    """The network that fits the environment."""
    return build_network(
        config.network, environment.observation_shape, environment.observation_dtype, environment.action_space
    )


def seed_of(seed: int, worker: int, version: int) -> int:
    """Seed of a worker's environments when they are reset at a version: 31 bits, all different."""
    return int(np.random.SeedSequence([seed, worker, version]).generate_state(1)[0] >> 1)


def make_environments(config: TrainConfig) -> list[VectorEnvironment]:
    """A worker's environments, one object per group."""
    sampling = config.sampling
    groups = groups_of(sampling)
    return [
        make_environment(
            config.environment,
            sampling.simulators // groups,
            batch_size=sampling.predict_batch,
            threads=sampling.simulator_threads,
        )
        for _ in range(groups)
    ]


def make_schedule(
    config: TrainConfig,
    environments: list[VectorEnvironment],
    network: Network,
    metrics: RankMetrics,
    worker: int,
) -> Schedule:
    """A worker's schedule over its environments."""
    shape, dtype = environments[0].observation_shape, environments[0].observation_dtype
    policy = Policy(network, shape, dtype, (environments[0].batch_size,))
    batcher = Batcher(config.optimizer.batch_size, shape, dtype)
    actors = []
    for group, environment in enumerate(environments):
        segments = SegmentBuilder(
            environment.num_envs,
            config.algorithm.unroll_length,
            shape,
            dtype,
            config.algorithm.discount,
            lambda reward: transform_reward(reward, config.algorithm),
            config.environment.life_loss_terminal,
        )
        actors.append(
            Actor(
                environment,
                policy,
                segments,
                metrics,
                first_id=worker * config.sampling.simulators + group * environment.num_envs,
                seed=config.run.seed,
                frames_per_step=float(np.mean(environment.stamp.get("frame_skip", 1))),  # a range: its mean
            )
        )
    if config.sampling.schedule == "synchronized":
        return Synchronized(actors[0], batcher)
    return Asynchronous(actors, batcher, config.sampling.queue_batches, metrics)
