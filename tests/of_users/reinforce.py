"""A user's plugin in a file: an algorithm with a loss and settings of its own, networks and an exchange.

It writes down which programs import it where PLUGIN_MARKS names a directory, and fails on the rank of PLUGIN_FAILS.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any, ClassVar

from ddrl import checks
from ddrl.algorithms.record import Algorithm, Name
from ddrl.config import (
    AlgorithmConfig,
    EvaluationConfig,
    ExchangeConfig,
    FromRollouts,
    NetworkConfig,
    OptimizerConfig,
    RunConfig,
    SamplingConfig,
    TrainConfig,
)
from ddrl.config.settings import EnvironmentConfig
from ddrl.exchange.allreduce import Allreduce
from ddrl.lazy import tf
from ddrl.ops import distributions
from ddrl.plugins import register_algorithm, register_exchange, register_network
from ddrl.types import LossOutput

if "PLUGIN_MARKS" in os.environ:
    program = getattr(sys.modules["__main__"].__spec__, "name", None) or Path(sys.argv[0]).name
    Path(os.environ["PLUGIN_MARKS"], f"{program}-{os.getpid()}").touch()
if os.environ.get("PLUGIN_FAILS", "none") == os.environ.get("OMPI_COMM_WORLD_RANK"):
    raise OSError("no such device")


@dataclasses.dataclass(frozen=True)
class ReinforceConfig(AlgorithmConfig):
    """Loss of REINFORCE with a baseline."""

    name: ClassVar[str] = "reinforce"

    steps: int = 10
    """Agent steps to which a return reaches."""
    baseline_cost: float = 0.5
    """Weight of the baseline's loss."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.above(self, 0.0, "baseline_cost")

    @property
    def learns_from(self) -> FromRollouts:
        """Rollouts with returns."""
        return FromRollouts(self.steps, gae_lambda=1.0)


def loss(network: Any, parameters: Any, batch: Any, config: ReinforceConfig, context: Any) -> LossOutput:
    """-A log pi(a|s) + baseline_cost (R - V)^2."""
    policy, value = network(parameters, batch.observation)
    log_probs = distributions.log_prob(network.action_space, policy, batch.action)
    baseline_loss = tf.reduce_mean(batch.weight * tf.square(batch.return_ - value))
    policy_loss = -tf.reduce_mean(batch.weight * batch.advantage * log_probs)
    return LossOutput(policy_loss + config.baseline_cost * baseline_loss, {"baseline_loss": baseline_loss})


def smoke(game: str, machine: Any) -> TrainConfig:
    """Seconds on Catch."""
    return TrainConfig(
        environment=EnvironmentConfig(game=game),
        network=NetworkConfig(network="mlp", compute_dtype="float32"),
        algorithm=ReinforceConfig(),
        sampling=SamplingConfig(schedule="synchronized", simulators=8, groups=1),
        optimizer=OptimizerConfig(batch_size=0, learning_rate=5e-3),
        exchange=ExchangeConfig(workers=1, parameter_servers=0),
        evaluation=EvaluationConfig(eval_every_updates=200, eval_games=20),
        run=RunConfig(minutes=0.5, log_every_seconds=1.0, video=False),
    )


def dense(spaces: Any, settings: NetworkConfig) -> Any:
    """A Keras model of dense layers."""
    import keras

    x = inputs = spaces.inputs()
    x = keras.layers.Flatten()(x)
    for neurons in settings.hidden_layers or (32,):
        x = keras.layers.Dense(neurons, activation="tanh")(x)
    return keras.Model(inputs, spaces.heads(x))


def wide(spaces: Any, settings: NetworkConfig) -> Any:
    """A model with a policy of one action too many."""
    import keras

    inputs = spaces.inputs()
    x = keras.layers.Flatten()(inputs)
    layers = {name: keras.layers.Dense(width + (name == "policy")) for name, width in spaces.outputs.items()}
    return keras.Model(inputs, {name: layer(x) for name, layer in layers.items()})


class Circle(Allreduce):
    """An all-reduce of another name."""

    name = "circle"
    summary = "as the all-reduce"


register_algorithm(
    Algorithm(
        settings=ReinforceConfig, loss=loss, names={"reinforce": Name("REINFORCE", {"default": smoke, "smoke": smoke})}
    )
)
register_network("of-user", dense)
register_network("too-wide", wide)
register_exchange(Circle())
