"""What the actor-critic algorithms have in common: settings, the sum of their losses, small presets."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from ddrl import checks
from ddrl.algorithms.parts import LAPTOP_EVAL_EPSILON, SMOKE_NETWORK, SMOKE_RUN, laptop_network
from ddrl.config import (
    LONGEST_ROLLOUT,
    AlgorithmConfig,
    EnvironmentConfig,
    EvaluationConfig,
    OptimizerConfig,
    RunConfig,
    TrainConfig,
)
from ddrl.lazy import tf
from ddrl.ops.policy_gradient import mean_of_counted
from ddrl.types import LossContext, LossOutput

if TYPE_CHECKING:
    from ddrl.algorithms.record import Preset


@dataclasses.dataclass(frozen=True)
class ActorCriticConfig(AlgorithmConfig):
    """Loss."""

    asynchronous_name: ClassVar[str] = ""  # with asynchronous updates, where that has a name of its own

    discount_start: float = 0.0
    """Smaller discount at the beginning of training (0: --discount from the start). The horizon 1 / (1 - discount) then
    grows linearly to that of --discount."""
    discount_start_share: float = 0.5
    """Part of --learning-rate-agent-steps or --learning-rate-updates within which the discount grows to --discount."""
    unroll_length: int = 5
    """Agent steps before a return bootstraps from the value."""
    entropy_cost: float = 0.01
    """Weight of the entropy bonus of the policy."""
    entropy_cost_schedule: Literal["constant", "linear"] = "constant"
    """How the entropy cost changes. linear: to 0 over --learning-rate-agent-steps or --learning-rate-updates, like the
    learning rate."""
    entropy_cost_start: float = 0.0
    """Larger entropy cost at the beginning of training (0: --entropy-cost from the start). It falls linearly to
    --entropy-cost."""
    entropy_cost_start_share: float = 0.05
    """Part of --learning-rate-agent-steps or --learning-rate-updates within which --entropy-cost-start falls."""
    value_cost: float = 0.5
    """Weight of the value loss, the mean of (R - V)^2."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.between(self, 1, LONGEST_ROLLOUT, "unroll_length")
        checks.at_least(self, 0.0, "entropy_cost", "entropy_cost_start", "value_cost")
        if 0.0 < self.entropy_cost_start < self.entropy_cost:
            why = f"it falls to --entropy-cost {self.entropy_cost:g}; give more than that, or 0"
            checks.refuse(self, "entropy_cost_start", why)
        checks.between(self, 0.0, 1.0, "discount_start")
        if self.discount_start and not self.discount_start < self.discount < 1.0:
            why = f"it grows to --discount {self.discount:g}, which must be more than that and less than 1; or give 0"
            checks.refuse(self, "discount_start", why)
        for share in ("entropy_cost_start_share", "discount_start_share"):
            checks.above(self, 0.0, share)
            checks.between(self, 0.0, 1.0, share)

    def discount_when(self, anneal: Any) -> Any:
        """Discount per agent step, which may grow from `discount_start`: a long horizon is learned slowly at first."""
        if not self.discount_start:
            return self.discount
        grown = np.minimum((1.0 - anneal) / self.discount_start_share, 1.0)
        return 1.0 - 1.0 / ((1.0 - grown) / (1.0 - self.discount_start) + grown / (1.0 - self.discount))

    def entropy_cost_when(self, anneal: Any) -> Any:
        """Weight of the entropy bonus when `anneal`, from 1 to 0, of the linear schedules is left."""
        cost = self.entropy_cost * (anneal if self.entropy_cost_schedule == "linear" else 1.0)
        if not self.entropy_cost_start:
            return cost
        left = tf.maximum(0.0, 1.0 - (1.0 - anneal) / self.entropy_cost_start_share)
        return cost + (self.entropy_cost_start - self.entropy_cost) * left

    def title(self, config: TrainConfig) -> str:
        """HTS-RL's with the double-buffered schedule, else that with asynchronous updates."""
        if config.sampling.schedule == "double-buffered":
            return f"hts-{self.name}"
        own = vars(type(self)).get("asynchronous_name")  # a plugin's variant of PPO is no APPO
        return str(own) if config.exchange.asynchronous and own else self.name


