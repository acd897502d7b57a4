"""`ddrl bench roofline`: what emulation, inference and gradient of a configuration allow by themselves."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import tyro

from cluster.topology import usable_cores
from ddrl import checks, plugin_modules
from ddrl.algorithms import preset
from ddrl.bench.benchmark import Benchmark, BenchmarkArguments
from ddrl.bench.phases import group_size, has_targets, inference_batch, on_cores, replicas
from ddrl.config import TrainConfig
from ddrl.config.algorithm import FromRollouts
from ddrl.errors import UsageError
from ddrl.placement.resources import this_machine


def measure_roofline(config: TrainConfig, seconds: float, cores: int) -> dict[str, Any]:
    """Measures the parts one after the other, each on all cores at once.

    There is one process per core, bound to it, with one intra-op thread each, as workers run. The batches have the
    configuration's sizes: observations of one group of simulators, data-points of one gradient.

    Args:
        config: its settings of environment, network, sampling and optimizer matter.
        seconds: time for each part.
        cores: number of processes, at most the number of cores that this process may use.

    Returns:
        JSON types: the rates of the parts (in UNITS), `roofline` (see `combine`), and the settings that matter.

    Raises:
        UsageError: there are not so many cores, the settings cannot run, they are those of Ape-X, or a measuring
            process died or did not answer in time.
    """
    if config.apex.actors:
        why = "its actors and its learner do not wait for each other, so no roofline joins their rates"
        raise UsageError(f"{config.title}: {why}; use ddrl bench actors and ddrl bench learner")
    available = usable_cores()
    if not 1 <= cores <= len(available):
        raise UsageError(f"--cores {cores}: choose 1 to {len(available)}, as many as this process may use")
    with on_cores(config, "parts", [[core] for core in available[:cores]], seconds) as children:
        dtype = children.hear()[0]["dtype"]  # waits for all, so that a phase begins on all cores at once
        rates = {phase: _rate(children.ask({"phase": phase, "seconds": seconds})) for phase in times(config)}
    return {
        **rates,
        "roofline": combine(rates, times(config), cores),
        "uses": uses(config),
        "cores": cores,
        "simulators": group_size(config),
        "inference_batch": inference_batch(config),
        "gradient_batch": config.batch_size,
        "network": config.network.network,
        "dtype": dtype,
        "game": config.environment.game,
        "protocol": config.environment.protocol,
    }


def times(config: TrainConfig) -> dict[str, float]:
    """How often each part of a configuration is done for one agent step, in the units of its rate.

    An update of all parameters counts once, however many servers share it; each replica makes its own update.
    """
    used = uses(config)
    target = {"target": used} if has_targets(config) else {}
    updates = {"update": replicas(config) / config.agent_steps_per_update, "layout": 1.0 / _steps_of_a_version(config)}
    return {"env": 1.0, "inference": 1.0, "gradient": used, **target, **updates}


def _steps_of_a_version(config: TrainConfig) -> float:
    """Agent steps of a worker with one version of the parameters, whose weights are laid out for acting once.

    They are those of a rollout, of a period with a replay, or else of a gradient.
    """
    from ddrl.builders.replay import period_steps

    if isinstance(config.algorithm.learns_from, FromRollouts):
        return config.rollout_length * config.rows
    if config.has_replay:
        return period_steps(config)
    return config.batch_size / uses(config)


def combine(rates: Mapping[str, float], times: Mapping[str, float], cores: int) -> float:
    """Agent steps/s of cores that each do all parts in turn: cores / sum over the parts of (times / rate).

    Args:
        rates: part -> units/s of one core.
        times: part -> units for one agent step.
        cores: the number of cores.
    """
    return cores / sum(each / rates[phase] for phase, each in times.items())


def uses(config: TrainConfig) -> float:
    """Gradients that each data-point takes part in: PPO's epochs; with a replay, batch size / steps per update."""
    if config.has_replay:
        return config.batch_size / config.replay_data.steps_per_update
    return getattr(config.algorithm, "epochs", 1)


def _rate(answers: Sequence[dict[str, float]]) -> float:
    """The mean rate of the cores."""
    return statistics.mean(answer["rate"] for answer in answers)


# the command ----------------------------------------------------------------------------------------------------------

UNITS = {
    "env": "agent steps/s per core",
    "inference": "agent steps/s per core",
    "gradient": "data-points/s per core",
    "target": "transitions/s per core",
    "update": "updates of all parameters/s per core",
    "layout": "versions/s per core, weights laid out for acting",
    "roofline": "agent steps/s, all cores",
    "uses": "gradients per data-point",
}


@dataclasses.dataclass(frozen=True)
class RooflineArguments(BenchmarkArguments):
    """Measure the parts of a configuration alone, and what they allow together: agent steps per second."""

    preset: Literal["default", "laptop", "ba3c-paper", "smoke"] = "laptop"
    """Settings to measure."""
    game: str = ""
    """Game (default: the preset's)."""
    network: str = ""
    """Network, as ddrl train takes it (default: the preset's)."""
    compute_dtype: Literal["", "float32", "bfloat16"] = ""
    """Type of activations and kernels (default: the preset's)."""
    batch_size: int = 0
    """Data-points per gradient (0: the preset's)."""
    seconds: float = 3.0
    """Time for each of the parts."""
    cores: int = 0
    """Cores to measure with at once (0: all)."""
    plugin: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """A plugin that registers the network or the game. May be given several times."""

    def __post_init__(self) -> None:
        checks.above(self, 0.0, "seconds")
        checks.at_least(self, 0, "cores", "batch_size")


def config_of(arguments: RooflineArguments) -> TrainConfig:
    """The TrainConfig to measure."""
    given = {name: value for name, value in arguments.settings().items() if value}
    network = {name: given[name] for name in ("network", "compute_dtype") if name in given}
    optimizer = {"batch_size": arguments.batch_size} if arguments.batch_size else {}
    config = preset(arguments.preset, arguments.game or None, this_machine())
    return config.changed(network=network, optimizer=optimizer, run={"plugins": plugin_modules.loaded()})


main = Benchmark(
    name="roofline",
    arguments=RooflineArguments,
    measure=lambda arguments: measure_roofline(
        config_of(arguments), arguments.seconds, arguments.cores or this_machine().cores
    ),
    title="roofline",
    notes=UNITS,
)
