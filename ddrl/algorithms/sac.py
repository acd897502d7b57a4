"""SAC: soft actor-critic with a learned temperature, for continuous actions (Haarnoja et al. 2018, 2018b).

It fills a replay with actions drawn from its policy. Two critics learn the soft value of an action, with targets that
take the smaller of two averaged critics; the policy follows the smaller critic and its own entropy; the temperature
alpha, which weighs the two, is a parameter that holds the entropy at a target.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np

from ddrl import checks
from ddrl.algorithms.parts import ALONE, SMOKE_NETWORK, SMOKE_RUN
from ddrl.algorithms.record import Algorithm, Exploration, Name
from ddrl.config import (
    AlgorithmConfig,
    EnvironmentConfig,
    EvaluationConfig,
    FromReplay,
    NetworkConfig,
    OptimizerConfig,
    ReplayConfig,
    RunConfig,
    SamplingConfig,
    TrainConfig,
)
from ddrl.lazy import tf
from ddrl.networks.soft_actor_critic import LOG_TEMPERATURE, SoftActorCriticNetwork
from ddrl.ops import q_learning
from ddrl.ops.draws import Draw, normals, several_uniforms
from ddrl.types import Continuous, LossContext, LossOutput, Machine, Replayed

GAME = "Pendulum-v1"  # where none is named


@dataclasses.dataclass(frozen=True)
class SACConfig(AlgorithmConfig):
    """Soft actor-critic."""

    name: ClassVar[str] = "sac"
    takes: ClassVar[tuple[type, ...]] = (Continuous,)
    bounded: ClassVar[bool] = True
    dense_alone: ClassVar[bool] = True

    n_step: int = 1
    """Number of rewards that a target sums before it bootstraps."""
    reward_clip: float = 0.0
    """Clip rewards to [-x, x] for learning (0: do not). Scores stay raw."""
    target_average: float = 0.005
    """Fraction of the parameters that enters the target critics per update (tau)."""
    target_entropy: float | None = None
    """Entropy that the policy is held at, in nats (None: minus the number of action components). Actions are in units
    of half their range."""
    temperature_rate: float = 1.0
    """Factor on the learning rate of the temperature."""
    steps_per_update: int = 1
    """Agent steps of this worker per gradient."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least(self, 1, "n_step", "steps_per_update")
        checks.above(self, 0.0, "target_average", "temperature_rate", why="0 would stop learning")
        checks.between(self, 0.0, 1.0, "target_average")
        if self.target_entropy is not None:
            checks.finite(self, "target_entropy")

    @property
    def learns_from(self) -> FromReplay:
        """Transitions of n steps; the target critics are averaged."""
        return FromReplay(self.n_step, self.steps_per_update, self.steps_per_update, self.target_average)

    @property
    def learning_rate_factors(self) -> dict[str, float]:
        """The temperature's."""
        return {LOG_TEMPERATURE: self.temperature_rate} if self.temperature_rate != 1.0 else {}

    def refuse(self, config: TrainConfig) -> None:
        """Targets that the newest policy decides cannot be computed by others."""
        if config.apex.actors:
            checks.refuse(config.apex, "actors", "sac acts in its workers; leave it at 0, or train apex-dpg")


def loss(
    network: SoftActorCriticNetwork, parameters: Any, batch: Replayed, config: SACConfig, context: LossContext
) -> LossOutput:
    """Losses of critics, policy and temperature, whose gradients are in different parts of the vector; in float32.

    Critics (Haarnoja et al. 2018b, equations 5 and 6): mean of weight (y - q_i(s, a))^2 / 2 for both, with
    y = R + discount (min_j q_j(s', a'; theta^-) - alpha log pi(a'|s')) and a' drawn from the newest policy.
    With --n-step above 1, R has no entropies of the steps between.
    Policy (equation 9, with the smaller critic): mean of alpha log pi(a|s) - min_i q_i(s, a), by the action alone.
    Temperature (equation 18): mean of -alpha (log pi(a|s) + target entropy), by alpha alone.

    Args:
        network: with policy, critics and temperature.
        parameters: <float32>[N].
        batch: tensors with the fields of Replayed; actions <float32>[M, A] as the environment takes them.
        config: settings.
        context: `target` is theta^-, `key` draws the actions.

    Returns:
        LossOutput with priorities <float32>[M], the mean of both |y - q|. Metrics: `loss` of the critics; means over
        the rows of `q_value` (the smaller one), `q_target`, `priority`, `policy_value` min q(s, pi(s)) and `entropy`;
        `temperature`.
    """
    prepared, target = network.prepare(parameters), network.prepare(context.target)
    fixed = tf.nest.map_structure(tf.stop_gradient, prepared)
    actions, normal = batch.action.shape, tf.random.stateless_normal([2, *batch.action.shape], context.key)
    alpha = tf.exp(fixed[LOG_TEMPERATURE])

    next_action, next_log_prob = network.sampled(fixed, batch.next_observation, normal[0])
    soft_value = tf.minimum(*network.critics(target, batch.next_observation, next_action)) - alpha * next_log_prob
    y = tf.stop_gradient(q_learning.n_step_targets(batch.reward, batch.discount, soft_value))
    values = network.critics(prepared, batch.observation, network.normalized(batch.action))
    critic_loss = tf.add_n([tf.reduce_mean(batch.weight * q_learning.squared(y - value)) for value in values])

    action, log_prob = network.sampled(prepared, batch.observation, normal[1])
    policy_value = tf.minimum(*network.critics(fixed, batch.observation, action))
    policy_loss = tf.reduce_mean(alpha * log_prob - policy_value)

    target_entropy = -float(actions[1]) if config.target_entropy is None else config.target_entropy
    excess = tf.stop_gradient(log_prob) + target_entropy
    temperature_loss = -tf.reduce_mean(tf.exp(prepared[LOG_TEMPERATURE]) * excess)

    priorities = tf.add_n([tf.abs(y - value) for value in values]) / 2.0
    means = {
        "loss": critic_loss, "q_value": tf.minimum(*values), "q_target": y, "priority": priorities,
        "policy_value": policy_value, "entropy": -log_prob, "temperature": alpha,
    }  # fmt: skip
    metrics = {name: tf.reduce_mean(x) for name, x in means.items()}
    return LossOutput(critic_loss + policy_loss + temperature_loss, metrics, priorities)


