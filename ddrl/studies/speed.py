"""`ddrl study speed`: hours for 50 million agent steps (Stooke and Abbeel 2018, section 5.5, tables 2 and 3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from ddrl import checks
from ddrl.algorithms import printed_name
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.studies.curves import from_intervals, spread_text
from ddrl.studies.figures import Curve, Panel
from ddrl.studies.groups import grouped
from ddrl.studies.measures import Interval, agent_steps_per_second, bootstrap, bootstrap_ratio
from ddrl.studies.points import Outcome, Point
from ddrl.studies.settings import StudySettings, base_config, budget, changed, game_name, not_empty, one_of
from ddrl.studies.study import Report, Study
from ddrl.studies.tables import Table
from ddrl.types import Machine

AGENT_STEPS = 50e6
OF_SEVERAL_WORKERS = ("a3c", "appo")
SIMULATORS = {"a2c": 16, "a3c": 16, "ppo": 8, "appo": 8}
"""Per worker, as in the paper."""
PAPER = {
    "a2c": {1: 3.8, 2: 2.2, 4: 1.2, 8: 0.59},
    "a3c": {2: 2.4, 4: 1.3, 8: 0.65},
    "ppo": {1: 4.4, 2: 2.6, 4: 1.5, 8: 1.1},
    "appo": {2: 2.8, 4: 1.5, 8: 0.71},
    "dqn": {1: 8.3, 2: 4.8, 4: 3.1, 8: 2.6},  # batch 512
    "rainbow": {1: 14.1, 2: 8.6, 4: 6.6, 8: 6.4},  # epsilon-Rainbow, batch 512
    "c51": {1: 10.7, 2: 6.0, 4: 2.8, 8: 1.8},  # categorical DQN, batch 2,048
}
"""Hours by number of GPUs: tables 2 and 3."""
HARDWARE = "DGX-1: a P100 GPU and 5 cores for each worker"


@dataclasses.dataclass(frozen=True)
class SpeedSettings(StudySettings):
    """Agent steps/s while learning, after a warm-up, by number of workers, and the hours that 50 million agent steps
    would take, beside those of Stooke and Abbeel 2018 (table 2). A2C and PPO average over all workers (allreduce), A3C
    and APPO update a central store. Every worker has its own cores and simulators, 16 for A2C and A3C, 8 for PPO and
    APPO."""

    algorithms: tuple[str, ...] = ("a2c", "a3c", "ppo", "appo")
    """Which of a2c, a3c, ppo and appo."""
    workers: tuple[int, ...] = ()
    """Numbers of workers (none given: 1, 2, 4, ... as many as there are cores for). A3C and APPO begin with 2."""
    cores_per_worker: int = 1
    """Cores of each worker; a run uses no more than those of its workers."""
    seconds: float = 60.0
    """Time of each run, the warm-up included."""
    warm_up_seconds: float = 15.0
    """Time at the beginning that does not count."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "algorithms", SIMULATORS)
        checks.at_least(self, 1, "cores_per_worker")
        checks.at_least(self, 0.0, "warm_up_seconds")
        if self.workers:
            not_empty(self, "workers")
        if any(number < 1 for number in self.workers):
            checks.refuse(self, "workers", "at least 1 each")
        if self.seconds < self.warm_up_seconds + 3.0:
            checks.refuse(self, "seconds", f"at least 3 more than --warm-up-seconds {self.warm_up_seconds:g}")


def points(settings: SpeedSettings, machine: Machine) -> list[Point]:
    """All of them.

    Raises:
        UsageError: more workers than there are cores for.
    """
    room = machine.cores // settings.cores_per_worker
    workers = settings.workers or tuple(2**k for k in range(room.bit_length()))
    if not workers or max(workers) > room:
        raise UsageError(
            f"--workers {max(workers, default=1)} x --cores-per-worker {settings.cores_per_worker}: this machine has "
            f"{machine.cores} cores"
        )
    return [
        _point(settings, machine, algorithm, number, game, seed)
        for algorithm in settings.algorithms
        for game in settings.games
        for number in workers
        if number > 1 or algorithm not in OF_SEVERAL_WORKERS
        for seed in settings.seeds
    ]


def _point(settings: SpeedSettings, machine: Machine, algorithm: str, workers: int, game: str, seed: int) -> Point:
    config = _with_workers(base_config(settings, algorithm, game, machine), algorithm, workers)
    config = changed(config, run=budget(settings.seconds / 60.0) | {"seed": seed, "log_every_seconds": 1.0})
    labels = {"algorithm": algorithm, "game": game, "workers": workers}
    name = f"{algorithm}-{game_name(game)}-{workers}workers-seed{seed}"
    return Point(name, config, labels, cores=workers * settings.cores_per_worker)


