"""A2C: batched advantage actor-critic (Mnih et al. 2016; Stooke and Abbeel 2018, section 3.1).

It acts for --unroll-length steps of all simulators and takes one gradient of them all. A3C is A2C in several workers
that update a central store; HTS-A2C acts and learns at the same time (Liu et al. 2020).
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from ddrl import checks
from ddrl.algorithms.actor_critic import ActorCriticConfig, actor_critic_loss, double_buffered, laptop, smoke
from ddrl.algorithms.parts import ALONE, PUBLISHED_NETWORK, STOOKE_RUN, central_store, stooke_environment
from ddrl.algorithms.record import Algorithm, Name, Preset
from ddrl.config import EnvironmentConfig, FromRollouts, NetworkConfig, OptimizerConfig, SamplingConfig, TrainConfig
from ddrl.lazy import tf
from ddrl.networks.network import Network
from ddrl.ops import distributions, policy_gradient
from ddrl.types import LossContext, LossOutput, Machine, Transitions


@dataclasses.dataclass(frozen=True)
class A2CConfig(ActorCriticConfig):
    """Loss of A2C."""

    name: ClassVar[str] = "a2c"
    asynchronous_name: ClassVar[str] = "a3c"

    gae_lambda: float = 1.0
    """Lambda of generalized advantage estimation (1: n-step returns)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.between(self, 0.0, 1.0, "gae_lambda")

    @property
    def learns_from(self) -> FromRollouts:
        """So many steps of all simulators, the oldest first."""
        return FromRollouts(self.unroll_length, self.gae_lambda)


def loss(network: Network, parameters: Any, batch: Transitions, config: A2CConfig, context: LossContext) -> LossOutput:
    """Advantage actor-critic loss with the advantages of the policy that acted (Mnih et al. 2016, section 4.3).

    -mean(w A log pi(a|s)) + value_cost mean(w (R - V)^2) - entropy_cost mean(w H), means over all M rows.

    Where the parameters are those that acted, A = R - V. There is no importance ratio: HTS-RL takes this gradient
    at the parameters that acted, and A3C's lag is left uncorrected, as in the paper.

    Args:
        network: (parameters, observations) -> PolicyValue, with its `action_space`.
        parameters: <float32>[N], or whatever else the network takes as its parameters.
        batch: tensors with the fields of Transitions, M rows.
        config: weights of the parts.
        context: `anneal` is what the cost of the entropy may follow.

    Returns:
        LossOutput with the metrics of `actor_critic_loss`.
    """
    policy, value = network(parameters, batch.observation)
    log_probs = distributions.log_prob(network.action_space, policy, batch.action)
    policy_loss = policy_gradient.policy_gradient_loss(log_probs, batch.advantage, batch.weight)
    square_errors = tf.square(batch.return_ - value)
    entropies = distributions.entropy(network.action_space, policy)
    return actor_critic_loss(
        policy_loss, square_errors, entropies, batch.advantage, value, batch.weight, config, context, {}
    )


def a2c(game: str, machine: Machine) -> TrainConfig:
    """16 simulators x 5 steps (Mnih et al. 2016, with one gradient for all simulators), with settings of Kostrikov's
    A2C.

    His RMSProp: rate 7e-4, which stays, decay 0.99, epsilon 1e-5 outside the root; norm clipped to 0.5, entropy 0.01.
    The value's weight of 0.25 is that of `--preset stooke`; his is 0.5, as `hts-a2c` has it.
    """
    return TrainConfig(
        environment=EnvironmentConfig(game=game, life_loss_terminal=True),
        network=PUBLISHED_NETWORK,
        algorithm=A2CConfig(unroll_length=5, entropy_cost=0.01, value_cost=0.25),
        sampling=SamplingConfig(schedule="synchronized", simulators=16, groups=1),
        optimizer=OptimizerConfig(
            batch_size=0, optimizer="rmsprop", learning_rate=7e-4, rmsprop_decay=0.99, rmsprop_epsilon=1e-5,
            clip_global_norm=0.5,
        ),
        exchange=ALONE,
    )  # fmt: skip


def a3c(game: str, machine: Machine) -> TrainConfig:
    """A 16-simulator A2C in each of several workers, which update a central store (Stooke and Abbeel, section 5.3)."""
    return a2c(game, machine).changed(exchange=central_store(machine))


def hts_a2c(game: str, machine: Machine) -> TrainConfig:
    """Liu et al. 2020, section 5, with the settings of Kostrikov's A2C: `a2c`'s with a weight of the value of 0.5."""
    return double_buffered(a2c, {}, value_cost=0.5)(game, machine)


def stooke_a2c(game: str, machine: Machine) -> TrainConfig:
    """Stooke and Abbeel 2018, section 5.3: 16 simulators x 5 steps; Lasagne's RMSProp, decay 0.9, epsilon 1e-6 inside
    the root.

    For more simulators: `--learning-rate-scaling sqrt --learning-rate-batch 80`.
    """
    return TrainConfig(
        environment=stooke_environment(game),
        network=NetworkConfig(network="a3c", compute_dtype="float32"),  # section 5.1
        algorithm=A2CConfig(unroll_length=5, entropy_cost=0.01, value_cost=0.25),
        sampling=SamplingConfig(schedule="synchronized", simulators=16, groups=2),  # two groups by turns: section 4.1
        optimizer=OptimizerConfig(
            batch_size=0, optimizer="rmsprop", learning_rate=7e-4, rmsprop_decay=0.9, rmsprop_epsilon=1e-6,
            rmsprop_epsilon_inside=True, clip_global_norm=0.5,
        ),
        exchange=ALONE,
        run=STOOKE_RUN,
    )  # fmt: skip


def stooke_a3c(game: str, machine: Machine) -> TrainConfig:
    """Section 5.3: a 16-simulator A2C in each worker, which update a central store of 3 chunks."""
    return stooke_a2c(game, machine).changed(exchange=central_store(machine))


def _presets(default: Preset, **published: Preset) -> dict[str, Preset]:
    small = laptop(default)
    return {"default": default, "laptop": small, "smoke": smoke(small, unroll_length=10, value_cost=0.25), **published}


ALGORITHM = Algorithm(
    settings=A2CConfig,
    loss=loss,
    names={
        "a2c": Name("A2C", _presets(a2c, stooke=stooke_a2c)),
        "a3c": Name(
            "A3C",
            _presets(a3c, stooke=stooke_a3c),
            about="A3C: A2C in each of several workers, which update a central store (Stooke and Abbeel 2018).",
        ),
        "hts-a2c": Name(
            "HTS-A2C",
            _presets(hts_a2c),
            about="HTS-A2C: A2C that acts and learns at the same time, exactly one rollout apart (Liu et al. 2020).",
        ),
    },
)