def actor_critic_loss(
    policy_loss: Any,
    square_errors: Any,
    entropies: Any,
    advantages: Any,
    values: Any,
    weights: Any,
    config: ActorCriticConfig,
    context: LossContext,
    metrics: dict[str, Any],
) -> LossOutput:
    """policy_loss + value_cost value_loss - entropy_cost entropy.

    value_loss and entropy are means over all B rows, with 0 for a row of weight 0: like the policy loss, so that
    the mean over the parts of a batch is that of the whole.

    Args:
        policy_loss: scalar.
        square_errors: <float32>[B] of the value: whole squares, not halves.
        entropies: <float32>[B] in nats.
        advantages, values: <float32>[B], for the metrics.
        weights: <float32>[B] 1, or 0 for rows that do not count.
        config: with `value_cost` and `entropy_cost`.
        context: `anneal` is what the cost of the entropy may follow.
        metrics: those of the algorithm alone.

    Returns:
        LossOutput. Metrics are scalars: the parts as they enter the loss before their weights, moments of advantages
        and values over the rows that count, and `metrics`.
    """
    for rows in (square_errors, entropies, advantages, values):
        rows.shape.assert_is_compatible_with(weights.shape)
    value_loss, entropy = tf.reduce_mean(weights * square_errors), tf.reduce_mean(weights * entropies)
    entropy_cost = config.entropy_cost_when(context.anneal)
    total = policy_loss + config.value_cost * value_loss - entropy_cost * entropy
    common = {
        "loss": total,
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "advantage_mean": mean_of_counted(advantages, weights),
        "advantage_rms": tf.sqrt(mean_of_counted(tf.square(advantages), weights)),
        "value_mean": mean_of_counted(values, weights),
    }
    return LossOutput(total, {**common, **metrics})


def laptop(preset: Preset) -> Preset:
    """The settings of `preset` with the small network, for ten minutes on one machine."""
    return lambda game, machine: dataclasses.replace(
        preset(game, machine).changed(evaluation={"eval_epsilon": LAPTOP_EVAL_EPSILON}),
        network=laptop_network(machine),
        run=RunConfig(minutes=10.0),
    )


def smoke(preset: Preset, batch_size: int = 0, **algorithm: Any) -> Preset:
    """The settings of `preset` for Catch with a tiny network, in seconds.

    Args:
        preset: to change.
        batch_size: rows of a gradient (0: a whole rollout).
        algorithm: its settings that are others.
    """

    def settings(game: str, machine: Any) -> TrainConfig:
        config = preset(game, machine)
        return config.changed(
            environment=EnvironmentConfig(game=game),
            network=SMOKE_NETWORK,
            algorithm=algorithm,
            sampling={"simulators": 8, "refresh_every_steps": 0},
            optimizer=OptimizerConfig(batch_size=batch_size, learning_rate=2e-3, clip_global_norm=0.5),
            evaluation=EvaluationConfig(eval_every_updates=200, eval_games=20),
            run=SMOKE_RUN,
        )

    return settings


def double_buffered(preset: Preset, optimizer: dict[str, Any], **algorithm: Any) -> Preset:
    """Liu et al. 2020, section 5 (HTS-RL): 16 simulators, acting and learning at once.

    Args:
        preset: to change.
        optimizer: its settings that are others.
        algorithm: likewise.
    """
    sampling = {"schedule": "double-buffered", "simulators": 16, "groups": 2}
    return lambda game, machine: preset(game, machine).changed(
        algorithm=algorithm, sampling=sampling, optimizer=optimizer
    )
