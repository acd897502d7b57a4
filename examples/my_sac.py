"""Soft actor-critic with a learned temperature as a plugin (Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and
Applications").

    ddrl train my-sac --plugin examples/my_sac.py --preset laptop                              # Pendulum-v1
    ddrl train my-sac --plugin examples/my_sac.py --game HalfCheetah-v5 --steps-per-update 1

A network of its own, its own way to draw actions, averaged target networks and a learned scalar. (`ddrl train sac` is
the system's own.)
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from ddrl import checks, register_algorithm
from ddrl.algorithms import Algorithm, Name
from ddrl.config import (
    AlgorithmConfig,
    EnvironmentConfig,
    EvaluationConfig,
    ExchangeConfig,
    FromReplay,
    NetworkConfig,
    OptimizerConfig,
    ReplayConfig,
    RunConfig,
    SamplingConfig,
    TrainConfig,
)
from ddrl.lazy import tf
from ddrl.networks.dense import BoundedNetwork, flat_observations, tower_outputs, tower_tensors
from ddrl.ops import distributions
from ddrl.ops.draws import normals, several_uniforms
from ddrl.structured import inputs_of
from ddrl.types import Continuous, LossOutput, PolicyValue

CRITICS = ("q1", "q2")
TEMPERATURE = "temperature/log"
LOG_DEVIATIONS = (-20.0, 2.0)  # as in the authors' code


@dataclasses.dataclass(frozen=True)
class MySACConfig(AlgorithmConfig):
    """Soft actor-critic."""

    name: ClassVar[str] = "my-sac"
    takes: ClassVar[tuple[type, ...]] = (Continuous,)
    bounded: ClassVar[bool] = True  # an action is a tanh, scaled to its bounds
    dense_alone: ClassVar[bool] = True  # --policy-layers, --critic-layers

    reward_clip: float = 0.0
    """Rewards are clipped to [-x, x] for learning only (0: not clipped); scores stay raw."""
    target_average: float = 0.005
    """Part of the parameters that enters the target critics with each update (tau)."""
    entropy_per_component: float = -1.0
    """The target entropy in nats for each component of an action, in units of half its range."""
    steps_per_update: int = 1
    """Agent steps of this worker per gradient."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least(self, 1, "steps_per_update")
        checks.above(self, 0.0, "target_average", why="0 would stop learning")
        checks.between(self, 0.0, 1.0, "target_average")
        checks.finite(self, "entropy_per_component")

    @property
    def learns_from(self) -> FromReplay:
        """Single transitions; `context.target` follows the parameters slowly."""
        return FromReplay(1, self.steps_per_update, self.steps_per_update, self.target_average)


class MySACNetwork(BoundedNetwork):
    """A Gaussian policy of u, where tanh(u) is the action in units of half its range, and two critics.

    Args:
        config: sizes of the layers.
        shape, dtype: of one observation.
        space: of the actions.
    """

    def __init__(self, config: NetworkConfig, shape: tuple[int, ...], dtype: Any, space: Continuous) -> None:
        inputs, actions = inputs_of(shape, dtype), space.head_size
        tensors = tower_tensors("policy", (inputs, *config.policy_layers, 2 * actions), 0.01)
        for critic in CRITICS:
            tensors += tower_tensors(critic, (inputs + actions, *config.critic_layers, 1), 1.0)
        super().__init__(tensors, dtype, space)
        self._policy_depth, self._critic_depth = len(config.policy_layers), len(config.critic_layers)

    def apply(self, prepared: dict[str, Any], observations: Any) -> PolicyValue:
        """The action to evaluate with, then what `draw` needs: mean and logarithm of the deviation of u."""
        gaussian = self.gaussian(prepared, observations)
        action = tf.tanh(gaussian[:, : self.action_space.head_size])
        value = self.smaller_q(prepared, observations, action)
        return PolicyValue(tf.concat([self.scaled(action), gaussian], axis=1), value)

    def gaussian(self, prepared: dict[str, Any], observations: Any) -> Any:
        """Means, then logarithms of deviations, of u: <float32>[B, 2 A]."""
        x = flat_observations(self.observed(prepared, observations), self.observation_scale)
        mean, log_deviation = tf.split(tower_outputs(prepared, "policy", self._policy_depth, x, tf.nn.relu), 2, axis=1)
        return tf.concat([mean, tf.clip_by_value(log_deviation, *LOG_DEVIATIONS)], axis=1)

    def drawn(self, prepared: dict[str, Any], observations: Any, normal: Any) -> tuple[Any, Any]:
        """Actions <float32>[B, A] by standard normal numbers [B, A], and log pi of them <float32>[B].

        log pi(a) = log N(u) - sum log(1 - tanh(u)^2), the latter as 2 (log 2 - u - softplus(-2 u)).
        """
        gaussian = self.gaussian(prepared, observations)
        mean, log_deviation = tf.split(gaussian, 2, axis=1)
        u = mean + tf.exp(log_deviation) * normal
        squash = tf.reduce_sum(2.0 * (math.log(2.0) - u - tf.nn.softplus(-2.0 * u)), axis=1)
        return tf.tanh(u), distributions.log_prob(self.action_space, gaussian, u) - squash

    def q(self, prepared: dict[str, Any], observations: Any, actions: Any) -> list[Any]:
        """What each critic says of actions <float32>[B, A]: <float32>[B]."""
        x = flat_observations(self.observed(prepared, observations), self.observation_scale)
        x = tf.concat([x, actions], axis=1)
        return [tower_outputs(prepared, name, self._critic_depth, x, tf.nn.relu)[:, 0] for name in CRITICS]

    def smaller_q(self, prepared: dict[str, Any], observations: Any, actions: Any) -> Any:
        """The smaller of the two."""
        return tf.minimum(*self.q(prepared, observations, actions))


