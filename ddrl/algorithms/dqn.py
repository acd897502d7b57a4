"""The Q-learning family: DQN and, setting by setting, Double, Dueling, n-step, Categorical DQN and epsilon-Rainbow;
with actors and a replay in ranks of their own, Ape-X DQN.

It fills a replay by acting epsilon-greedily, and learns from n-step transitions drawn from it, with targets that come
from theta^-, the parameters last copied to the target network.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, Literal

from ddrl import checks
from ddrl.algorithms.epsilon_greedy import EpsilonGreedyConfig, draw
from ddrl.algorithms.parts import (
    ALONE,
    PUBLISHED_NETWORK,
    SMOKE_NETWORK,
    SMOKE_RUN,
    apex_actors,
    laptop_network,
    stooke_q_learning,
)
from ddrl.algorithms.q_learning_presets import classic_control, laptop, smoke
from ddrl.algorithms.record import AheadTargets, Algorithm, Name, Preset
from ddrl.config import (
    ApexConfig,
    EnvironmentConfig,
    EvaluationConfig,
    FromReplay,
    OptimizerConfig,
    ReplayConfig,
    RunConfig,
    SamplingConfig,
    TrainConfig,
)
from ddrl.lazy import tf
from ddrl.networks.network import Network
from ddrl.ops import q_learning
from ddrl.rom_names import rom_name
from ddrl.types import Discrete, LossContext, LossOutput, Machine, QHead, Replayed

BATCH_SIZE = 32
STEPS_PER_UPDATE = 4
MOST_ATOMS = 10_000
RAINBOW_AGENT_STEPS = 50_000_000  # 200 million frames


@dataclasses.dataclass(frozen=True)
class DQNConfig(EpsilonGreedyConfig):
    """Q-learning."""

    name: ClassVar[str] = "dqn"

    n_step: int = 1
    """Number of rewards that a target sums before it bootstraps."""
    double: bool = False
    """Let the online network choose next actions (van Hasselt et al. 2016). The target network evaluates them."""
    dueling: bool = False
    """Estimate state value and advantages separately (Wang et al. 2016). Each has hidden layers and a head of its
    own."""
    atoms: int = 0
    """Atoms of the return's distribution (0: expected returns). They are evenly spaced from --value-min to --value-max;
    0 is plain DQN."""
    value_min: float = -10.0
    """Smallest return in a distribution; smaller ones count as this."""
    value_max: float = 10.0
    """Largest return in a distribution; larger ones count as this."""
    loss: Literal["huber", "squared"] = "huber"
    """Loss of the difference d between return and value. It is d^2/2, or, with huber, |d| - 1/2 where |d| > 1.
    Distributions have the cross-entropy instead."""
    target_period: int = 10_000
    """Agent steps of this worker between copies to the target network (C)."""
    steps_per_update: int = 4
    """Agent steps of this worker per gradient (F)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least(self, 1, "n_step", "target_period", "steps_per_update")
        checks.between(self, 0, MOST_ATOMS, "atoms")
        if self.atoms == 1:
            checks.refuse(
                self, "atoms", "one atom cannot tell returns apart; 51 is usual, and 0 learns expected returns"
            )
        if self.atoms:
            checks.finite(self, "value_min")
            checks.above(self, self.value_min, "value_max", why="--value-min; the atoms lie between the two")

    @property
    def head(self) -> QHead:
        """Of the network."""
        return QHead(self.dueling, self.atoms, self.value_min, self.value_max)

    @property
    def learns_from(self) -> FromReplay:
        """Transitions of n steps."""
        return FromReplay(self.n_step, self.steps_per_update, self.target_period)

    def title(self, config: TrainConfig) -> str:
        """With atoms Categorical DQN; epsilon-Rainbow with priorities, too. A plugin's variant is none of them."""
        if config.apex.actors or not self.atoms or self.name != DQNConfig.name:
            return super().title(config)
        return "rainbow" if config.replay.priority_exponent else "categorical-dqn"

    def warnings(self, config: TrainConfig) -> list[str]:
        """Of a support that is too narrow for the returns."""
        if not self.atoms:
            return []
        support = f"the support of the distributions is {self.value_min:g} to {self.value_max:g}"
        if not self.reward_clip:
            return [
                f"{support}, and rewards are not clipped; returns beyond it count as its ends, so watch support_end"
            ]
        largest = self.reward_clip * math.fsum(self.discount**k for k in range(self.n_step))
        if -largest >= self.value_min and largest <= self.value_max:
            return []
        clip = f"--reward-clip {self.reward_clip:g}, --n-step {self.n_step}"
        text = f"{support}, and the rewards of one target alone reach +-{largest:.3g} ({clip}); "
        return [text + "widen --value-min and --value-max"]


