"""What acts and what learns in Ape-X, built from the configuration. This is where TensorFlow is imported."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from ddrl.config import TrainConfig
from ddrl.envs import VectorEnvironment
from ddrl.errors import UsageError
from ddrl.learner import Policy
from ddrl.networks.network import Network
from ddrl.placement.resources import segment_format
from ddrl.replay.segment import SegmentFormat
from ddrl.replay.segment_builder import SegmentBuilder
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.roles.agent import actor_arguments, make_environments, network_for
from ddrl.roles.replay_agent import exploration, priority_values, target_function
from ddrl.sampling.remote_replay import RemoteReplay
from ddrl.sampling.replay_actor import OutputActor, SegmentMaker


def segment_maker(
    config: TrainConfig, metrics: RankMetrics, actor: int, run_id: int
) -> tuple[SegmentMaker, SegmentFormat]:
    """An actor with its environments, which are reset, and the format of its segments.

    Args:
        actor: its index.
        run_id: of this incarnation; it makes games and exploration differ from those of earlier ones.
    """
    (environment,) = make_environments(config)
    network = network_for(config, environment)
    shape, dtype = environment.observation_shape, environment.observation_dtype
    seed = int(np.random.SeedSequence([config.run.seed, actor, run_id]).generate_state(1)[0] >> 1)
    acting = OutputActor(
        environment,
        Policy(network, shape, dtype, (environment.num_envs,)),
        metrics,
        **actor_arguments(config, [environment], 0, actor) | {"seed": seed},
        draw=exploration(config, metrics, network.action_space),
        discount=config.algorithm.discount,
        transform_reward=config.algorithm.transform_reward,
        life_loss_terminal=config.environment.life_loss_terminal,
        ended=threading.Event(),
        last_value=False,
    )
    acting.reset(seed)
    format = segment_format(config, environment)
    builder = SegmentBuilder(format, environment.num_envs, actor, run_id)
    return SegmentMaker(acting, builder, priority_values(config, network, shape, dtype)), format


def remote_replay(
    config: TrainConfig, network: Network, probe: VectorEnvironment, metrics: RankMetrics, wake: Callable[[], None]
) -> RemoteReplay:
    """The learner's schedule; `probe` is an environment like the actors'."""
    observations = probe.observation_shape, probe.observation_dtype
    targets = target_function(config, network, observations, config.batch_size)
    if targets is None:
        raise UsageError(
            f"--actors {config.apex.actors}: {config.algorithm.name} has no targets ahead of its updates; give 0"
        )
    return RemoteReplay(targets, config.apex.target_every_updates, metrics, wake)
