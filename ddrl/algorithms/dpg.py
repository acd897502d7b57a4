"""DPG: a deterministic policy and a critic that learn from a replay (Lillicrap et al. 2016; Horgan et al. 2018).

It fills a replay by acting with noise; the critic learns n-step targets, which the target networks give, and the policy
follows the critic's gradient. With actors and a replay in ranks of their own, it is Ape-X DPG.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from ddrl import checks
from ddrl.algorithms.parts import ALONE, SMOKE_NETWORK, SMOKE_RUN, apex_actors
from ddrl.algorithms.record import AheadTargets, Algorithm, Exploration, Name
from ddrl.config import (
    AlgorithmConfig,
    ApexConfig,
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
from ddrl.networks.deterministic import DeterministicNetwork
from ddrl.ops import q_learning
from ddrl.ops.draws import Draw, noisy
from ddrl.types import Continuous, LossContext, LossOutput, Machine, Replayed

GAME = "Pendulum-v1"  # where none is named


@dataclasses.dataclass(frozen=True)
class DPGConfig(AlgorithmConfig):
    """Deterministic policy gradients."""

    name: ClassVar[str] = "dpg"
    takes: ClassVar[tuple[type, ...]] = (Continuous,)
    bounded: ClassVar[bool] = True
    dense_alone: ClassVar[bool] = True

    n_step: int = 5
    """Number of rewards that a target sums before it bootstraps."""
    slope_clip: float = 1.0
    """Clip the critic's gradient with respect to the action to [-x, x] (0: do not). Its components are in units of half
    the action's range, and are clipped before they go into the policy."""
    noise: float = 0.3
    """Standard deviation of the noise on actions in training. The noise is Gaussian, in units of half the action's
    range."""
    reward_clip: float = 0.0
    """Clip rewards to [-x, x] for learning (0: do not). Scores stay raw."""
    target_updates: int = 100
    """Updates between copies of the parameters to the target networks."""
    steps_per_update: int = 8
    """Agent steps of this worker per gradient."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least(self, 1, "n_step", "target_updates", "steps_per_update")
        checks.at_least(self, 0.0, "slope_clip", "noise")

    @property
    def learns_from(self) -> FromReplay:
        """Transitions of n steps."""
        return FromReplay(self.n_step, self.steps_per_update, self.target_updates * self.steps_per_update)

    def warnings(self, config: TrainConfig) -> list[str]:
        """Of rewards that are clipped, and are not those of the paper's tasks."""
        game = config.environment.game
        if not self.reward_clip or game.startswith("dm_control/"):
            return []
        clip = f"rewards of {game} are clipped to +-{self.reward_clip:g} for learning"
        clipped = f"{clip}, as in the paper, where they lie in 0 to 1"
        return [f"{clipped}; if they are larger, use --reward-clip 0 or --preset laptop"]


def targets(network: DeterministicNetwork, target: Any, batch: Replayed, config: DPGConfig) -> Any:
    """What the critic should say of the actions in `batch` <float32>[M], without gradient.

    R + discount q(s', pi(s'; phi^-); psi^-) of n steps (Horgan et al. 2018, section 3.2).

    Args:
        network: with a policy and a critic.
        target: parameters phi^- and psi^-, as `network.prepare` makes them.
        batch: tensors; `reward`, `discount` and `next_observation` are used.
        config: unused.
    """
    action = network.policy_actions(target, batch.next_observation)
    values = network.critic(target, batch.next_observation, action)
    return q_learning.n_step_targets(batch.reward, batch.discount, values)


