"""Builds the acting and the learning parts of Ape-X from the configuration. This is where TensorFlow is imported."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from ddrl.algorithms import algorithm_of
from ddrl.apex.feed import ReplayFeed
from ddrl.apex.memory import segment_format
from ddrl.apex.remote_replay import RemoteReplay
from ddrl.apex.sampler import Sampler
from ddrl.apex.segment import SegmentFormat
from ddrl.apex.segment_builder import SegmentBuilder
from ddrl.apex.segment_maker import STEPS, OutputActor, PriorityValues, SegmentMaker
from ddrl.builders.agent import actor_arguments, make_environments, network_for
from ddrl.builders.replay import exploration, target_function
from ddrl.config import TrainConfig
from ddrl.envs import VectorEnvironment
from ddrl.errors import UsageError
from ddrl.exchange.transport import Transport
from ddrl.job.layout import JobContext
from ddrl.learner import Policy
from ddrl.networks.network import Network
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.sampling.rewards import transform_of
from ddrl.targets import CriticFunction
from ddrl.types import Unroll


def segment_maker(
    config: TrainConfig, metrics: RankMetrics, actor: int, run_id: int, agent_steps: int = 0
) -> tuple[SegmentMaker, SegmentFormat]:
    """The segment maker of an actor, whose simulators have been reset, and the format of its segments.

    Args:
        actor: index of the actor.
        run_id: of this incarnation; it makes games and exploration differ from those of earlier incarnations.
        agent_steps: those of earlier incarnations of this actor; an epsilon that decreases goes on from there.
    """
    (environment,) = make_environments(config)
    network = network_for(config, environment)
    shape, dtype = environment.observation_shape, environment.observation_dtype
    seed = int(np.random.SeedSequence([config.run.seed, actor, run_id]).generate_state(1)[0] >> 1)
    acting = OutputActor(
        environment,
        Policy(network, shape, dtype, (environment.num_envs,)),
        metrics,
        **actor_arguments(config, environment, 0, actor) | {"seed": seed},
        draw=exploration(config, metrics, network.action_space),
        discount=lambda version: config.algorithm.discount,
        transform_reward=transform_of(config, metrics),
        life_loss_terminal=config.environment.life_loss_terminal,
        ended=threading.Event(),
        last_value=False,
    )
    acting.reset(seed)
    acting.begin_at(agent_steps // environment.num_envs)
    format = segment_format(config, environment)
    builder = SegmentBuilder(format, environment.num_envs, actor, run_id)
    return SegmentMaker(acting, builder, priority_values(config, network, shape, dtype)), format


def priority_values(config: TrainConfig, network: Network, shape: tuple[int, ...], dtype: Any) -> PriorityValues:
    """The function that gives the values from which an actor's initial priorities are computed.

    They are the values that the policy gave when it acted; the values of continuous actions come from the critic.
    """

    def of_values(parameters: Any, unroll: Unroll, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return unroll.value, np.take_along_axis(outputs, unroll.action[..., None], axis=-1)[..., 0]

    of_critic = algorithm_of(config.algorithm).critic
    if of_critic is None:
        return of_values
    critic = CriticFunction(network, of_critic, shape, dtype, STEPS * config.rows)

    def of_actions(parameters: Any, unroll: Unroll, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = (array.reshape(-1, *array.shape[2:]) for array in (unroll.observation[:-1], unroll.action))
        return unroll.value, critic(parameters, *rows).reshape(unroll.reward.shape)

    return of_actions


def learner_feed(
    context: JobContext,
    transport: Transport,
    network: Network,
    probe: VectorEnvironment,
    metrics: RankMetrics,
    wake: Callable[[], None],
) -> ReplayFeed:
    """The feed that brings the learner its batches.

    Args:
        network: the network that learns.
        probe: an environment like the actors'.
        wake: called from the trainer's thread when a batch was taken or learned.
    """
    config, observations = context.config, (probe.observation_shape, probe.observation_dtype)
    targets = target_function(config, network, observations, config.batch_size)
    if targets is None:
        raise UsageError(
            f"--actors {config.apex.actors}: {config.algorithm.name} has no targets ahead of its updates; use 0"
        )
    schedule = RemoteReplay(targets, config.apex.target_every_updates, metrics, wake)
    sampler = Sampler(context, transport, schedule, segment_format(config, probe), network.size)
    return ReplayFeed(sampler, schedule)