def loss(network: MySACNetwork, parameters: Any, batch: Any, config: MySACConfig, context: Any) -> LossOutput:
    """The sum of three losses, whose gradients are in different parts of the vector.

    Critics: mean of w (y - Q_i(s, a))^2 / 2 for both, with y = r + discount (min Q^-(s', a') - alpha log pi(a'|s')),
    where a' is drawn from the policy and Q^- are the target critics.
    Policy: mean of alpha log pi(a|s) - min Q(s, a), with a = tanh(u) drawn from the policy, by its parameters alone.
    Temperature: mean of -alpha (log pi(a|s) + target entropy), by log alpha alone.

    Args:
        network: with the learned temperature.
        parameters: <float32>[N].
        batch: tensors with the fields of Replayed.
        config: settings.
        context: `target` has the target critics, `key` seeds the draws.
    """
    online, target = network.prepare(parameters), network.prepare(context.target)
    fixed = {name: tf.stop_gradient(x) for name, x in online.items()}
    normal = tf.random.stateless_normal([2, *batch.action.shape], context.key)
    alpha = tf.exp(online[TEMPERATURE])
    fixed_alpha = tf.stop_gradient(alpha)

    next_action, next_log_prob = network.drawn(fixed, batch.next_observation, normal[0])
    soft_value = network.smaller_q(target, batch.next_observation, next_action) - fixed_alpha * next_log_prob
    y = tf.stop_gradient(batch.reward + batch.discount * soft_value)
    values = network.q(online, batch.observation, network.normalized(batch.action))
    critic_loss = tf.add_n([0.5 * tf.reduce_mean(batch.weight * tf.square(y - value)) for value in values])

    action, log_prob = network.drawn(online, batch.observation, normal[1])
    policy_loss = tf.reduce_mean(fixed_alpha * log_prob - network.smaller_q(fixed, batch.observation, action))

    target_entropy = config.entropy_per_component * network.action_space.head_size
    temperature_loss = -tf.reduce_mean(alpha * tf.stop_gradient(log_prob + target_entropy))

    metrics = {
        "loss": critic_loss, "policy_loss": policy_loss, "q_target": tf.reduce_mean(y), "temperature": alpha,
        "entropy": -tf.reduce_mean(log_prob),
    }  # fmt: skip
    priorities = tf.add_n([tf.abs(y - value) for value in values]) / len(values)
    return LossOutput(critic_loss + policy_loss + temperature_loss, metrics, priorities)


def draw(config: MySACConfig, exploration: Any) -> Any:
    """How simulators draw actions: uniform ones until learning begins, then those of the policy.

    Its log-probabilities are 0, as nothing reads them.
    """
    low, high = np.array(exploration.space.low), np.array(exploration.space.high)

    def actions(policy: np.ndarray, seed: int, environments: np.ndarray, counts: np.ndarray) -> tuple[Any, Any]:
        uniform = several_uniforms(seed, environments, counts, 2 * len(low))
        _, mean, log_deviation = np.split(policy.astype(np.float64), 3, axis=1)
        drawn = (np.tanh(mean + np.exp(log_deviation) * normals(uniform)) + 1.0) / 2.0
        at_random = exploration.agent_steps(counts)[:, None] < 0
        places = np.where(at_random, uniform[:, : len(low)], drawn)
        return (low + places * (high - low)).astype(np.float32), np.zeros(len(policy), np.float32)

    return actions


def default(game: str, machine: Any) -> TrainConfig:
    """The paper's settings: 256 x 256, batches of 256, Adam with 3e-4, a replay of a million."""
    return TrainConfig(
        environment=EnvironmentConfig(game=game),
        network=NetworkConfig("mlp", compute_dtype="float32", policy_layers=(256, 256), critic_layers=(256, 256)),
        algorithm=MySACConfig(),
        sampling=SamplingConfig(schedule="standard", simulators=1, groups=1),
        replay=ReplayConfig(replay_capacity=1_000_000, replay_minimum=10_000),
        optimizer=OptimizerConfig(batch_size=256, learning_rate=3e-4),
        exchange=ExchangeConfig(workers=1, parameter_servers=0),
        evaluation=EvaluationConfig(eval_every_updates=5_000, eval_games=20),
    )


def laptop(game: str, machine: Any) -> TrainConfig:
    """Pendulum in two minutes of one core: 15,000 agent steps, four simulators, smaller layers, larger steps."""
    return default(game, machine).changed(
        network={"policy_layers": (64, 64), "critic_layers": (128, 128)},
        sampling={"simulators": 4},
        replay={"replay_capacity": 50_000, "replay_minimum": 1_000},
        optimizer={"batch_size": 128, "learning_rate": 1e-3},
        run=RunConfig(minutes=0.0, agent_steps=15_000, video=False),
    )


register_algorithm(
    Algorithm(
        settings=MySACConfig,
        loss=loss,
        network=lambda config, settings, shape, dtype, space: MySACNetwork(config, shape, dtype, space),
        draw=draw,
        learned=lambda settings, space: {TEMPERATURE: 0.0},
        context=frozenset({"target", "key"}),
        names={"my-sac": Name("My SAC", {"default": default, "laptop": laptop}, game="Pendulum-v1")},
    )
)
