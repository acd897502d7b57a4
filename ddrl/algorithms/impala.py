"""IMPALA: actor-critic with V-trace over whole unrolls (Espeholt et al. 2018).

Actors go on with the newest parameters; V-trace corrects for the lag of their unrolls.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from ddrl import checks
from ddrl.algorithms.actor_critic import ActorCriticConfig, actor_critic_loss, laptop, smoke
from ddrl.algorithms.parts import ALONE, PUBLISHED_NETWORK
from ddrl.algorithms.record import Algorithm, Name
from ddrl.config import EnvironmentConfig, FromUnrolls, OptimizerConfig, SamplingConfig, TrainConfig
from ddrl.lazy import tf
from ddrl.networks.network import Network
from ddrl.ops import distributions, policy_gradient
from ddrl.ops.vtrace import vtrace
from ddrl.types import LossContext, LossOutput, Machine, Unroll

AGENT_STEPS = 50_000_000  # Espeholt et al. 2018: 200 million frames


@dataclasses.dataclass(frozen=True)
class ImpalaConfig(ActorCriticConfig):
    """Loss of IMPALA."""

    name: ClassVar[str] = "impala"

    unroll_length: int = 20
    """Agent steps of an unroll before it bootstraps from the value. V-trace reaches as far."""
    rho_clip: float = 1.0
    """Upper clip of the importance ratio in temporal differences (rho-bar). The policy gradient uses it, too."""
    c_clip: float = 1.0
    """Upper clip of the importance ratio in the traces (c-bar)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.above(self, 0.0, "rho_clip", "c_clip", why="0 would stop learning")
        if self.c_clip > self.rho_clip:
            checks.refuse(self, "c_clip", f"must be at most --rho-clip {self.rho_clip} (Espeholt et al., section 4.1)")

    @property
    def learns_from(self) -> FromUnrolls:
        """Whole unrolls."""
        return FromUnrolls(self.unroll_length)


def loss(network: Network, parameters: Any, batch: Unroll, config: ImpalaConfig, context: LossContext) -> LossOutput:
    """Actor-critic loss with V-trace (Espeholt et al. 2018, section 4.2).

    -mean(valid A log pi(a|s)) + value_cost mean(valid (vs - V)^2) - entropy_cost mean(valid H), with vs and A of
    V-trace; means over all T B rows, where the paper sums. One forward pass over all (T+1) B observations, flattened
    time first.

    Args:
        network: (parameters, observations) -> PolicyValue, with its `action_space`.
        parameters: <float32>[N], or whatever else the network takes as its parameters.
        batch: tensors with the fields of Unroll; `value` and `behaviour_version` may be None.
        config: weights of the parts, clips of the ratios.
        context: `anneal` is what the cost of the entropy may follow.

    Returns:
        LossOutput with the metrics of `actor_critic_loss` and `importance_ratio_mean`, of the ratios clipped at
        rho_clip.
    """
    steps, simulators = batch.reward.shape
    rows = steps * simulators
    policy, value = network(parameters, _rows(batch.observation))
    policy, value = policy[:rows], tf.reshape(value, [steps + 1, simulators])
    log_probs = distributions.log_prob(network.action_space, policy, _rows(batch.action))
    log_rhos = tf.reshape(log_probs, [steps, simulators]) - batch.behaviour_log_prob
    vs, advantages = vtrace(
        tf.stop_gradient(log_rhos), batch.discount, batch.continues, batch.valid, batch.reward,
        tf.stop_gradient(value), config.rho_clip, config.c_clip,
    )  # fmt: skip
    advantages, weights, value = _rows(advantages), _rows(batch.valid), value[:-1]
    ratios = policy_gradient.importance_ratios(log_probs, _rows(batch.behaviour_log_prob), config.rho_clip)
    policy_loss = policy_gradient.policy_gradient_loss(log_probs, advantages, weights)
    square_errors = _rows(tf.square(vs - value))
    entropies = distributions.entropy(network.action_space, policy)
    metrics = {"importance_ratio_mean": policy_gradient.mean_of_counted(ratios, weights)}
    return actor_critic_loss(
        policy_loss, square_errors, entropies, advantages, _rows(value), weights, config, context, metrics
    )


def _rows(x: tf.Tensor) -> tf.Tensor:
    """[T, B, ...] as [T B, ...], also of each field of an observation."""
    return tf.nest.map_structure(lambda y: tf.reshape(y, [-1, *y.shape[2:]]), x)


def impala(game: str, machine: Machine) -> TrainConfig:
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
            learning_rate_schedule="linear", learning_rate_agent_steps=AGENT_STEPS, rmsprop_decay=0.99,
            rmsprop_epsilon=0.01, rmsprop_epsilon_inside=True, clip_global_norm=40.0,
        ),
        exchange=ALONE,
    )  # fmt: skip


def small(game: str, machine: Machine) -> TrainConfig:
    """The small network, with the optimizer of the other actor-critics: means, Adam, a norm of 0.5, a constant rate.

    8 simulators, so that there are eight updates for each of the paper's. With the clip of 0.9, later temporal
    differences count less, as with the lambda of GAE. On Pong the paper's optimizer learned less in as many steps.
    """
    return laptop(impala)(game, machine).changed(
        algorithm={"c_clip": 0.9},
        sampling={"simulators": 8},
        optimizer=OptimizerConfig(batch_size=80, learning_rate=1e-3, adam_epsilon=1e-5, clip_global_norm=0.5),
    )


ALGORITHM = Algorithm(
    settings=ImpalaConfig,
    loss=loss,
    names={
        "impala": Name(
            "IMPALA", {"default": impala, "laptop": small, "smoke": smoke(impala, unroll_length=10, value_cost=0.5)}
        )
    },
)
