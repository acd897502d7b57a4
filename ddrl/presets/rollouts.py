"""Named settings of the algorithms that learn from rollouts and unrolls: A2C, A3C, PPO, APPO, IMPALA, HTS-RL."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ddrl.algorithms import A2CConfig, ImpalaConfig, PPOConfig
from ddrl.config import (
    EnvironmentConfig,
    EvaluationConfig,
    NetworkConfig,
    OptimizerConfig,
    RunConfig,
    SamplingConfig,
    TrainConfig,
)
from ddrl.presets.common import ALONE, LAPTOP_NETWORK, PUBLISHED_NETWORK, Machine, central

PPO_AGENT_STEPS = 10_000_000  # Schulman et al. 2017, table 6: 40 million frames
IMPALA_AGENT_STEPS = 50_000_000  # Espeholt et al. 2018: 200 million frames
HTS_AGENT_STEPS = 20_000_000  # Liu et al. 2020, section 5


def a2c(game: str) -> TrainConfig:
    """16 simulators x 5 steps (Mnih et al. 2016, with one gradient for all simulators), with settings of Kostrikov's A2C.

    His RMSProp: rate 7e-4, which stays, decay 0.99, epsilon 1e-5 outside the root; norm clipped to 0.5, entropy 0.01. The
    value's weight of 0.25 is that of `--preset stooke`; his is 0.5, as `hts-a2c` has it.
    """
    return TrainConfig(
        environment=EnvironmentConfig(game=game, life_loss_terminal=True),
        network=PUBLISHED_NETWORK,
        algorithm=A2CConfig(unroll_length=5, entropy_cost=0.01, value_cost=0.25),
        sampling=SamplingConfig(schedule="synchronized", simulators=16, groups=1),
        optimizer=OptimizerConfig(
            batch_size=0, optimizer="rmsprop", learning_rate=7e-4, rmsprop_decay=0.99, rmsprop_epsilon=1e-5,
            clip_global_norm=0.5,
        ),
        exchange=ALONE,
    )  # fmt: skip


def ppo(game: str) -> TrainConfig:
    """Schulman et al. 2017, table 5: 8 simulators x 128 steps, 3 epochs of minibatches of 32 x 8.

    Rate 2.5e-4 and clip 0.1, both times alpha, which falls from 1 to 0 over their 10 million agent steps; weights of
    value and entropy 1 and 0.01. The authors' code has Adam's epsilon of 1e-5 and no clipped norm.
    """
    return TrainConfig(
        environment=EnvironmentConfig(game=game, life_loss_terminal=True),
        network=PUBLISHED_NETWORK,
        algorithm=PPOConfig(
            unroll_length=128, entropy_cost=0.01, value_cost=1.0, clip_range=0.1, clip_range_schedule="linear", epochs=3
        ),
        sampling=SamplingConfig(schedule="synchronized", simulators=8, groups=1),
        optimizer=OptimizerConfig(
            batch_size=256, learning_rate=2.5e-4, learning_rate_schedule="linear",
            learning_rate_agent_steps=PPO_AGENT_STEPS, adam_epsilon=1e-5,
        ),
        exchange=ALONE,
    )  # fmt: skip


def impala(game: str) -> TrainConfig:
    """Espeholt et al. 2018, table G.1: unrolls of 20 steps, batches of 32 unrolls, RMSProp.

    Losses are summed over time and batch, so that epsilon 0.01, inside the root as in TensorFlow 1, and the norm of 40
    hold for the sum; the rate falls to 0 over 200 million frames. Their weight of 0.5 is on half squares of the value,
    hence 0.25. The decay of 0.99 is that of their code.
    """
    return TrainConfig(
        environment=EnvironmentConfig(game=game, life_loss_terminal=True),
        network=PUBLISHED_NETWORK,
        algorithm=ImpalaConfig(unroll_length=20, entropy_cost=0.01, value_cost=0.25),
        sampling=SamplingConfig(schedule="asynchronous", simulators=32, groups=2, queue_batches=1),
        optimizer=OptimizerConfig(
            batch_size=640, loss_reduction="sum", optimizer="rmsprop", learning_rate=6e-4,
            learning_rate_schedule="linear", learning_rate_agent_steps=IMPALA_AGENT_STEPS, rmsprop_decay=0.99,
            rmsprop_epsilon=0.01, rmsprop_epsilon_inside=True, clip_global_norm=40.0,
        ),
        exchange=ALONE,
    )  # fmt: skip


def a3c(game: str, machine: Machine) -> TrainConfig:
    """A 16-simulator A2C in each of several workers, which update a central store (Stooke and Abbeel, section 5.3)."""
    return dataclasses.replace(a2c(game), exchange=central(machine))


def appo(game: str, machine: Machine) -> TrainConfig:
    """Stooke and Abbeel 2018, section 5.3: an 8-simulator PPO of 256 steps in each of several workers.

    4 epochs of minibatches of 512, clip 0.2, a quarter of their PPO's rate of 1e-3, which stays, norm clipped to 0.5
    (their code); central parameters every 64 steps. Network and images are ours; `--preset stooke` has theirs.
    """
    return TrainConfig(
        environment=EnvironmentConfig(game=game, life_loss_terminal=True),
        network=PUBLISHED_NETWORK,
        algorithm=PPOConfig(
            unroll_length=256, entropy_cost=0.01, value_cost=1.0, clip_range=0.2, epochs=4, normalize_advantages=False
        ),
        sampling=SamplingConfig(schedule="synchronized", simulators=8, groups=1, refresh_every_steps=64),
        optimizer=OptimizerConfig(batch_size=512, learning_rate=1e-3 / 4, adam_epsilon=1e-5, clip_global_norm=0.5),
        exchange=central(machine, local_steps=1),
    )


def hts_a2c(game: str) -> TrainConfig:
    """Liu et al. 2020, section 5: 16 simulators, acting and learning at once, with the settings of Kostrikov's A2C.

    Those are `a2c`'s with a weight of the value of 0.5.
    """
    return _double_buffered(a2c(game), value_cost=0.5)


def hts_ppo(game: str) -> TrainConfig:
    """Liu et al. 2020, section 5: 16 simulators, acting and learning at once, with the settings of Kostrikov's PPO.

    128 steps, 4 epochs of 4 minibatches, clip 0.1, which stays, for the value too; rate 2.5e-4, which falls to 0 over
    their 20 million agent steps; norm clipped to 0.5. His weight of 0.5 is on half squares of the value, hence 0.25.
    """
    base = ppo(game)
    optimizer = dataclasses.replace(
        base.optimizer, batch_size=512, learning_rate_agent_steps=HTS_AGENT_STEPS, clip_global_norm=0.5
    )
    return _double_buffered(
        dataclasses.replace(base, optimizer=optimizer),
        value_cost=0.25, clip_range_schedule="constant", value_clip_range=0.1, epochs=4,
    )  # fmt: skip


def _double_buffered(base: TrainConfig, **algorithm: object) -> TrainConfig:
    return dataclasses.replace(
        base,
        algorithm=dataclasses.replace(base.algorithm, **algorithm),
        sampling=dataclasses.replace(base.sampling, schedule="double-buffered", simulators=16, groups=2),
    )


ROLLOUTS: dict[str, Callable[[str, Machine], TrainConfig]] = {
    "a2c": lambda game, machine: a2c(game),
    "a3c": a3c,
    "ppo": lambda game, machine: ppo(game),
    "appo": appo,
    "impala": lambda game, machine: impala(game),
    "hts-a2c": lambda game, machine: hts_a2c(game),
    "hts-ppo": lambda game, machine: hts_ppo(game),
}
"""Name on the command line -> its default settings for a game on a machine."""


def laptop(name: str, game: str, machine: Machine) -> TrainConfig:
    """The small network, for the cores of one machine.

    PPO and its kin have the settings of OpenAI Baselines, whose rate and clip stay: a budget of minutes ends long before
    the papers' schedules do. IMPALA has a quarter of its batch, so that there are four times as many updates.
    """
    config = ROLLOUTS[name](game, machine)
    config = dataclasses.replace(config, network=LAPTOP_NETWORK, run=RunConfig(minutes=10.0))
    if name == "impala":
        config = dataclasses.replace(
            config,
            sampling=dataclasses.replace(config.sampling, simulators=16),
            optimizer=dataclasses.replace(config.optimizer, batch_size=160),
        )
    return _with_ppo_of_baselines(name, config) if isinstance(config.algorithm, PPOConfig) else config


def _with_ppo_of_baselines(name: str, config: TrainConfig) -> TrainConfig:
    """8 simulators x 128 steps, 4 epochs of minibatches of 256, rate 2.5e-4, clip 0.1; APPO has a quarter of the rate.

    Baselines' weight of 0.5 is on half squares of the value; here it is on whole ones.
    """
    rate = 2.5e-4 / 4 if name == "appo" else 2.5e-4
    return dataclasses.replace(
        config,
        algorithm=PPOConfig(unroll_length=128, entropy_cost=0.01, value_cost=0.5, clip_range=0.1, epochs=4),
        sampling=dataclasses.replace(config.sampling, simulators=8),
        optimizer=OptimizerConfig(batch_size=256, learning_rate=rate, adam_epsilon=1e-5, clip_global_norm=0.5),
    )


def smoke(name: str, game: str, machine: Machine) -> TrainConfig:
    """Catch with a tiny network, in seconds."""
    config = laptop(name, game, machine)
    sampling = dataclasses.replace(config.sampling, simulators=8, refresh_every_steps=0)
    unroll = 16 if isinstance(config.algorithm, PPOConfig) else 10
    algorithm = dataclasses.replace(config.algorithm, unroll_length=unroll, value_cost=SMOKE_VALUE_COSTS.get(name, 0.5))
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


SMOKE_VALUE_COSTS = {"a2c": 0.25, "a3c": 0.25, "hts-a2c": 0.25}  # of the others: 0.5