def targets(network: Network, target: Any, batch: Replayed, config: DQNConfig) -> Any:
    """What the values of the actions in `batch` should be: returns <float32>[M], or distributions <float32>[M, atoms].

    `ops.q_learning.n_step_targets`, or `projected_targets` with `atoms`. With `double` they are <float32>[M, A] or
    [M, A, atoms], with each next action, so that they depend on theta^- alone; the loss chooses.

    Args:
        network: with a Q head.
        target: parameters theta^-, as `network.prepare` makes them.
        batch: tensors; `reward`, `discount` and `next_observation` are used.
        config: settings.
    """
    outputs = network.action_values(target, batch.next_observation)
    if not config.double:
        returns = network.legal_returns(outputs, batch.next_observation)
        outputs = q_learning.of_action(outputs, q_learning.greedy(returns))
    if config.atoms:
        atoms = q_learning.support(config.value_min, config.value_max, config.atoms)
        return q_learning.projected_targets(batch.reward, batch.discount, outputs, atoms)
    return q_learning.n_step_targets(batch.reward, batch.discount, outputs)


def target_shape(config: DQNConfig, space: Discrete) -> tuple[int, ...]:
    """Of one transition's target."""
    return ((space.count,) if config.double else ()) + ((config.atoms,) if config.atoms else ())


def _chosen_target(network: Network, prepared: Any, batch: Replayed) -> Any:
    """The target with the next action that is largest to the newest parameters, which get no gradient by it."""
    fixed = tf.nest.map_structure(tf.stop_gradient, prepared)
    values = network.action_values(fixed, batch.next_observation)
    returns = network.legal_returns(values, batch.next_observation)
    return q_learning.of_action(batch.target, q_learning.greedy(returns))


def loss(network: Network, parameters: Any, batch: Replayed, config: DQNConfig, context: LossContext) -> LossOutput:
    """Mean over the batch of weight times the loss of each row, in float32.

    Rows: Huber or half the square of target - Q(s, a) (Mnih et al. 2015); with `atoms` the cross entropy of target
    and predicted distribution (Bellemare et al. 2017). The mean is over M, whatever the weights, as in prioritized
    replay (Schaul et al. 2016, algorithm 1).

    Args:
        network: with a Q head.
        parameters: <float32>[N].
        batch: tensors with the fields of Replayed, and targets.
        config: settings.
        context: unused.

    Returns:
        LossOutput with priorities <float32>[M]: |target - Q|, or the divergence KL(target, predicted) as in Rainbow.
        Metrics are means over the rows: `q_value` predicted, `q_target`, `priority`; with `atoms`, `support_end`, the
        targets' probability at the two ends of the support: near 1 the support is too narrow.
    """
    prepared = network.prepare(parameters)
    if config.double:
        batch = batch._replace(target=_chosen_target(network, prepared, batch))
    outputs = network.action_values(prepared, batch.observation)
    chosen = q_learning.of_action(outputs, batch.action)
    chosen.shape.assert_is_compatible_with(batch.target.shape)
    metrics = {}
    if config.atoms:
        atoms = q_learning.support(config.value_min, config.value_max, config.atoms)
        losses, priorities = q_learning.cross_entropies(batch.target, chosen)
        value, target = tf.linalg.matvec(tf.nn.softmax(chosen), atoms), tf.linalg.matvec(batch.target, atoms)
        metrics["support_end"] = tf.reduce_mean(batch.target[:, 0] + batch.target[:, -1])
    else:
        value, target = chosen, batch.target
        losses = (q_learning.huber if config.loss == "huber" else q_learning.squared)(target - value)
        priorities = tf.abs(target - value)
    losses.shape.assert_is_compatible_with(batch.weight.shape)
    total = tf.reduce_mean(batch.weight * losses)
    means = {"q_value": value, "q_target": target, "priority": priorities}
    metrics = {"loss": total, **{name: tf.reduce_mean(x) for name, x in means.items()}, **metrics}
    return LossOutput(total, metrics, priorities)