def network(
    config: NetworkConfig, settings: SACConfig, shape: tuple[int, ...], dtype: Any, space: Continuous
) -> SoftActorCriticNetwork:
    """Policy, critics and temperature."""
    return SoftActorCriticNetwork(config, shape, dtype, space)


def draw(config: SACConfig, exploration: Exploration) -> Draw:
    """Actions of the policy; uniform ones until learning begins. Its log-probabilities are 0, as nothing reads them."""
    space = exploration.space
    assert isinstance(space, Continuous)  # SACConfig.takes
    low, high = np.array(space.low), np.array(space.high)

    def drawn(
        policy: np.ndarray, seed: int, simulators: np.ndarray, counts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        uniform = several_uniforms(seed, simulators, counts, 2 * len(low))
        _, mean, log_deviation = np.split(policy.astype(np.float64), 3, axis=1)
        squashed = np.tanh(mean + np.exp(log_deviation) * normals(uniform))
        at_random = (exploration.agent_steps(counts) < 0)[:, None]
        places = np.where(at_random, uniform[:, : len(low)], (squashed + 1.0) / 2.0)
        return (low + places * (high - low)).astype(np.float32), np.zeros(len(policy), np.float32)

    return drawn


def sac(game: str, machine: Machine) -> TrainConfig:
    """Haarnoja et al. 2018b, table 1, in one process with one simulator.

    Adam with 3e-4, batches of 256, layers of 256, 256, a replay of a million, tau 0.005, a gradient for each step.
    Their code begins with 10,000 random actions.
    """
    return TrainConfig(
        environment=EnvironmentConfig(game=game),
        network=NetworkConfig(
            network="mlp", compute_dtype="float32", policy_layers=(256, 256), critic_layers=(256, 256)
        ),
        algorithm=SACConfig(),
        sampling=SamplingConfig(schedule="standard", simulators=1, groups=1),
        replay=ReplayConfig(replay_capacity=1_000_000, replay_minimum=10_000),
        optimizer=OptimizerConfig(batch_size=256, learning_rate=3e-4),
        exchange=ALONE,
        evaluation=EvaluationConfig(eval_every_updates=5_000, eval_games=20),
    )


def laptop(game: str, machine: Machine) -> TrainConfig:
    """Larger steps, smaller batches and layers, four simulators: minutes on one core."""
    return sac(game, machine).changed(
        network={"policy_layers": (128, 128), "critic_layers": (128, 128)},
        sampling={"simulators": 4},
        replay={"replay_capacity": 200_000, "replay_minimum": 1_000},
        optimizer=OptimizerConfig(batch_size=128, learning_rate=1e-3),
        run=RunConfig(minutes=6.0),
    )


def smoke(game: str, machine: Machine) -> TrainConfig:
    """A tiny network, in seconds."""
    return laptop(game, machine).changed(
        network=dataclasses.replace(SMOKE_NETWORK, policy_layers=(32, 32), critic_layers=(32, 32)),
        algorithm={"steps_per_update": 4},
        replay={"replay_capacity": 20_000, "replay_minimum": 400},
        optimizer=OptimizerConfig(batch_size=32, learning_rate=1e-3),
        evaluation=EvaluationConfig(eval_every_updates=1_000, eval_games=5),
        run=SMOKE_RUN,
    )


ALGORITHM = Algorithm(
    settings=SACConfig,
    loss=loss,
    context=frozenset({"target", "key"}),
    network=network,
    draw=draw,
    names={"sac": Name("SAC", {"default": sac, "laptop": laptop, "smoke": smoke}, GAME)},
)