def _with_workers(config: TrainConfig, algorithm: str, workers: int) -> TrainConfig:
    config = changed(config, sampling={"simulators": SIMULATORS[algorithm]})
    if algorithm in OF_SEVERAL_WORKERS:
        return changed(config, exchange={"workers": workers})
    if workers == 1:
        return config
    return changed(config, exchange={"exchange": "allreduce", "workers": workers, "parameter_servers": None})


def report(settings: SpeedSettings, outcomes: Sequence[Outcome]) -> Report:
    """Rates, hours and speed-ups by workers, with the paper's."""
    return Report(
        heading="Learning speed by number of workers",
        caption=f"agent steps/s while learning, after {settings.warm_up_seconds:g} s; {spread_text(outcomes)}",
        tables=[
            Table(
                f"Hours for {AGENT_STEPS / 1e6:.0f} million agent steps",
                (
                    "algorithm",
                    "game",
                    "workers",
                    "cores",
                    "runs",
                    "agent steps/s",
                    "hours",
                    "speed-up",
                    "paper's hours",
                ),
                [row for some in grouped(outcomes, "algorithm", "game") for row in _rows(settings, *some)],
            )
        ],
        panels=list(_panels(settings, outcomes)),
        notes=[f"the paper's hours: Stooke and Abbeel 2018, table 2, {HARDWARE}"],
    )


def _rate(settings: SpeedSettings, runs: Sequence[Outcome]) -> list[float | None]:
    return [agent_steps_per_second(run.records, settings.warm_up_seconds) for run in runs]


def hours(rate: Interval | None) -> Interval | None:
    """Hours for 50 million agent steps at a rate per second; the bounds change places."""
    if rate is None:
        return None
    mean, low, high = (AGENT_STEPS / value / 3600.0 if value else None for value in (rate.mean, rate.high, rate.low))
    return Interval(mean, low, high, rate.count)


def _rows(settings: SpeedSettings, labels: tuple[Any, ...], outcomes: Sequence[Outcome]) -> Iterator[list[Any]]:
    algorithm, game = labels
    groups = [(workers, _rate(settings, runs), runs) for (workers,), runs in grouped(outcomes, "workers")]
    fewest, first, _ = min(groups, key=lambda group: group[0])
    for workers, rates, runs in groups:
        ratio = bootstrap_ratio(rates, first)
        speed_up = None if ratio is None or workers == fewest else ratio
        rate, cores = bootstrap(rates), runs[0].point.cores
        yield [algorithm, game, workers, cores, len(runs), rate, hours(rate), speed_up, PAPER[algorithm].get(workers)]


def _panels(settings: SpeedSettings, outcomes: Sequence[Outcome]) -> Iterator[Panel]:
    """Rates beside lines that grow with the workers, and hours beside the paper's."""
    for (game,), some in grouped(outcomes, "game"):
        rates, times = [], []
        for style, ((algorithm,), runs) in enumerate(grouped(some, "algorithm")):
            found = [(n, r) for (n,), mine in grouped(runs, "workers") if (r := bootstrap(_rate(settings, mine)))]
            rates.append(from_intervals(found, printed_name(algorithm))._replace(style=style))
            times.append(
                from_intervals([(n, hours(r)) for n, r in found], printed_name(algorithm))._replace(style=style)
            )
            paper = sorted(PAPER[algorithm].items())
            line = Curve(f"{printed_name(algorithm)}, the paper's", [n for n, _ in paper], [h for _, h in paper])
            times.append(line._replace(style=style, reference=True))
        linear = [_linear(curve) for curve in rates if len(curve.x) > 1]
        linear = [curve._replace(label="linear" if i == 0 else "") for i, curve in enumerate(linear)]
        yield Panel(game, "workers", "agent steps/s", [*rates, *linear], log_x=True, zero=True)
        title = f"{game}, {AGENT_STEPS / 1e6:.0f} million agent steps"
        yield Panel(title, "workers (ours: cores; the paper's: GPUs)", "hours", times, log_x=True, log_y=True)


def _linear(curve: Curve) -> Curve:
    """What a curve would be if its first point's rate grew with the workers."""
    return Curve("", curve.x, [curve.y[0] * x / curve.x[0] for x in curve.x], reference=True)


STUDY = Study(
    name="speed",
    defaults=SpeedSettings(),
    quick=SpeedSettings(
        quick=True,
        preset="smoke",
        games=("ddrl/Catch-v0",),
        seconds=7.0,
        warm_up_seconds=2.0,
        algorithms=("a2c", "a3c", "ppo"),
    ),
    points=points,
    report=report,
)
