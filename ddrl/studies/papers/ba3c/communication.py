"""Speed by size of the network and number of parameter servers: section 2.5, figures 6 and 7."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence

from ddrl import checks
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.studies.curves import over, spread_text
from ddrl.studies.figures import Panel
from ddrl.studies.findings import extremes
from ddrl.studies.measures import Measure, count, mean, rate_per_second, ratio
from ddrl.studies.points import Group, Outcome, grouped, having
from ddrl.studies.settings import TimedSettings, base_config
from ddrl.studies.study import Labels, Report, Study
from ddrl.studies.tables import table
from ddrl.types import Machine
from ddrl.wording import counted

PAPER_WEIGHTS = {256: 538_119, 128: 332_295, 64: 229_383, 32: 177_927, 16: 152_199}
"""Neurons -> all weights of the paper's network: table 2."""
LEAST_WORKERS = 2  # one alone exchanges nothing
SHOWN = {"datapoints_per_s": "data-points/s", "least_exchange_ms": "time of an exchange (ms)"}
NOTES = (
    "the paper's weights: Adamski et al. 2018, table 2; its text describes figures 6 and 7 without numbers: fewer "
    "neurons and more servers were both faster, and 128 neurons learned as fast as 256. Data-points/s are those of "
    "all workers, simulators included; where simulators take most of the time, or where messages go through the "
    "memory of one machine, smaller messages gain little: see the time of the exchange itself, from sending a "
    "gradient to receiving the next parameters, for the worker that waits least for the others"
)


@dataclasses.dataclass(frozen=True)
class CommunicationSettings(TimedSettings):
    """Data-points/s of BA3C by the neurons of its fully connected layer, which holds most weights, and by the number of
    parameter servers that share them (Adamski et al. 2018, section 2.5, figures 6 and 7). Neurons vary with the first
    number of servers, servers with the first number of neurons."""

    neurons: tuple[int, ...] = (256, 128, 64, 32, 16)
    """Neurons of the fully connected layer; the others are compared with the first."""
    parameter_servers: tuple[int, ...] = (1, 2, 4)
    """Numbers of parameter servers; the first goes with all --neurons."""
    workers: int = 0
    """Workers of each point (0: one for each core, at least 2)."""
    batch_size: int = 32
    """Data-points of each worker's gradient; small gradients make many messages."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.workers == 1:
            checks.refuse(self, "workers", f"a single worker exchanges nothing; give {LEAST_WORKERS} or more")

    def measure(self, name: str) -> Measure:
        """The mean of one of SHOWN over a run, after its warm-up."""

        def of_run(run: Outcome) -> float | None:
            records = [
                record | {"least_exchange_ms": min(waits.values())} if (waits := record.get("exchange_ms_by_worker"))
                else record for record in run.records
            ]  # fmt: skip
            return rate_per_second(records, name, self.warm_up_seconds)

        return of_run

    def axes(self, machine: Machine) -> Iterator[Labels]:
        """Yields all neurons with the first number of servers, then the other servers with the first neurons."""
        neurons, servers = self.neurons, self.parameter_servers
        pairs = [(n, servers[0]) for n in neurons] + [(neurons[0], s) for s in servers[1:]]
        for game, (n, s), seed in itertools.product(self.games, pairs, self.seeds):
            yield {"game": game, "neurons": n, "servers": s, "seed": seed}

    def config(self, machine: Machine, labels: Labels) -> TrainConfig:
        workers = self.workers or max(LEAST_WORKERS, machine.cores)
        return base_config(self, "ba3c", labels["game"], machine).changed(
            network={"network": "ba3c", "fc_neurons": labels["neurons"]},
            optimizer={"batch_size": self.batch_size},
            exchange={"workers": workers, "parameter_servers": labels["servers"]},
            run=self.run,
        )

    def report(self, outcomes: Sequence[Outcome]) -> Report:
        """Figures 6 and 7: data-points/s by neurons, and by servers; below, what an exchange takes."""
        workers = dict.fromkeys(str(outcome.point.config.exchange.workers) for outcome in outcomes)
        speed, exchange = map(self.measure, SHOWN)
        short = [outcome.point.name for outcome in outcomes if speed(outcome) is None]
        why = f"too few updates between {self.warm_up_seconds:g} s and the end; give more --seconds"
        first = {"neurons": self.neurons[0], "servers": self.parameter_servers[0]}
        groups = grouped(outcomes, "game", "neurons", "servers")
        most = max(map(weights, groups), default=0)
        return Report(
            heading="Model size, parameter servers and speed",
            caption=f"data-points/s of {', '.join(workers)} workers of {self.batch_size} data-points per gradient, "
            f"after {self.warm_up_seconds:g} s; scores are not compared; {spread_text(outcomes)}",
            finding=extremes(groups, mean(speed), "rate in data-points/s"),
            tables=[
                table("Speed", groups, {
                    "game": "game", "neurons": "neurons", "servers": "servers", "runs": count,
                    "weights": lambda group: weights(group) or None,
                    "of most": lambda group: f"{weights(group) / most:.0%}" if weights(group) else None,
                    "the paper's weights": lambda group: PAPER_WEIGHTS.get(group["neurons"]),
                    # Each worker sends a gradient and gets parameters, of 4 bytes each.
                    "MB an update": lambda group: 8e-6 * weights(group) * group.config.exchange.workers or None,
                    "data-points/s": mean(speed),
                    "over the first": lambda group: ratio(
                        speed, group.runs, having(outcomes, game=group["game"], **first)
                    ),
                    "exchange (ms)": mean(exchange),
                })
            ],
            panels=[panel for game in grouped(outcomes, "game") for panel in self._panels(game, outcomes)],
            notes=[*([f"nothing measured: {', '.join(short)}: {why}"] if short else []), NOTES],
        )  # fmt: skip

    def _panels(self, game: Group, outcomes: Sequence[Outcome]) -> Iterator[Panel]:
        prefix = "" if len(game.runs) == len(outcomes) else f"{game['game']}, "
        axes = (("neurons", "neurons of the fully connected layer", "servers", self.parameter_servers[0]),
                ("servers", "parameter servers", "neurons", self.neurons[0]))  # fmt: skip
        for style, (name, y_label) in enumerate(SHOWN.items()):
            for axis, x_label, other, value in axes:
                same = sorted(grouped(having(game.runs, **{other: value}), axis), key=lambda group: group[axis])
                curve = over(same, axis, mean(self.measure(name)), style=style)
                title = prefix + counted(value, other.removesuffix("s"))
                yield Panel(title, x_label, y_label, [curve], log_x=True, zero=True)


def weights(group: Group) -> int:
    """Length of the parameter vector; 0 if the game cannot be tried here."""
    return _parameter_count(group.config)


@functools.cache
def _parameter_count(config: TrainConfig) -> int:
    from ddrl.algorithms import network_for
    from ddrl.options.game_settings import tried_game

    try:
        game = tried_game(config.environment)
        return network_for(config, game.observation_shape, game.observation_dtype, game.action_space).size
    except UsageError:
        return 0


COMMUNICATION = Study(
    name="communication",
    about="data-points/s by size of the network and parameter servers (BA3C, figures 6 and 7)",
    defaults=CommunicationSettings(),
    quick_changes={
        "preset": "laptop", "games": ("breakout",), "neurons": (64, 16), "parameter_servers": (1, 2), "batch_size": 8,
        "seconds": 24.0, "warm_up_seconds": 8.0, "train_options": "--simulators 4",
    },
    point_name="{game}-{neurons}neurons-{servers}servers-seed{seed}",
)  # fmt: skip
