"""V-MPO as a plugin (Song et al. 2019, "V-MPO: On-Policy Maximum a Posteriori Policy Optimization for Discrete and
Continuous Control").

    ddrl train v-mpo --plugin examples/v_mpo.py --preset smoke
    ddrl train v-mpo --plugin examples/v_mpo.py --game CartPole-v1 --network mlp --workers 2 --parameter-servers 1

The policy follows the better half of what it did, weighted by exp(advantage / eta), and stays near the policy that
acted. eta and the multipliers alpha are learned scalars beside the network.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

from ddrl import checks, register_algorithm
from ddrl.algorithms import Algorithm, Name
from ddrl.config import (
    AlgorithmConfig,
    EnvironmentConfig,
    EvaluationConfig,
    ExchangeConfig,
    FromRollouts,
    NetworkConfig,
    OptimizerConfig,
    RunConfig,
    SamplingConfig,
    TrainConfig,
)
from ddrl.lazy import tf
from ddrl.ops import distributions
from ddrl.types import Continuous, LossOutput

TEMPERATURE, MULTIPLIER = "temperature", "multiplier"  # with a slash behind them, beginnings of names of tensors
SMALLEST = 1e-8  # of eta and alpha, as the paper projects them


@dataclasses.dataclass(frozen=True)
class VMPOConfig(AlgorithmConfig):
    """Loss of V-MPO."""

    name: ClassVar[str] = "v-mpo"

    unroll_length: int = 40
    """Agent steps to which a return reaches; then the value bootstraps."""
    epochs: int = 4
    """Times that a rollout is used, in minibatches of --batch-size, before it and the policy that acted are renewed
    (together with --batch-size the paper's T_target)."""
    temperature_bound: float = 0.01
    """epsilon_eta: how far the weights of the better half may be from equal ones, in nats."""
    kl_bound: float = 0.01
    """epsilon_alpha: KL from the policy that acted to that which learns; of continuous actions by their means alone."""
    deviation_kl_bound: float = 1e-4
    """The same for the deviations of continuous actions."""
    first_temperature: float = 1.0
    """eta at the beginning."""
    first_multiplier: float = 5.0
    """alpha at the beginning."""
    multiplier_rate: float = 1.0
    """Factor on the learning rate of eta and alpha."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least(self, 1, "unroll_length", "epochs")
        bounds = ("temperature_bound", "kl_bound", "deviation_kl_bound")
        checks.above(self, 0.0, *bounds, "first_temperature", "first_multiplier", "multiplier_rate")

    @property
    def learns_from(self) -> FromRollouts:
        """Shuffled minibatches of a rollout, with advantages of n-step returns."""
        return FromRollouts(self.unroll_length, gae_lambda=1.0, epochs=self.epochs, shuffle=True)

    @property
    def learning_rate_factors(self) -> dict[str, float]:
        """Those of the learned scalars."""
        if self.multiplier_rate == 1.0:
            return {}
        return {f"{TEMPERATURE}/": self.multiplier_rate, f"{MULTIPLIER}/": self.multiplier_rate}


def learned(config: VMPOConfig, space: Any) -> dict[str, float]:
    """eta and the alphas as x of softplus(x), so that they stay above 0."""
    names = bounds_of(config, space)
    first = {f"{MULTIPLIER}/{name}": _unbounded(config.first_multiplier) for name in names}
    return {f"{TEMPERATURE}/eta": _unbounded(config.first_temperature), **first}


def bounds_of(config: VMPOConfig, space: Any) -> dict[str, float]:
    """Name of each KL -> epsilon_alpha."""
    if isinstance(space, Continuous):
        return {"mean": config.kl_bound, "deviation": config.deviation_kl_bound}
    return {"policy": config.kl_bound}


def loss(network: Any, parameters: Any, batch: Any, config: VMPOConfig, context: Any) -> LossOutput:
    """L_V + L_pi + L_eta + L_alpha (Song et al. 2019), in float32.

    L_V = sum (V(s) - G)^2 / (2 |D|).
    L_pi = -sum psi log pi(a|s) over D~, the half of D with the larger advantages, with
    psi = exp(A / eta) / sum exp(A / eta) over D~, without gradient.
    L_eta = eta epsilon_eta + eta log(sum exp(A / eta) / |D~|) over D~.
    L_alpha = sum [alpha (epsilon_alpha - sg KL) + sg(alpha) KL] / |D| with KL = KL(pi_old(.|s), pi(.|s)), where sg
    stops the gradient; for Gaussians one of the mean and one of the deviations, each with an alpha and a bound.

    pi_old is the policy that acted, and A = G - V are the advantages by its value. Each worker takes the half, and the
    weights, of its own minibatch.

    Args:
        network: with the `learned` scalars.
        parameters: <float32>[N].
        batch: tensors with the fields of Transitions; rows of weight 0 do not count.
        config: the bounds.
        context: `target` is what the rollout was acted with.

    Returns:
        LossOutput with the metrics `value_loss`, `policy_loss`, `eta`, `entropy`, and each KL and alpha.
    """
    space = network.action_space
    prepared, acted = network.prepare(parameters), network.prepare(tf.stop_gradient(context.target))
    policy, value = network.apply(prepared, batch.observation)
    old = tf.stop_gradient(network.apply(acted, batch.observation).policy)
    eta = _positive(prepared[f"{TEMPERATURE}/eta"])

    value_loss = 0.5 * mean(tf.square(batch.return_ - value), batch.weight)
    rows = better_half(batch.advantage, batch.weight)
    scaled = tf.gather(batch.advantage, rows) / eta
    psi = tf.stop_gradient(tf.nn.softmax(scaled))
    log_probs = distributions.log_prob(space, policy, batch.action)
    policy_loss = -tf.reduce_sum(psi * tf.gather(log_probs, rows))
    log_mean = tf.reduce_logsumexp(scaled) - tf.math.log(tf.cast(tf.size(rows), tf.float32))
    temperature_loss = eta * (config.temperature_bound + log_mean)

    metrics = {"value_loss": value_loss, "policy_loss": policy_loss, "eta": eta}
    trust_loss = 0.0
    bounds = bounds_of(config, space)
    for name, kl in divergences(space, old, policy).items():
        alpha, divergence = _positive(prepared[f"{MULTIPLIER}/{name}"]), mean(kl, batch.weight)
        trust_loss += alpha * (bounds[name] - tf.stop_gradient(divergence)) + tf.stop_gradient(alpha) * divergence
        metrics |= {f"kl_{name}": divergence, f"alpha_{name}": alpha}
    metrics["entropy"] = mean(distributions.entropy(space, policy), batch.weight)
    return LossOutput(value_loss + policy_loss + temperature_loss + trust_loss, metrics)


def mean(x: Any, weight: Any) -> Any:
    """Of the rows <float32>[M] of weight 1; 0 where there are none."""
    return tf.math.divide_no_nan(tf.reduce_sum(weight * x), tf.reduce_sum(weight))


def better_half(advantage: Any, weight: Any) -> Any:
    """Numbers <int32>[K] of the rows with the larger advantages, half of those of weight 1, rounded up."""
    counted = weight > 0.0
    half = (tf.reduce_sum(tf.cast(counted, tf.int32)) + 1) // 2
    return tf.argsort(tf.where(counted, advantage, -math.inf), direction="DESCENDING")[:half]


def divergences(space: Any, old: Any, policy: Any) -> dict[str, Any]:
    """Name -> KL(old, policy) <float32>[M]; of Gaussians by the mean alone and by the deviations alone."""
    if not isinstance(space, Continuous):
        return {"policy": distributions.kl_divergence(space, old, policy)}
    (old_mean, old_deviation), (new_mean, new_deviation) = (tf.split(x, 2, axis=1) for x in (old, policy))
    moved = {"mean": [new_mean, old_deviation], "deviation": [old_mean, new_deviation]}
    return {name: distributions.kl_divergence(space, old, tf.concat(x, axis=1)) for name, x in moved.items()}


def _positive(x: Any) -> Any:
    return tf.nn.softplus(x) + SMALLEST


def _unbounded(value: float) -> float:
    """The inverse of softplus."""
    return value + math.log(-math.expm1(-value))


def default(game: str, machine: Any) -> TrainConfig:
    """16 simulators of 40 steps, each rollout used four times as a whole; Adam with 1e-4."""
    return TrainConfig(
        environment=EnvironmentConfig(game=game),
        network=NetworkConfig(compute_dtype="float32"),
        algorithm=VMPOConfig(),
        sampling=SamplingConfig(schedule="synchronized", simulators=16, groups=1),
        optimizer=OptimizerConfig(batch_size=0, learning_rate=1e-4),
        exchange=ExchangeConfig(workers=1, parameter_servers=0),
    )


def smoke(game: str, machine: Any) -> TrainConfig:
    """Catch in seconds: until it catches 50 balls of 50."""
    return default(game, machine).changed(
        network=NetworkConfig(network="mlp", compute_dtype="float32"),
        algorithm=VMPOConfig(unroll_length=18, epochs=2, temperature_bound=0.1, multiplier_rate=5.0),
        sampling={"simulators": 32},
        optimizer=OptimizerConfig(batch_size=144, learning_rate=2e-3),
        evaluation=EvaluationConfig(eval_every_updates=200, eval_games=50, target_score=1.0),
        run=RunConfig(minutes=2.0, log_every_seconds=1.0, video=False),
    )


register_algorithm(
    Algorithm(
        settings=VMPOConfig,
        loss=loss,
        learned=learned,
        context=frozenset({"target"}),
        names={"v-mpo": Name("V-MPO", {"default": default, "smoke": smoke})},
    )
)
