"""Named settings of the algorithms that learn from rollouts and unrolls: A2C, A3C, PPO, APPO, IMPALA, HTS-RL."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ddrl.algorithms import A2CConfig, ImpalaConfig, PPOConfig
from ddrl.config import (
    EnvironmentConfig,
    EvaluationConfig,
    ExchangeConfig,
    NetworkConfig,
    OptimizerConfig,
    RunConfig,
    SamplingConfig,
    TrainConfig,
)
from ddrl.presets.common import Machine


def a2c(game: str) -> TrainConfig:
    """16 simulators x 5 steps, RMSProp (Mnih et al. 2016; Stooke and Abbeel 2018, section 5.3 and its code)."""
    return TrainConfig(
        environment=EnvironmentConfig(game=game, life_loss_terminal=True),
        algorithm=A2CConfig(unroll_length=5, entropy_cost=0.01, value_cost=0.25),
        sampling=SamplingConfig(schedule="synchronized", simulators=16, groups=1),
        optimizer=OptimizerConfig(
            batch_size=0, optimizer="rmsprop", learning_rate=7e-4, rmsprop_decay=0.99, rmsprop_epsilon=1e-5,
            clip_global_norm=0.5,
        ),
        exchange=ALONE,
    )  # fmt: skip


def ppo(game: str) -> TrainConfig:
    """8 simulators x 128 steps, 4 epochs of minibatches of 256 (Schulman et al. 2017, table 5)."""
    return TrainConfig(
        environment=EnvironmentConfig(game=game, life_loss_terminal=True),
        algorithm=PPOConfig(unroll_length=128, entropy_cost=0.01, value_cost=0.5, clip_range=0.1, epochs=4),
        sampling=SamplingConfig(schedule="synchronized", simulators=8, groups=1),
        optimizer=OptimizerConfig(batch_size=256, learning_rate=2.5e-4, adam_epsilon=1e-5, clip_global_norm=0.5),
        exchange=ALONE,
    )


def impala(game: str) -> TrainConfig:
    """Unrolls of 20 steps, batches of 32 unrolls, RMSProp (Espeholt et al. 2018, table G.1)."""
    return TrainConfig(
        environment=EnvironmentConfig(game=game, life_loss_terminal=True),
        algorithm=ImpalaConfig(unroll_length=20, entropy_cost=0.01, value_cost=0.5),
        sampling=SamplingConfig(schedule="asynchronous", simulators=32, groups=2, queue_batches=1),
        optimizer=OptimizerConfig(
            batch_size=640, optimizer="rmsprop", learning_rate=6e-4, rmsprop_decay=0.99, rmsprop_epsilon=1e-2,
            clip_global_norm=40.0,
        ),
        exchange=ALONE,
    )  # fmt: skip


def a3c(game: str, machine: Machine) -> TrainConfig:
    """A 16-simulator A2C in each of several workers, which update a central store (Stooke and Abbeel, section 5.3)."""
    return dataclasses.replace(a2c(game), exchange=_central(machine))


def appo(game: str, machine: Machine) -> TrainConfig:
    """An 8-simulator PPO in each of several workers: a quarter of its rate, central parameters every 64 steps."""
    base = ppo(game)
    return dataclasses.replace(
        base,
        sampling=dataclasses.replace(base.sampling, refresh_every_steps=64),
        optimizer=dataclasses.replace(base.optimizer, learning_rate=base.optimizer.learning_rate / 4),
        exchange=_central(machine, local_steps=1),
    )


def hts(base: TrainConfig) -> TrainConfig:
    """The same algorithm, acting and learning at once (Liu et al. 2020)."""
    return dataclasses.replace(base, sampling=dataclasses.replace(base.sampling, schedule="double-buffered", groups=2))


ALONE = ExchangeConfig(workers=1, parameter_servers=0)

ROLLOUTS: dict[str, Callable[[str, Machine], TrainConfig]] = {
    "a2c": lambda game, machine: a2c(game),
    "a3c": a3c,
    "ppo": lambda game, machine: ppo(game),
    "appo": appo,
    "impala": lambda game, machine: impala(game),
    "hts-a2c": lambda game, machine: hts(a2c(game)),
    "hts-ppo": lambda game, machine: hts(ppo(game)),
}
"""Name on the command line -> its default settings for a game on a machine."""


def laptop(name: str, game: str, machine: Machine) -> TrainConfig:
    """The small network, which learns within minutes on the cores of one machine."""
    config = ROLLOUTS[name](game, machine)
    return dataclasses.replace(config, network=NetworkConfig(network="a3c"), run=RunConfig(minutes=10.0))


def smoke(name: str, game: str, machine: Machine) -> TrainConfig:
    """Catch with a tiny network, in seconds."""
    config = ROLLOUTS[name](game, machine)
    sampling = dataclasses.replace(config.sampling, simulators=8, refresh_every_steps=0)
    unroll = 16 if isinstance(config.algorithm, PPOConfig) else 10
    algorithm = dataclasses.replace(config.algorithm, unroll_length=unroll)
    batch_size = 32 if isinstance(config.algorithm, PPOConfig) else 0
    return dataclasses.replace(
        config,
        environment=EnvironmentConfig(game=game),
        network=NetworkConfig(network="mlp", compute_dtype="float32"),
        algorithm=algorithm,
        sampling=sampling,
        optimizer=OptimizerConfig(batch_size=batch_size, learning_rate=2e-3, clip_global_norm=0.5),
        evaluation=EvaluationConfig(eval_every_updates=200, eval_games=20),
        run=RunConfig(minutes=0.5, log_every_seconds=1.0, video=False),
    )


def _central(machine: Machine, local_steps: int = 0) -> ExchangeConfig:
    workers = max(2, min(machine.cores, 8))
    return ExchangeConfig(exchange="central_store", workers=workers, local_steps=local_steps)
