"""Named settings of BA3C."""

from __future__ import annotations

from collections.abc import Callable

from ddrl.algorithms.ba3c import BA3CConfig
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
from ddrl.presets.common import Machine, adam_epsilon, rom_name

# Scores at which the published BA3C code stops (Adamski et al. 2018), by game in snake case.
TARGET_SCORES = {"breakout": 300.0, "pong": 10.0, "riverraid": 4000.0, "seaquest": 1830.0, "space_invaders": 700.0}

EFFECTIVE_BATCH = 128  # of the laptop preset, whatever the number of workers
SMALLEST_BATCH = 32  # per worker; the rate of gradients falls off below it
LARGEST_LAPTOP = 16  # workers; beyond it the effective batch outgrows the preset's learning rate


def default(game: str, machine: Machine) -> TrainConfig:
    """The defaults of ddrl/config.py, as they are."""
    return TrainConfig(environment=EnvironmentConfig(game=game))


def laptop(game: str, machine: Machine) -> TrainConfig:
    """A small network on all cores of one machine: learns within minutes."""
    workers = laptop_workers(machine)
    return TrainConfig(
        environment=EnvironmentConfig(game=game, protocol="nature", life_loss_terminal=True),
        network=NetworkConfig(network="a3c", compute_dtype="bfloat16"),
        # Measured on Pong (docs/results.md): long unrolls, small batches and little lag, where shorter and
        # larger ones showed nothing in the same number of agent steps.
        algorithm=BA3CConfig(unroll_length=20, entropy_cost=0.01, value_cost=0.5, importance_clip=1.0),
        sampling=SamplingConfig(simulators=16, groups=2, queue_batches=1),
        optimizer=OptimizerConfig(
            batch_size=max(SMALLEST_BATCH, EFFECTIVE_BATCH // workers),
            learning_rate=7e-4,
            adam_epsilon=1e-5,  # between the paper's 1e-8 and the 1e-3 of its single-node ancestor
            clip_global_norm=0.5,  # Stooke and Abbeel 2018, A2C
        ),
        exchange=ExchangeConfig(workers=workers, parameter_servers=0 if workers == 1 else None),
        evaluation=EvaluationConfig(evaluator=True, eval_games=50),
        run=RunConfig(minutes=10.0),
    )


def laptop_workers(machine: Machine) -> int:
    """One worker a core, as far as memory goes: 1 GB each, and 1.5 GB for evaluator, servers and system."""
    by_memory = int((machine.memory_bytes / 1e9 - 1.5) / 1.0)
    return max(1, min(machine.cores, by_memory, LARGEST_LAPTOP))


def ba3c_paper(game: str, machine: Machine) -> TrainConfig:
    """Adamski et al. 2018: 64 workers, 60 gradients per update (Table 1 and the published code)."""
    return TrainConfig(
        environment=EnvironmentConfig(game=game, protocol="ba3c", life_loss_terminal=False),
        network=NetworkConfig(network="ba3c", fc_neurons=128, compute_dtype="float32"),
        algorithm=BA3CConfig(
            discount=0.99,
            unroll_length=5,
            entropy_cost=0.01,
            value_cost=0.5,
            reward_clip=1.0,
            log_epsilon=1e-6,  # published code
        ),
        # In their code 3 predictor threads, which take up to 16 observations without waiting, serve 10
        # simulators; a group here takes those of its simulators that are ready first.
        sampling=SamplingConfig(schedule="asynchronous", simulators=10, groups=2),
        optimizer=OptimizerConfig(
            batch_size=32,  # x 60 gradients = 1,920 samples per update
            optimizer="adam",
            learning_rate=1e-3,
            adam_epsilon=adam_epsilon(game),
            beta1=0.8,
            beta2=0.75,
            clip_tensor_average_norm=0.1,  # per tensor, locally, before aggregation
        ),
        exchange=ExchangeConfig(
            workers=64,
            parameter_servers=4,
            chief="dedicated",  # the paper's chief never trains
            updates="synchronous",
            quorum=60,  # 4 backup workers
        ),
        evaluation=EvaluationConfig(
            evaluator=True,  # a rank of its own, which plays all the time if need be
            eval_every_updates=1000,
            eval_games=50,
            eval_time_share=1.0,
            evaluation_minutes=0.0,  # whole games
            target_score=TARGET_SCORES.get(rom_name(game)),
        ),
        run=RunConfig(minutes=0.0 if rom_name(game) in TARGET_SCORES else 60.0),  # to the target, where there is one
    )


def smoke(game: str, machine: Machine) -> TrainConfig:
    """Catch with a tiny network: a whole distributed run in seconds. Numbers chosen for speed."""
    return TrainConfig(
        environment=EnvironmentConfig(game=game),
        network=NetworkConfig(network="mlp", compute_dtype="float32"),
        sampling=SamplingConfig(simulators=8, groups=2),
        optimizer=OptimizerConfig(batch_size=32, learning_rate=1e-3, clip_global_norm=0.5),
        exchange=ExchangeConfig(workers=2),
        evaluation=EvaluationConfig(eval_every_updates=200, eval_games=20),
        run=RunConfig(minutes=0.5, log_every_seconds=1.0, video=False),
    )


PRESETS: dict[str, Callable[[str, Machine], TrainConfig]] = {
    "default": default,
    "laptop": laptop,
    "ba3c-paper": ba3c_paper,
    "smoke": smoke,
}
