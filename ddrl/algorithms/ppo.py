"""PPO with the clipped objective (Schulman et al. 2017; Stooke and Abbeel 2018, section 3.1).

It acts for a rollout of --unroll-length steps of all simulators, takes generalized advantages, and learns from the
rollout --epochs times, in shuffled minibatches. APPO is PPO in several workers that update a central store; HTS-PPO
acts and learns at the same time (Liu et al. 2020).
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

from ddrl import checks
from ddrl.algorithms.actor_critic import ActorCriticConfig, actor_critic_loss, double_buffered, laptop, smoke
from ddrl.algorithms.parts import (
    ALONE,
    PUBLISHED_NETWORK,
    SMOKE_NETWORK,
    STOOKE_AGENT_STEPS,
    STOOKE_RUN,
    central_store,
    stooke_environment,
)
from ddrl.algorithms.record import Algorithm, Name, Preset
from ddrl.config import (
    EnvironmentConfig,
    EvaluationConfig,
    FromRollouts,
    NetworkConfig,
    OptimizerConfig,
    RunConfig,
    SamplingConfig,
    TrainConfig,
)
from ddrl.lazy import tf
from ddrl.networks.network import Network
from ddrl.ops import distributions, policy_gradient
from ddrl.rom_names import of_game
from ddrl.types import LossContext, LossOutput, Machine, Transitions

AGENT_STEPS = 10_000_000  # Schulman et al. 2017, table 6: 40 million frames
MUJOCO_AGENT_STEPS = 1_000_000  # Schulman et al. 2017, section 6.1
HTS_AGENT_STEPS = 20_000_000  # Liu et al. 2020, section 5
ZOO_OF_HALF_CHEETAH: dict[str, dict[str, Any]] = {  # RL Baselines3 Zoo, hyperparams/ppo.yml, HalfCheetah-v4
    "network": {"hidden_layers": (256, 256), "activation": "relu", "initial_log_deviation": -2.0},
    "algorithm": {
        "unroll_length": 512, "epochs": 20, "discount": 0.98, "gae_lambda": 0.92, "clip_range": 0.1,
        "value_clip_range": 0.0, "entropy_cost": 0.000401762, "value_cost": 0.58096,
    },
    "optimizer": {"learning_rate": 2.0633e-5, "learning_rate_schedule": "constant", "clip_global_norm": 0.8},
}  # fmt: skip

# Where PPO's laptop preset differs for a game, as BA3C's does for the same one: docs/results/learning-tried.md, 'PPO on
# Breakout and Pong: a higher rate'. On Pong, one of two seeds was far behind with these.
LAPTOP_BY_GAME: dict[str, dict[str, dict[str, Any]]] = {
    "breakout": {"algorithm": {"gae_lambda": 0.8}, "optimizer": {"learning_rate": 2e-3}}
}


@dataclasses.dataclass(frozen=True)
class PPOConfig(ActorCriticConfig):
    """Loss of PPO."""

    name: ClassVar[str] = "ppo"
    asynchronous_name: ClassVar[str] = "appo"

    unroll_length: int = 128
    """Agent steps before an advantage bootstraps from the value."""
    gae_lambda: float = 0.95
    """Lambda of generalized advantage estimation (Schulman et al. 2016)."""
    epochs: int = 4
    """Times that each step of a rollout is used. Minibatches have --batch-size data-points."""
    clip_range: float = 0.2
    """Clip the ratio pi/mu to 1 - x .. 1 + x."""
    clip_range_schedule: Literal["constant", "linear"] = "constant"
    """How the clip range changes. linear: to 0 over --learning-rate-agent-steps or --learning-rate-updates, like the
    learning rate."""
    normalize_advantages: bool = True
    """Normalize the advantages of each minibatch. Their mean is subtracted, then they are divided by their standard
    deviation."""
    value_clip_range: float = 0.0
    """Largest change of the value in a rollout (0: not clipped). It is counted from the value at the time of acting."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.between(self, 0.0, 1.0, "gae_lambda")
        checks.at_least(self, 1, "epochs")
        checks.above(self, 0.0, "clip_range", why="0 would stop every policy gradient")
        checks.at_least(self, 0.0, "value_clip_range")

    @property
    def learns_from(self) -> FromRollouts:
        """Shuffled minibatches of a rollout, `epochs` times."""
        return FromRollouts(self.unroll_length, self.gae_lambda, self.epochs, True, self.normalize_advantages)


