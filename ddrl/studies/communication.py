"""`ddrl study communication`: model size and parameter servers against speed (Adamski et al. 2018, figures 6 and 7)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from ddrl import checks
from ddrl.algorithms import network_for
from ddrl.config import EnvironmentConfig, TrainConfig
from ddrl.errors import UsageError
from ddrl.studies.curves import from_intervals, spread_text
from ddrl.studies.figures import Curve, Panel
from ddrl.studies.groups import grouped
from ddrl.studies.measures import bootstrap, bootstrap_ratio, rate_per_second
from ddrl.studies.points import Outcome, Point
from ddrl.studies.settings import StudySettings, base_config, budget, changed, game_name, not_empty
from ddrl.studies.study import Report, Study
from ddrl.studies.tables import Table
from ddrl.types import Machine

PAPER_WEIGHTS = {256: 538_119, 128: 332_295, 64: 229_383, 32: 177_927, 16: 152_199}
"""Neurons -> all weights of the paper's network: table 2."""
LEAST_WORKERS = 2  # one alone exchanges nothing
DATAPOINTS, EXCHANGE = "datapoints_per_s", "least_exchange_ms"
NOTES = (
    "the paper's weights: Adamski et al. 2018, table 2; its text gives figures 6 and 7 without numbers: fewer neurons "
    "and more servers were both faster, and 128 neurons learned as fast as 256",
    "data-points/s are those of all workers, simulators included; where those take most of the time, or where messages "
    "go through the memory of one machine, smaller messages gain little: see the exchange's own time",
    "exchange: from a gradient that is sent to the next parameters, of the worker that waits least for the others",
)


@dataclasses.dataclass(frozen=True)
class CommunicationSettings(StudySettings):
    """Data-points/s of BA3C by the neurons of its fully connected layer, which holds most weights, and by the number of
    parameter servers that share them (Adamski et al. 2018, section 2.5, figures 6 and 7). Neurons vary with the first
    number of servers, servers with the first number of neurons."""

    neurons: tuple[int, ...] = (256, 128, 64, 32, 16)
    """Neurons of the fully connected layer; the first is what the others are compared with."""
    parameter_servers: tuple[int, ...] = (1, 2, 4)
    """Numbers of parameter servers; the first goes with all --neurons."""
    workers: int = 0
    """Workers of every point (0: one for each core, 2 at least)."""
    batch_size: int = 32
    """Data-points of each worker's gradient; small ones make many messages."""
    seconds: float = 60.0
    """Time of each run, the warm-up included."""
    warm_up_seconds: float = 15.0
    """Time at the beginning that does not count."""

    def __post_init__(self) -> None:
        super().__post_init__()
        not_empty(self, "neurons", "parameter_servers")
        checks.at_least(self, 0, "workers", "warm_up_seconds")
        checks.at_least(self, 1, "batch_size")
        if min(self.neurons) < 1 or min(self.parameter_servers) < 1:
            raise UsageError("--neurons and --parameter-servers are at least 1 each")
        if self.workers == 1:
            checks.refuse(self, "workers", f"one alone exchanges nothing; give {LEAST_WORKERS} or more")
        if self.seconds < self.warm_up_seconds + 3.0:
            checks.refuse(self, "seconds", f"at least 3 more than --warm-up-seconds {self.warm_up_seconds:g}")


def points(settings: CommunicationSettings, machine: Machine) -> list[Point]:
    """All of them; a size that both parts have is there once."""
    neurons, servers = settings.neurons, settings.parameter_servers
    pairs = [(n, servers[0]) for n in neurons] + [(neurons[0], s) for s in servers[1:]]
    return [
        _point(settings, machine, game, *pair, seed)
        for game in settings.games
        for pair in pairs
        for seed in settings.seeds
    ]


def _point(
    settings: CommunicationSettings, machine: Machine, game: str, neurons: int, servers: int, seed: int
) -> Point:
    config = changed(
        base_config(settings, "ba3c", game, machine),
        network={"network": "ba3c", "fc_neurons": neurons},
        optimizer={"batch_size": settings.batch_size},
        exchange={"workers": settings.workers or max(LEAST_WORKERS, machine.cores), "parameter_servers": servers},
        run=budget(settings.seconds / 60.0) | {"seed": seed, "log_every_seconds": 1.0},
    )
    name = f"{game_name(game)}-{neurons}neurons-{servers}servers-seed{seed}"
    return Point(name, config, {"game": game, "neurons": neurons, "servers": servers})


