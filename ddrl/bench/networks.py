"""`ddrl bench networks`: gradient and inference of several networks on one core, by turns."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from typing import Any

from cluster.topology import usable_cores
from ddrl import checks
from ddrl.bench.benchmark import Benchmark, TakesTrainOptions
from ddrl.bench.phases import on_cores
from ddrl.config import TrainConfig
from ddrl.options.game_settings import tried_game
from ddrl.options.train_options import parse
from ddrl.placement.resources import this_machine

PHASES = ("gradient", "inference")
DEFAULTS = ("a2c", "--batch-size", "256", "--simulators", "64", "--groups", "1", "--unroll-length", "4")


@dataclasses.dataclass(frozen=True)
class NetworksArguments(TakesTrainOptions):
    """Measure networks beside each other: a gradient of 256 and inference of 64 on Atari's images, on one core, one
    network after the other and again, as a machine's speed drifts.

    Further options are those of `ddrl train`, such as --game, --compute-dtype and --plugin; they come after A2C's.
    """

    networks: tuple[str, ...] = ("nature", "ddrl.bench.keras_nature:build")
    """Networks as --network takes them; rates are also given relative to the first."""
    seconds: float = 2.0
    """Time for each part in each turn."""
    turns: int = 5
    """Turns; the median is reported."""

    def __post_init__(self) -> None:
        checks.above(self, 0.0, "seconds")
        checks.at_least(self, 1, "turns")
        if not self.networks:
            checks.refuse(self, "networks", "name one or more")


def measure(configs: dict[str, TrainConfig], seconds: float, turns: int) -> dict[str, Any]:
    """Measures data-points/s of gradients and observations/s of inference of each network.

    Also gives how many times as long as the first network each takes. All values are medians over the turns.

    Raises:
        UsageError: a network does not suit the game.
    """
    core = usable_cores()[:1]
    rates: dict[str, dict[str, list[float]]] = {name: {phase: [] for phase in PHASES} for name in configs}
    with contextlib.ExitStack() as stack:
        children = {name: stack.enter_context(on_cores(c, "parts", [core], seconds)) for name, c in configs.items()}
        for each in children.values():
            each.hear()
        for _ in range(turns):
            for name, each in children.items():
                for phase in PHASES:
                    rates[name][phase].append(each.ask({"phase": phase, "seconds": seconds})[0]["rate"])
    first = rates[next(iter(rates))]
    table = {}
    for name, of in rates.items():
        table[name] = {f"{phase}_per_s": statistics.median(of[phase]) for phase in PHASES}
        for phase in PHASES:
            ratios = [base / rate for base, rate in zip(first[phase], of[phase])]
            table[name][f"{phase}_time_over_first"] = statistics.median(ratios)
    return {"networks": table, "turns": turns}


def configs_of(arguments: NetworksArguments) -> dict[str, TrainConfig]:
    """Network -> settings of a run with it.

    Raises:
        UsageError: the settings are refused, or the game fails its trial.
    """
    config = parse([*DEFAULTS, *arguments.train_options], this_machine()).config
    tried_game(config.environment)
    return {name: config.changed(network={"network": name}) for name in arguments.networks}


main = Benchmark(
    name="networks",
    arguments=NetworksArguments,
    measure=lambda arguments: measure(configs_of(arguments), arguments.seconds, arguments.turns),
    title="networks",
)