def loss(network: Network, parameters: Any, batch: Transitions, config: PPOConfig, context: LossContext) -> LossOutput:
    """Clipped objective of PPO (Schulman et al. 2017, equations 7 and 9, as a loss to minimize).

    clipped surrogate + value_cost mean(w (R - V)^2) - entropy_cost mean(w H), means over all M rows.

    The denominator of the ratio is the log-probability recorded when acting. With `value_clip_range` c > 0 the
    square is the larger one of V and of V held within c of the value when acting (baselines' ppo2). Advantages are
    taken as they are: who makes the minibatch normalizes them, since the loss may see only a part of it.

    Args:
        network: (parameters, observations) -> PolicyValue, with its `action_space`.
        parameters: <float32>[N], or whatever else the network takes as its parameters.
        batch: tensors with the fields of Transitions, M rows.
        config: weights of the parts, ranges of the clips.
        context: `anneal` is what the clip's range and the entropy's cost may follow.

    Returns:
        LossOutput with the metrics of `actor_critic_loss` and of `clipped_surrogate_loss`.
    """
    policy, value = network(parameters, batch.observation)
    value.shape.assert_is_compatible_with(batch.return_.shape)
    log_probs = distributions.log_prob(network.action_space, policy, batch.action)
    clip_range = config.clip_range * context.anneal if config.clip_range_schedule == "linear" else config.clip_range
    policy_loss, metrics = policy_gradient.clipped_surrogate_loss(
        log_probs, batch.behaviour_log_prob, batch.advantage, batch.weight, clip_range
    )
    square_errors = _square_errors(value, batch, config.value_clip_range)
    entropies = distributions.entropy(network.action_space, policy)
    return actor_critic_loss(
        policy_loss, square_errors, entropies, batch.advantage, value, batch.weight, config, context, metrics
    )


def _square_errors(value: tf.Tensor, batch: Transitions, clip_range: float) -> tf.Tensor:
    squares = tf.square(batch.return_ - value)
    if not clip_range:
        return squares
    clipped = batch.value + tf.clip_by_value(value - batch.value, -clip_range, clip_range)
    return tf.maximum(squares, tf.square(batch.return_ - clipped))


def ppo(game: str, machine: Machine) -> TrainConfig:
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
            learning_rate_agent_steps=AGENT_STEPS, adam_epsilon=1e-5,
        ),
        exchange=ALONE,
    )  # fmt: skip


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
        exchange=central_store(machine, local_steps=1),
    )


def hts_ppo(game: str, machine: Machine) -> TrainConfig:
    """Liu et al. 2020, section 5, with the settings of Kostrikov's PPO.

    128 steps, 4 epochs of 4 minibatches, clip 0.1, which stays, for the value too; rate 2.5e-4, which falls to 0 over
    their 20 million agent steps; norm clipped to 0.5. His weight of 0.5 is on half squares of the value, hence 0.25.
    """
    optimizer = {"batch_size": 512, "learning_rate_agent_steps": HTS_AGENT_STEPS, "clip_global_norm": 0.5}
    others = {"value_cost": 0.25, "clip_range_schedule": "constant", "value_clip_range": 0.1, "epochs": 4}
    return double_buffered(ppo, optimizer, **others)(game, machine)


def stooke_ppo(game: str, machine: Machine) -> TrainConfig:
    """Stooke and Abbeel 2018, section 5.3: 8 simulators x 256 steps, 4 epochs of minibatches of 512, no normalized
    advantages.

    Rate 1e-3 and clip 0.2, which fall to 0: the paper says of APPO alone that it has no schedule.
    """
    return TrainConfig(
        environment=stooke_environment(game),
        network=NetworkConfig(network="a3c", compute_dtype="float32"),  # section 5.1
        algorithm=PPOConfig(
            unroll_length=256, entropy_cost=0.01, value_cost=1.0, gae_lambda=0.95, epochs=4, clip_range=0.2,
            clip_range_schedule="linear", normalize_advantages=False,
        ),
        sampling=SamplingConfig(schedule="synchronized", simulators=8, groups=2),
        optimizer=OptimizerConfig(
            batch_size=512, learning_rate=1e-3, learning_rate_schedule="linear",
            learning_rate_agent_steps=STOOKE_AGENT_STEPS, adam_epsilon=1e-5,
        ),
        exchange=ALONE,
        run=STOOKE_RUN,
    )  # fmt: skip


def stooke_appo(game: str, machine: Machine) -> TrainConfig:
    """Section 5.3: PPO in each worker with a quarter of its rate, a clipped norm and no schedule; central parameters
    are read every 64 steps."""
    return stooke_ppo(game, machine).changed(
        algorithm={"clip_range_schedule": "constant"},
        sampling={"refresh_every_steps": 64},
        optimizer=OptimizerConfig(batch_size=512, learning_rate=1e-3 / 4, adam_epsilon=1e-5, clip_global_norm=0.5),
        exchange=central_store(machine, local_steps=1),
    )