def dqn(game: str, machine: Machine) -> TrainConfig:
    """Mnih et al. 2015 as in fast DQN, table 5: Concurrent Training and Synchronized Execution of 8 samplers.

    Epsilon falls over a million agent steps; 30 games are played every 250,000.
    Larger batches: learning rates 7.5e-4 for 512, 15e-4 for 1,024 (Stooke and Abbeel 2018, section 5.4).
    """
    return TrainConfig(
        environment=EnvironmentConfig(game=game, life_loss_terminal=True),
        network=PUBLISHED_NETWORK,
        algorithm=DQNConfig(epsilon_end=0.1, epsilon_steps=1_000_000, steps_per_update=STEPS_PER_UPDATE),
        sampling=SamplingConfig(schedule="concurrent", simulators=8, groups=1),
        optimizer=OptimizerConfig(
            batch_size=BATCH_SIZE, optimizer="rmsprop-centered", learning_rate=2.5e-4, rmsprop_decay=0.95,
            # The papers' 0.01 belongs to gradients summed over the batch; these are means.
            rmsprop_epsilon=0.01 / BATCH_SIZE**2, rmsprop_epsilon_inside=True,
        ),
        exchange=ALONE,
        evaluation=EvaluationConfig(eval_every_updates=250_000 // STEPS_PER_UPDATE, eval_games=30, eval_epsilon=0.05),
    )  # fmt: skip


def categorical_dqn(game: str, machine: Machine) -> TrainConfig:
    """Bellemare et al. 2017: 51 atoms in +-10, Adam with epsilon 0.01 over the batch size L; evaluated with 0.001.

    Larger batches: learning rate 4.2e-4 from 256 on, Adam's epsilon 0.01 / L (Stooke and Abbeel 2018, section 5.4).
    """
    return dqn(game, machine).changed(
        algorithm={"atoms": 51, "epsilon_end": 0.01},
        optimizer=OptimizerConfig(batch_size=BATCH_SIZE, learning_rate=2.5e-4, adam_epsilon=0.01 / BATCH_SIZE),
        evaluation={"eval_epsilon": 0.001},
    )


def rainbow(game: str, machine: Machine) -> TrainConfig:
    """Hessel et al. 2018, table 1, with epsilon-greedy exploration in place of noisy layers.

    Its target period is 32,000 frames, it begins after 80,000, epsilon falls over 250,000 and the importance exponent
    rises over 200 million. Gradients are clipped to norm 10 (Wang et al. 2016). The schedule is `standard`: with 4
    simulators priorities are set after each minibatch, and actions are those of the newest parameters, where
    `concurrent` holds both back for a target period. Larger batches: Adam's epsilon 0.005 / L, the same learning rate
    (Stooke and Abbeel 2018, section 5.4).
    """
    return categorical_dqn(game, machine).changed(
        algorithm=DQNConfig(
            n_step=3, double=True, dueling=True, atoms=51, target_period=8_000, epsilon_end=0.01, epsilon_steps=62_500
        ),
        optimizer=OptimizerConfig(
            batch_size=BATCH_SIZE, learning_rate=6.25e-5, adam_epsilon=1.5e-4, clip_global_norm=10.0
        ),
        sampling={"schedule": "standard", "simulators": STEPS_PER_UPDATE},
        replay=ReplayConfig(
            replay_minimum=20_000, priority_exponent=0.5, importance_exponent=0.4, importance_exponent_end=1.0,
            importance_agent_steps=RAINBOW_AGENT_STEPS,
        ),
    )  # fmt: skip


def apex_dqn(game: str, machine: Machine) -> TrainConfig:
    """Horgan et al. 2018, section 4.1 and appendix C, with 8 actors of 16 simulators in place of 360 of one.

    Double, dueling, 3 steps; centered RMSProp; batches of 512; the target network every 2,500 updates; 2 million
    transitions, priority exponent 0.6, importance exponent 0.4; epsilon_i = 0.4^(1 + 7 i / (N - 1)).
    """
    return TrainConfig(
        environment=EnvironmentConfig(game=game, life_loss_terminal=True, episode_frames=50_000),
        network=PUBLISHED_NETWORK,
        algorithm=DQNConfig(
            n_step=3, double=True, dueling=True, loss="squared",
            epsilon_start=1.0, epsilon_end=0.4, epsilon_steps=0, epsilon_ladder=7.0,
        ),
        sampling=SamplingConfig(schedule="asynchronous", simulators=16, groups=1),
        replay=ReplayConfig(
            replay_capacity=2_000_000, replay_minimum=50_000, priority_exponent=0.6, importance_exponent=0.4,
            importance_exponent_end=0.4,
        ),
        apex=ApexConfig(actors=8, replay_shards=1),
        optimizer=OptimizerConfig(
            batch_size=512, optimizer="rmsprop-centered", learning_rate=2.5e-4 / 4, rmsprop_decay=0.95,
            rmsprop_epsilon=1.5e-7, rmsprop_epsilon_inside=True, clip_global_norm=40.0,
        ),
        exchange=ALONE,
        evaluation=EvaluationConfig(eval_games=30, eval_epsilon=0.00164),  # as in figure 7
    )  # fmt: skip


def laptop_apex(game: str, machine: Machine) -> TrainConfig:
    """The small network and a small replay; one core learns, the others act."""
    config = apex_dqn(game, machine).changed(
        network=laptop_network(machine),
        replay={"replay_capacity": 200_000, "replay_minimum": 10_000},
        sampling={"simulators": 32},
        apex={"actors": apex_actors(machine), "target_every_updates": 300},
        optimizer=OptimizerConfig(batch_size=128, learning_rate=2.5e-4, adam_epsilon=1e-5, clip_global_norm=10.0),
        run=RunConfig(minutes=10.0),
    )
    return config.changed(**_laptop_apex_of_pong(machine)) if rom_name(game) == "pong" else config


def _laptop_apex_of_pong(machine: Machine) -> dict[str, dict[str, Any]]:
    """What differs for Pong, chosen on seeds from 101 on: docs/results/learning-tried.md, 'Ape-X DQN on Pong'.

    With few cores, the learner would draw each transition twice; it leaves a part of its core to a second actor.
    """
    apex = {"actors": min(2, machine.cores), "samples_per_insert": 1.0} if machine.cores < 4 else {}
    return {
        "algorithm": {"n_step": 5, "epsilon_steps": 200_000}, "optimizer": {"learning_rate": 5e-4}, "apex": apex,
    }  # fmt: skip


def smoke_apex(game: str, machine: Machine) -> TrainConfig:
    """Catch with a tiny network, in seconds."""
    return apex_dqn(game, machine).changed(
        network=SMOKE_NETWORK,
        sampling={"simulators": 4},
        replay={"replay_capacity": 20_000, "replay_minimum": 1_000},
        apex={"actors": 2, "prefetch": 4, "target_every_updates": 100},
        optimizer=OptimizerConfig(batch_size=32, learning_rate=1e-3, clip_global_norm=10.0),
        evaluation=EvaluationConfig(eval_every_updates=500, eval_games=20),
        run=SMOKE_RUN,
    )


def _presets(default: Preset, stooke_optimizer: dict[str, Any], **updates: int) -> dict[str, Preset]:
    small, published = laptop(default, **updates), stooke_q_learning(default, stooke_optimizer)
    own = {"laptop": small, "smoke": smoke(default), "classic-control": classic_control(default)}
    return {"default": default, **own, "stooke": published}


LASAGNE_RMSPROP = {"optimizer": "rmsprop", "rmsprop_epsilon": 1e-6}  # not centered, epsilon inside the root
# A target of one step narrows its distribution by the discount alone, once a period: Pong was learned with short
# periods and more, smaller updates (docs/results/learning-older.md).
CATEGORICAL_UPDATES = {"target_period": 960, "steps_per_update": 16, "batch_size": 64}
ALGORITHM = Algorithm(
    settings=DQNConfig,
    loss=loss,
    targets=AheadTargets(targets, target_shape, lambda config: config.double),
    draw=draw,
    names={
        "dqn": Name("DQN", _presets(dqn, LASAGNE_RMSPROP),
            about="DQN: Q-learning from a replay; double, dueling, and n-step are options (Mnih et al. 2015)."),
        "categorical-dqn": Name("Categorical DQN", _presets(categorical_dqn, {}, **CATEGORICAL_UPDATES),
            about="Categorical DQN, or C51: DQN that learns distributions of returns (Bellemare et al. 2017)."),
        "rainbow": Name("epsilon-Rainbow", _presets(rainbow, {"adam_epsilon": 0.005 / BATCH_SIZE}),
            about="epsilon-Rainbow: C51 with double, dueling, n-step, and priorities, without noisy layers "
            "(Hessel et al. 2018)."),
        "apex-dqn": Name("Ape-X DQN", {"default": apex_dqn, "laptop": laptop_apex, "smoke": smoke_apex},
            about="Ape-X DQN: DQN with actors, replay shards, and a learner in ranks of their own "
            "(Horgan et al. 2018)."),
    },
)  # fmt: skip
