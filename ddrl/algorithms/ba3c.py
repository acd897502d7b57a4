"""BA3C: batch asynchronous advantage actor-critic (Adamski et al. 2018; A3C of Mnih et al. 2016).

Predictor threads act with the newest parameters; their segments become data-points (state, action, return), and a
gradient takes whichever --batch-size of them come first. With --epochs, each is used several times; --clip-range is
PPO's clip.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from ddrl import checks
from ddrl.algorithms.actor_critic import ActorCriticConfig, actor_critic_loss
from ddrl.algorithms.parts import LAPTOP_EVAL_EPSILON, SMOKE_NETWORK, SMOKE_RUN, laptop_network
from ddrl.algorithms.record import Algorithm, Name
from ddrl.config import (
    EnvironmentConfig,
    EvaluationConfig,
    ExchangeConfig,
    FromDataPoints,
    NetworkConfig,
    OptimizerConfig,
    RunConfig,
    SamplingConfig,
    TrainConfig,
)
from ddrl.config.algorithm import refuse_single_advantages
from ddrl.lazy import tf
from ddrl.networks.network import Network
from ddrl.ops import distributions, policy_gradient
from ddrl.rom_names import of_game
from ddrl.types import DataPoints, Discrete, LossContext, LossOutput, Machine, MultiDiscrete


@dataclasses.dataclass(frozen=True)
class BA3CConfig(ActorCriticConfig):
    """Loss of BA3C."""

    name: ClassVar[str] = "ba3c"
    takes: ClassVar[tuple[type, ...]] = (Discrete, MultiDiscrete)

    gae_lambda: float = 1.0
    """Lambda of generalized advantage estimation (1: n-step returns)."""
    importance_clip: float = 0.0
    """Upper clip of the importance ratio pi/mu, by which the policy gradient, but no return, is corrected for the lag
    (0: no correction)."""
    log_epsilon: float = 1e-6
    """Added to the probability inside the logarithm of the policy loss. Not used with --clip-range."""
    epochs: int = 1
    """Times that each data-point is used. With more than one, batches are drawn at random from a pool of the newest
    data-points."""
    pool_batches: int = 8
    """Size of that pool in batches. Not used with one epoch."""
    clip_range: float = 0.0
    """Clip the ratio pi/mu to 1 - x .. 1 + x, as PPO does (0: A3C's policy gradient)."""
    normalize_advantages: bool = False
    """Normalize the advantages of each gradient's batch. Their mean is subtracted, then they are divided by their
    standard deviation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.between(self, 0.0, 1.0, "gae_lambda")
        checks.at_least(self, 0.0, "importance_clip", "log_epsilon")
        checks.at_least(self, 1, "epochs")
        checks.at_least(self, 2, "pool_batches", why="a batch has different data-points")
        checks.between(self, 0.0, 1.0, "clip_range")
        if self.clip_range and self.importance_clip:
            checks.refuse(self, "importance_clip", "--clip-range clips the same ratio; use --importance-clip 0")

    @property
    def learns_from(self) -> FromDataPoints:
        """Data-points of segments."""
        return FromDataPoints(self.unroll_length, self.epochs, self.pool_batches, self.gae_lambda)

    def refuse(self, config: TrainConfig) -> None:
        """A batch of one data-point, whose normalized advantage is always 0."""
        if self.normalize_advantages:
            refuse_single_advantages(config)


def loss(network: Network, parameters: Any, batch: DataPoints, config: BA3CConfig, context: LossContext) -> LossOutput:
    """Advantage actor-critic loss, averaged over the batch, in float32.

    policy_loss + value_cost mean((R - V)^2) - entropy_cost mean(H)

    with policy_loss = -mean(w log(pi(a|s) + log_epsilon) (R - V)), no gradient through w and R - V
    (Mnih et al. 2016, section 4.3; Adamski et al. 2018). The value loss is the mean of whole squares, not of
    halves: value_cost 0.5 equals tensorpack's and the BA3C lineage's `l2_loss` over the batch size.
    w = min(pi/mu, importance_clip), or 1 when that setting is 0.

    With `clip_range`, the policy loss is PPO's instead (Schulman et al. 2017, equation 7), which stops pushing an
    action whose probability has moved by that part since it was taken: what data-points that are used again need.
    With `normalize_advantages`, R - V is taken less its mean, and over its standard deviation in the batch.

    Args:
        network: (parameters, observations) -> PolicyValue, with its `action_space`.
        parameters: <float32>[N], or whatever else the network takes as its parameters.
        batch: tensors with the fields of DataPoints.
        config: weights of the parts.
        context: `anneal` is what the cost of the entropy may follow.

    Returns:
        LossOutput with the metrics of `actor_critic_loss`, and the mean importance ratio (clipped) or those of
        `clipped_surrogate_loss`.
    """
    policy, value = network(parameters, batch.observation)
    value.shape.assert_is_compatible_with(batch.return_.shape)
    log_probs = distributions.log_prob(network.action_space, policy, batch.action)
    advantages = tf.stop_gradient(batch.return_ - value)
    policy_loss, metrics = _policy_loss(log_probs, batch.behaviour_log_prob, advantages, config)
    square_errors, weights = tf.square(batch.return_ - value), tf.ones_like(value)
    entropies = distributions.entropy(network.action_space, policy)
    return actor_critic_loss(
        policy_loss, square_errors, entropies, advantages, value, weights, config, context, metrics
    )


def _policy_loss(
    log_probs: tf.Tensor, behaviour_log_probs: tf.Tensor, advantages: tf.Tensor, config: BA3CConfig
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    if config.normalize_advantages:
        deviation = tf.math.reduce_std(advantages) + 1e-8
        advantages = (advantages - tf.reduce_mean(advantages)) / deviation
    if config.clip_range:
        weights = tf.ones_like(advantages)
        return policy_gradient.clipped_surrogate_loss(
            log_probs, behaviour_log_probs, advantages, weights, config.clip_range
        )
    ratios = policy_gradient.importance_ratios(log_probs, behaviour_log_probs, config.importance_clip)
    loss = policy_gradient.policy_gradient_loss(log_probs, advantages, ratios, config.log_epsilon)
    return loss, {"importance_ratio_mean": tf.reduce_mean(ratios)}


# Adamski et al. 2018 tuned Adam's epsilon down to 1e-8; Pong alone learned better with their earlier 1e-3.
ADAM_EPSILON = {"pong": 1e-3}
ADAM_EPSILON_DEFAULT = 1e-8

# Scores at which the published BA3C code stops (Adamski et al. 2018), by game in snake case.
TARGET_SCORES = {"breakout": 300.0, "pong": 10.0, "riverraid": 4000.0, "seaquest": 1830.0, "space_invaders": 700.0}

# Where the laptop preset differs for a game. Breakout reaches 100 in half of the agent steps with lambda-returns
# and a higher rate: docs/results/learning-tried.md, 'Lambda-returns for BA3C on Breakout'; the others are under
# 'River Raid and Space Invaders' there. With an entropy cost of 0.01 to the end, a policy stays uniform where its
# chances are poor, and so they stay poor. Space Invaders is learned from data-points that are used four times, with
# rewards of 1/4 to 4, not 1 for every alien; with an entropy cost of 0.01 from the beginning, it is learned at the
# left wall, where most seeds then stay for a million agent steps; with a discount of 0.99 to the end, nearly all
# games end at the last aliens of the first wave.
LAPTOP_BY_GAME: dict[str, dict[str, dict[str, Any]]] = {
    "breakout": {"algorithm": {"gae_lambda": 0.8}, "optimizer": {"learning_rate": 2e-3}},
    "riverraid": {"algorithm": {"entropy_cost": 0.003}, "optimizer": {"learning_rate": 1.5e-3, "adam_epsilon": 1e-3}},
    "space_invaders": {
        "algorithm": {
            "epochs": 4, "pool_batches": 4, "clip_range": 0.1, "importance_clip": 0.0, "normalize_advantages": True,
            "entropy_cost_schedule": "linear", "entropy_cost_start": 0.1, "entropy_cost_start_share": 0.0833,
            "reward_scale": 0.05, "reward_clip": 4.0, "discount": 0.995, "discount_start": 0.99,
            "discount_start_share": 0.333,  # 2 million agent steps, and half a million of the entropy cost
        },
        "optimizer": {
            "learning_rate": 4e-4, "learning_rate_schedule": "linear",
            "learning_rate_agent_steps": 6_000_000,  # what two fast cores make in an hour
        },
        "evaluation": {"eval_actions": "drawn", "eval_epsilon": 0.0},
    },
}  # fmt: skip

EFFECTIVE_BATCH = 128  # of the laptop preset, whatever the number of workers
EFFECTIVE_BATCH_BY_GAME = {"space_invaders": 256}
SMALLEST_BATCH = 32  # per worker; the rate of gradients falls off below it
LARGEST_LAPTOP = 16  # workers; beyond it the effective batch outgrows the preset's learning rate


def default(game: str, machine: Machine) -> TrainConfig:
    """The defaults of all settings, as they are, but in the type that is faster here."""
    return TrainConfig(
        environment=EnvironmentConfig(game=game),
        network=NetworkConfig(compute_dtype=machine.faster_dtype),
        algorithm=BA3CConfig(),
    )


def laptop(game: str, machine: Machine) -> TrainConfig:
    """A small network on all cores of one machine: learns within minutes."""
    workers = laptop_workers(machine)
    effective_batch = of_game(EFFECTIVE_BATCH_BY_GAME, game) or EFFECTIVE_BATCH
    config = TrainConfig(
        environment=EnvironmentConfig(game=game, protocol="nature", life_loss_terminal=True),
        network=laptop_network(machine),
        # Measured on Pong (docs/results/learning-older.md): long unrolls, small batches, and little lag; shorter and
        # larger ones showed nothing in the same number of agent steps.
        algorithm=BA3CConfig(unroll_length=20, entropy_cost=0.01, value_cost=0.5, importance_clip=1.0),
        sampling=SamplingConfig(simulators=16, groups=2, queue_batches=1),
        optimizer=OptimizerConfig(
            batch_size=max(SMALLEST_BATCH, effective_batch // workers),
            learning_rate=7e-4,
            adam_epsilon=1e-5,  # between the paper's 1e-8 and the 1e-3 of its single-node ancestor
            clip_global_norm=0.5,  # Stooke and Abbeel 2018, A2C
        ),
        exchange=ExchangeConfig(workers=workers, parameter_servers=0 if workers == 1 else None),
        evaluation=EvaluationConfig(evaluator=True, eval_games=50, eval_epsilon=LAPTOP_EVAL_EPSILON),
        run=RunConfig(minutes=10.0),
    )
    return config.changed(**(of_game(LAPTOP_BY_GAME, game) or {}))


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
        # simulators; a group here takes those of its simulators that are ready first. Their queue has room for 1 batch.
        sampling=SamplingConfig(schedule="asynchronous", simulators=10, groups=2, queue_batches=1),
        optimizer=OptimizerConfig(
            batch_size=32,  # x 60 gradients = 1,920 samples per update
            optimizer="adam",
            learning_rate=1e-3,
            adam_epsilon=of_game(ADAM_EPSILON, game) or ADAM_EPSILON_DEFAULT,
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
            target_score=of_game(TARGET_SCORES, game),
        ),
        run=RunConfig(minutes=0.0 if of_game(TARGET_SCORES, game) else 60.0),  # to the target, where there is one
    )


def smoke(game: str, machine: Machine) -> TrainConfig:
    """Catch with a tiny network: a whole distributed run in seconds. Numbers chosen for speed."""
    return TrainConfig(
        environment=EnvironmentConfig(game=game),
        network=SMOKE_NETWORK,
        algorithm=BA3CConfig(),
        sampling=SamplingConfig(simulators=32, groups=2),
        optimizer=OptimizerConfig(batch_size=32, learning_rate=1e-3, clip_global_norm=0.5),
        exchange=ExchangeConfig(workers=2),
        evaluation=EvaluationConfig(eval_every_updates=200, eval_games=20),
        run=SMOKE_RUN,
    )


ALGORITHM = Algorithm(
    settings=BA3CConfig,
    loss=loss,
    names={"ba3c": Name("BA3C", {"default": default, "laptop": laptop, "ba3c-paper": ba3c_paper, "smoke": smoke})},
)
