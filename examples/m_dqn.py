"""Munchausen DQN as a plugin (Vieillard et al. 2020, "Munchausen Reinforcement Learning"): a variant of DQN.

    ddrl train m-dqn --plugin examples/m_dqn.py --preset smoke
    ddrl study variants --plugin examples/m_dqn.py --quick --variants "DQN:dqn" "M-DQN:m-dqn"

The reward of an action grows by a part of its log-probability under the softmax of the target network's values, and
the next state has the value of that policy with its entropy. Exploration, replay, and presets are those of DQN.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from ddrl import checks, register_algorithm
from ddrl.algorithms import Name, dqn
from ddrl.lazy import tf
from ddrl.ops import q_learning
from ddrl.types import LossOutput


@dataclasses.dataclass(frozen=True)
class MDQNConfig(dqn.DQNConfig):
    """Loss of Munchausen DQN."""

    name: ClassVar[str] = "m-dqn"

    munchausen: float = 0.9
    """alpha: how much of the log-probability is added to the reward."""
    temperature: float = 0.03
    """tau: of the policy softmax(Q / tau)."""
    log_policy_min: float = -1.0
    """l_0: the least that tau log pi of an action counts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.unused(self, "m-dqn has targets of its own, of expected returns; leave it out", "atoms", "double")
        checks.between(self, 0.0, 1.0, "munchausen")
        checks.above(self, 0.0, "temperature")
        if self.log_policy_min > 0.0:
            checks.refuse(self, "log_policy_min", "must be at most 0, as logarithms of probabilities are")


def targets(network: Any, fixed: Any, batch: Any, settings: MDQNConfig) -> Any:
    """r + alpha [tau log pi(a|s)] + discount sum over a' of pi(a'|s') (Q(s', a') - tau log pi(a'|s')), <float32>[M].

    Q and pi are those of the target network `fixed`; [x] is x held within l_0 and 0 (the paper, section 3). An illegal
    action has the value -1e9, and so the probability 0.
    """
    tau = settings.temperature
    values, next_values = (network.apply(fixed, seen).policy for seen in (batch.observation, batch.next_observation))
    log_policy = tau * q_learning.of_action(tf.nn.log_softmax(values / tau), batch.action)
    bonus = settings.munchausen * tf.clip_by_value(log_policy, settings.log_policy_min, 0.0)
    next_log_policy = tf.nn.log_softmax(next_values / tau)
    next_value = tf.reduce_sum(tf.exp(next_log_policy) * (next_values - tau * next_log_policy), axis=1)
    return tf.stop_gradient(batch.reward + bonus + batch.discount * next_value)


def loss(network: Any, parameters: Any, batch: Any, settings: MDQNConfig, context: Any) -> LossOutput:
    """DQN's loss with these targets."""
    target = targets(network, network.prepare(context.target), batch, settings)
    return dqn.loss(network, parameters, batch._replace(target=target), settings, context)


def preset(name: str) -> Any:
    """DQN's preset of that name."""

    def settings(game: str, machine: Any) -> Any:
        config = dqn.ALGORITHM.names["dqn"].presets[name](game, machine)
        return config.changed(algorithm=MDQNConfig(**dataclasses.asdict(config.algorithm)))

    return settings


presets = {name: preset(name) for name in ("default", "laptop", "smoke")}
register_algorithm(
    dataclasses.replace(
        dqn.ALGORITHM,
        settings=MDQNConfig,
        loss=loss,
        targets=None,
        context=frozenset({"target"}),
        names={"m-dqn": Name("M-DQN", presets)},
    )
)