def mujoco(game: str, machine: Machine) -> TrainConfig:
    """Continuous control, as in Schulman et al. 2017, table 3, and CleanRL: its ppo_continuous_action (Huang et al.
    2022, "The 37 implementation details of PPO").

    Both: one simulator x 2,048 steps, 10 epochs of minibatches of 64, Adam with 3e-4, gamma 0.99, lambda 0.95, clip
    0.2, two layers of 64 tanh neurons, no entropy bonus. CleanRL alone: observations and rewards normalized and clipped
    to +-10, the rate falls to 0 over a million agent steps, Adam's epsilon 1e-5, the norm clipped to 0.5, the value's
    step clipped to 0.2, and a weight of 0.5 on half squares of the value, hence 0.25.

    HalfCheetah, with which these reach 1,900 to 3,900 in a million agent steps, has those that the RL Baselines3 Zoo
    found for it instead: smaller steps, used more often, and larger layers, whose actions begin with less noise.
    """
    config = TrainConfig(
        environment=EnvironmentConfig(game=game),
        network=dataclasses.replace(SMOKE_NETWORK, normalize_observations=True),
        algorithm=PPOConfig(
            unroll_length=2_048, entropy_cost=0.0, value_cost=0.25, epochs=10, clip_range=0.2, value_clip_range=0.2,
            reward_clip=0.0, normalize_rewards=True,
        ),
        sampling=SamplingConfig(schedule="synchronized", simulators=1, groups=1),
        optimizer=OptimizerConfig(
            batch_size=64, learning_rate=3e-4, learning_rate_schedule="linear",
            learning_rate_agent_steps=MUJOCO_AGENT_STEPS, adam_epsilon=1e-5, clip_global_norm=0.5,
        ),
        exchange=ALONE,
        evaluation=EvaluationConfig(eval_every_updates=16_000, eval_games=10),  # 102,400 or 51,200 agent steps
        run=RunConfig(minutes=0.0, agent_steps=MUJOCO_AGENT_STEPS),
    )  # fmt: skip
    return config.changed(**ZOO_OF_HALF_CHEETAH) if game.startswith("HalfCheetah-") else config


def _laptop(preset: Preset, rate: float = 1e-3) -> Preset:
    """Settings of OpenAI Baselines, with the rate that Stooke and Abbeel 2018 have for such a small network.

    8 simulators x 128 steps, 4 epochs of minibatches of 256, clip 0.1. Baselines' weight of 0.5 is on half squares of
    the value; here it is on whole ones. Its rate of 2.5e-4 is for a larger network: with the small one, a run of
    Breakout had half the score after 0.75 million agent steps. Rate and clip stay, as a budget of minutes ends long
    before the papers' schedules do.
    """
    return lambda game, machine: laptop(preset)(game, machine).changed(
        algorithm=PPOConfig(unroll_length=128, entropy_cost=0.01, value_cost=0.5, clip_range=0.1, epochs=4),
        sampling={"simulators": 8},
        optimizer=OptimizerConfig(batch_size=256, learning_rate=rate, adam_epsilon=1e-5, clip_global_norm=0.5),
    )


def laptop_ppo(game: str, machine: Machine) -> TrainConfig:
    """OpenAI Baselines' settings with a higher rate; Breakout has its own."""
    return _laptop(ppo)(game, machine).changed(**(of_game(LAPTOP_BY_GAME, game) or {}))


def _presets(default: Preset, rate: float = 1e-3, **published: Preset) -> dict[str, Preset]:
    small = _laptop(default, rate)
    return {"default": default, "laptop": small, "smoke": smoke(small, 32, unroll_length=16), **published}


ALGORITHM = Algorithm(
    settings=PPOConfig,
    loss=loss,
    names={
        "ppo": Name("PPO", _presets(ppo, stooke=stooke_ppo, mujoco=mujoco) | {"laptop": laptop_ppo}),
        "appo": Name(
            "APPO",
            _presets(appo, rate=1e-3 / 4, stooke=stooke_appo),
            about="APPO: PPO in each of several workers, which update a central store (Stooke and Abbeel 2018).",
        ),
        "hts-ppo": Name(
            "HTS-PPO",
            _presets(hts_ppo),
            about="HTS-PPO: PPO that acts and learns at the same time, exactly one rollout apart (Liu et al. 2020).",
        ),
    },
)