def loss(
    network: DeterministicNetwork, parameters: Any, batch: Replayed, config: DPGConfig, context: LossContext
) -> LossOutput:
    """Critic loss and policy loss, whose gradients are in different parts of the vector; in float32.

    Critic: mean of weight (target - q(s, a))^2 / 2 (Horgan et al. 2018, section 3.2).

    Policy: ascent on q(s, pi(s)), through the action alone (Silver et al. 2014, equation 9). The slope dq/da at
    a = pi(s) is clipped to +-slope_clip in each component (Horgan et al. 2018, appendix D), actions in units of half
    their range; its product with pi(s) has that slope times dpi/dphi as its gradient, and none by the critic. The
    policy's mean has no weights (as in Barth-Maron et al. 2018, algorithm 1).

    Args:
        network: with a policy and a critic.
        parameters: <float32>[N].
        batch: tensors with the fields of Replayed, and targets; actions <float32>[M, A] as the environment takes them.
        config: settings.
        context: unused.

    Returns:
        LossOutput with priorities <float32>[M], |target - q|. Metrics: `loss` of the critic; means over the rows of
        `q_value` predicted, `q_target`, `priority`, and `policy_value` q(s, pi(s)); `slope_clipped`, the part of the
        slopes' components that are.
    """
    prepared = network.prepare(parameters)
    value = network.critic(prepared, batch.observation, network.normalized(batch.action))
    errors = batch.target - value
    errors.shape.assert_is_compatible_with(batch.weight.shape)
    critic_loss = tf.reduce_mean(batch.weight * q_learning.squared(errors))
    action = network.policy_actions(prepared, batch.observation)
    policy_value, slope = value_and_slope(network, prepared, batch.observation, action)
    clipped = tf.clip_by_value(slope, -config.slope_clip, config.slope_clip) if config.slope_clip else slope
    policy_loss = -tf.reduce_mean(tf.reduce_sum(clipped * action, axis=1))
    priorities = tf.abs(errors)
    means = {
        "loss": critic_loss, "q_value": value, "q_target": batch.target, "priority": priorities,
        "policy_value": policy_value, "slope_clipped": tf.cast(clipped != slope, tf.float32),
    }  # fmt: skip
    return LossOutput(critic_loss + policy_loss, {k: tf.reduce_mean(x) for k, x in means.items()}, priorities)


def value_and_slope(network: Any, prepared: Any, observation: Any, action: Any) -> tuple[Any, Any]:
    """q(s, a) <float32>[M], and dq/da <float32>[M, A] without gradient.

    Args:
        network: with a critic.
        prepared: parameters, as `network.prepare` makes them.
        observation: [M, ...].
        action: <float32>[M, A] in units of half the range.
    """
    fixed = tf.stop_gradient(action)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(fixed)
        value = network.critic(prepared, observation, fixed)
    return value, tf.stop_gradient(tape.gradient(value, fixed))


def network(
    config: NetworkConfig, settings: DPGConfig, shape: tuple[int, ...], dtype: Any, space: Continuous
) -> DeterministicNetwork:
    """The policy and the critic."""
    return DeterministicNetwork(config, shape, dtype, space)


def critic(network: DeterministicNetwork, prepared: Any, observation: Any, action: Any) -> Any:
    """q(s, a) <float32>[M].

    Args:
        network: with a critic.
        prepared: parameters, as `network.prepare` makes them.
        observation: [M, ...].
        action: <float32>[M, A] as the environment takes it.
    """
    return network.critic(prepared, observation, network.normalized(action))


def draw(config: DPGConfig, exploration: Exploration) -> Draw:
    """The policy's action with normal noise; actions at random until learning begins."""
    assert isinstance(exploration.space, Continuous)  # DPGConfig.takes
    return noisy(exploration.space, config.noise, lambda ids, counts: exploration.agent_steps(counts) < 0)


def dpg(game: str, machine: Machine) -> TrainConfig:
    """Horgan et al. 2018, appendix D, in one process.

    Batches of 256 transitions, Adam with 1e-4, target networks every 100 updates, priority exponent 0.6, a replay of a
    million, and, as their DQN, targets of 3 steps, 50,000 transitions to begin, the norm clipped to 40, rewards clipped
    to +-1, importance exponent 0.4. Their 64 actors made 163 agent steps for each update, which one process cannot; it
    makes 8, since with 1, as in Lillicrap et al. 2016, the critic overrates what few transitions say.
    """
    return TrainConfig(
        environment=EnvironmentConfig(game=game),
        network=SMOKE_NETWORK,
        algorithm=DPGConfig(n_step=3, reward_clip=1.0),
        sampling=SamplingConfig(schedule="standard", simulators=8, groups=1),
        replay=ReplayConfig(
            replay_capacity=1_000_000, replay_minimum=50_000, priority_exponent=0.6, importance_exponent=0.4,
            importance_exponent_end=0.4,
        ),
        optimizer=OptimizerConfig(batch_size=256, learning_rate=1e-4, clip_global_norm=40.0),
        exchange=ALONE,
        evaluation=EvaluationConfig(eval_every_updates=5_000, eval_games=20),
    )  # fmt: skip