def report(settings: CommunicationSettings, outcomes: Sequence[Outcome]) -> Report:
    """Figures 6 and 7: data-points/s by neurons, and by servers; below, what an exchange takes."""
    workers = sorted({outcome.point.config.exchange.workers for outcome in outcomes})
    many = f"{', '.join(map(str, workers))} workers of {settings.batch_size} data-points a gradient"
    return Report(
        heading="Model size, parameter servers and speed",
        caption=f"data-points/s of {many}, after {settings.warm_up_seconds:g} s; scores are not looked at; "
        f"{spread_text(outcomes)}",
        tables=[
            Table(
                "Speed",
                (
                    "game",
                    "neurons",
                    "servers",
                    "runs",
                    "weights",
                    "of most",
                    "the paper's weights",
                    "MB an update",
                    "data-points/s",
                    "over the first",
                    "exchange (ms)",
                ),
                list(_rows(settings, outcomes)),
            )
        ],
        panels=list(_panels(settings, outcomes)),
        notes=[*_unmeasured(settings, outcomes), *NOTES],
    )


def _mean(settings: CommunicationSettings, runs: Sequence[Outcome], name: str) -> list[float | None]:
    return [rate_per_second(list(map(_with_least, run.records)), name, settings.warm_up_seconds) for run in runs]


def _with_least(record: dict[str, Any]) -> dict[str, Any]:
    waits = record.get("exchange_ms_by_worker")
    return record | {EXCHANGE: min(waits.values())} if waits else record


def _unmeasured(settings: CommunicationSettings, outcomes: Sequence[Outcome]) -> list[str]:
    names = [o.point.name for o in outcomes if rate_per_second(o.records, DATAPOINTS, settings.warm_up_seconds) is None]
    why = f"no update for long enough between {settings.warm_up_seconds:g} s and the end; give more --seconds"
    return [f"nothing measured: {', '.join(names)}: {why}"] if names else []


def _rows(settings: CommunicationSettings, outcomes: Sequence[Outcome]) -> Iterator[list[Any]]:
    most = {game: max(filter(None, map(weights, runs)), default=None) for (game,), runs in grouped(outcomes, "game")}
    for (game,), some in grouped(outcomes, "game"):
        first = [
            o
            for o in some
            if (o.point.labels["neurons"], o.point.labels["servers"])
            == (settings.neurons[0], settings.parameter_servers[0])
        ]
        for (neurons, servers), runs in grouped(some, "neurons", "servers"):
            rates, count = _mean(settings, runs, DATAPOINTS), weights(runs[0])
            ratio = None if runs == first else bootstrap_ratio(rates, _mean(settings, first, DATAPOINTS))
            share = f"{count / most[game]:.0%}" if count else None
            # Each worker sends a gradient and gets parameters, of 4 bytes each.
            megabytes = 8e-6 * count * runs[0].point.config.exchange.workers if count else None
            exchange = bootstrap(_mean(settings, runs, EXCHANGE))
            yield [
                game,
                neurons,
                servers,
                len(runs),
                count,
                share,
                PAPER_WEIGHTS.get(neurons),
                megabytes,
                bootstrap(rates),
                ratio,
                exchange,
            ]


def _panels(settings: CommunicationSettings, outcomes: Sequence[Outcome]) -> Iterator[Panel]:
    several = len({outcome.point.labels["game"] for outcome in outcomes}) > 1
    axes = (("neurons", "neurons of the fully connected layer", "servers", settings.parameter_servers[0]),
            ("servers", "parameter servers", "neurons", settings.neurons[0]))  # fmt: skip
    for (game,), some in grouped(outcomes, "game"):
        for name, y_label in ((DATAPOINTS, "data-points/s"), (EXCHANGE, "time of an exchange (ms)")):
            for label, text, other, value in axes:
                same = [outcome for outcome in some if outcome.point.labels[other] == value]
                title = f"{f'{game}, ' if several else ''}{value} {other.removesuffix('s' * (value == 1))}"
                yield Panel(title, text, y_label, [_curve(settings, same, label, name)], log_x=True, zero=True)


def _curve(settings: CommunicationSettings, outcomes: Sequence[Outcome], label: str, name: str) -> Curve:
    groups = grouped(outcomes, label)
    found = [(size, mean) for (size,), runs in groups if (mean := bootstrap(_mean(settings, runs, name)))]
    return from_intervals(sorted(found))._replace(style=int(name == EXCHANGE))


def weights(outcome: Outcome) -> int | None:
    """Length of a point's parameter vector; None where its game is not here."""
    return _count(outcome.point.config)


@functools.cache
def _count(config: TrainConfig) -> int | None:
    shapes = _shapes(config.environment)
    return shapes and network_for(config, *shapes).size


@functools.cache
def _shapes(config: EnvironmentConfig) -> tuple[Any, Any, Any] | None:
    """Shape and dtype of the observations, and the actions."""
    from ddrl.envs import make_environment

    try:
        environment = make_environment(config, num_envs=1)
    except UsageError:
        return None
    try:
        return environment.observation_shape, environment.observation_dtype, environment.action_space
    finally:
        environment.close()


STUDY = Study(
    name="communication",
    defaults=CommunicationSettings(),
    quick=CommunicationSettings(
        quick=True,
        neurons=(64, 16),
        parameter_servers=(1, 2),
        batch_size=8,
        seconds=24.0,
        warm_up_seconds=8.0,
        train_options="--simulators 4",
    ),
    points=points,
    report=report,
)
