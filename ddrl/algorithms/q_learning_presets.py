"""The presets of the Q-learning family that are of no paper: each makes one of another preset."""

from __future__ import annotations

from ddrl.algorithms.parts import SMOKE_NETWORK, SMOKE_RUN, laptop_network
from ddrl.algorithms.record import Preset
from ddrl.config import EnvironmentConfig, EvaluationConfig, OptimizerConfig, RunConfig, TrainConfig
from ddrl.types import Machine

CONTROL_AGENT_STEPS = 200_000  # of classic control


def laptop(preset: Preset, target_period: int = 4_800, steps_per_update: int = 32, batch_size: int = 128) -> Preset:
    """The small network and a small replay: DQN and epsilon-Rainbow learn Pong within an hour on one core.

    Act, then learn: few simulators explore at all, a ladder as Ape-X's, and Concurrent Training, which acts with frozen
    parameters meanwhile, then learns far later.

    Args:
        preset: to change.
        target_period: agent steps, a multiple of the next.
        steps_per_update: agent steps.
        batch_size: transitions of an update.
    """

    def settings(game: str, machine: Machine) -> TrainConfig:
        config = preset(game, machine)
        return config.changed(
            network=laptop_network(machine),
            algorithm={
                "steps_per_update": steps_per_update, "target_period": target_period,
                "epsilon_start": 1.0, "epsilon_end": 0.4, "epsilon_steps": 0, "epsilon_ladder": 7.0,
            },
            sampling={"schedule": "standard", "simulators": 32},
            optimizer=OptimizerConfig(
                batch_size=batch_size, learning_rate=2.5e-4, adam_epsilon=1e-5,
                clip_global_norm=config.optimizer.clip_global_norm,
            ),
            replay={"replay_capacity": 200_000, "replay_minimum": 10_000},
            evaluation={"eval_every_updates": 1_000},
            run=RunConfig(minutes=60.0),
        )  # fmt: skip

    return settings


def smoke(preset: Preset) -> Preset:
    """Catch with a tiny network, in seconds."""
    return lambda game, machine: preset(game, machine).changed(
        environment=EnvironmentConfig(game=game),
        network=SMOKE_NETWORK,
        algorithm={
            "value_min": -3.0, "value_max": 3.0, "target_period": 80, "epsilon_end": 0.05, "epsilon_steps": 4_000,
        },
        sampling={"simulators": 8},
        optimizer=OptimizerConfig(batch_size=32, learning_rate=3e-3),
        replay={"replay_capacity": 20_000, "replay_minimum": 1_000},
        evaluation=EvaluationConfig(eval_every_updates=500, eval_games=20, eval_epsilon=0.05),
        run=SMOKE_RUN,
    )  # fmt: skip


def classic_control(preset: Preset) -> Preset:
    """CartPole and games like it, whose observations are a few numbers and whose rewards are about 1.

    Returns of 10 steps, double, and a target network that is copied every 128 updates; chosen on CartPole, on seeds
    from 100 on: docs/results/learning-tried.md, 'DQN on CartPole'. DQN's rewards are not clipped. The support of
    distributions, +-100, holds all returns of rewards up to 1, as 1 / (1 - 0.99) = 100.
    """

    def settings(game: str, machine: Machine) -> TrainConfig:
        config = preset(game, machine)
        head = config.algorithm.head
        has_atoms = head is not None and head.atoms > 0
        return config.changed(
            environment=EnvironmentConfig(game=game),
            network=SMOKE_NETWORK,
            algorithm={
                "n_step": 10, "double": True, "value_min": -100.0, "value_max": 100.0,
                "reward_clip": 1.0 if has_atoms else 0.0,
                "steps_per_update": 8, "target_period": 1_024,
                "epsilon_start": 1.0, "epsilon_end": 0.05, "epsilon_steps": 20_000,
            },
            sampling={"schedule": "standard", "simulators": 8},
            optimizer=OptimizerConfig(
                batch_size=128, learning_rate=1e-3, adam_epsilon=1e-5,
                clip_global_norm=config.optimizer.clip_global_norm,
            ),
            replay={
                "replay_capacity": 100_000, "replay_minimum": 2_000,
                "importance_agent_steps": CONTROL_AGENT_STEPS if config.replay.priority_exponent else 0,
            },
            evaluation=EvaluationConfig(eval_every_updates=2_000, eval_games=20, eval_epsilon=0.0),
            run=RunConfig(minutes=0.0, agent_steps=CONTROL_AGENT_STEPS),
        )  # fmt: skip

    return settings