def laptop(game: str, machine: Machine) -> TrainConfig:
    """Larger steps and smaller batches, which learn within minutes on one core; targets of 5 steps, nothing clipped."""
    return dpg(game, machine).changed(
        # Where rewards are 1 a step, returns are then about 10, which the critic finds soon.
        algorithm=DPGConfig(n_step=5, reward_scale=0.1),
        replay=ReplayConfig(replay_capacity=200_000, replay_minimum=2_000, priority_exponent=0.6),
        optimizer=OptimizerConfig(batch_size=128, learning_rate=1e-3),
        run=RunConfig(minutes=6.0),
    )


def smoke(game: str, machine: Machine) -> TrainConfig:
    """A tiny network, in seconds."""
    return laptop(game, machine).changed(
        network={"policy_layers": (32, 32), "critic_layers": (32, 32)},
        replay={"replay_capacity": 20_000, "replay_minimum": 400},
        optimizer=OptimizerConfig(batch_size=32, learning_rate=1e-3),
        evaluation=EvaluationConfig(eval_every_updates=1_000, eval_games=5),
        run=SMOKE_RUN,
    )


def apex_dpg(game: str, machine: Machine) -> TrainConfig:
    """Horgan et al. 2018, section 4.2 and appendix D, with 8 actors of 8 simulators in place of 64 of one.

    Batches of 256, Adam with 1e-4, target networks every 100 updates, noise 0.3; transitions of low priority go first,
    drawn with exponent -0.4. "Otherwise as per DQN": targets of 3 steps, 50,000 transitions to begin, the norm clipped
    to 40, rewards clipped to +-1, which changes nothing on the paper's tasks, importance exponent 0.4.
    """
    return dpg(game, machine).changed(
        sampling=SamplingConfig(schedule="asynchronous", simulators=8, groups=1),
        apex=ApexConfig(actors=8, replay_shards=1, target_every_updates=100, eviction_exponent=-0.4),
    )


def laptop_apex(game: str, machine: Machine) -> TrainConfig:
    """Larger steps and smaller batches; one core learns, the others act."""
    small = laptop(game, machine)
    return apex_dpg(game, machine).changed(
        algorithm=small.algorithm,
        sampling={"simulators": 4},
        replay={"replay_capacity": 200_000, "replay_minimum": 2_000},
        apex={"actors": apex_actors(machine)},
        optimizer=small.optimizer,
        run=small.run,
    )


def smoke_apex(game: str, machine: Machine) -> TrainConfig:
    """A tiny network, in seconds."""
    small = smoke(game, machine)
    return apex_dpg(game, machine).changed(
        network=small.network,
        algorithm=small.algorithm,
        sampling={"simulators": 2},
        replay={"replay_capacity": 20_000, "replay_minimum": 400},
        apex={"actors": 2, "prefetch": 4},
        optimizer=small.optimizer,
        evaluation=small.evaluation,
        run=small.run,
    )


ALGORITHM = Algorithm(
    settings=DPGConfig,
    loss=loss,
    targets=AheadTargets(targets),
    network=network,
    draw=draw,
    critic=critic,
    names={
        "dpg": Name("DPG", {"default": dpg, "laptop": laptop, "smoke": smoke}, GAME),
        "apex-dpg": Name(
            "Ape-X DPG",
            {"default": apex_dpg, "laptop": laptop_apex, "smoke": smoke_apex},
            GAME,
            "Ape-X DPG: DPG with actors, replay shards, and a learner in ranks of their own (Horgan et al. 2018).",
        ),
    },
)
