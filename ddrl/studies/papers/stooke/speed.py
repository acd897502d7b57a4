"""Speed of learning by number of workers: section 5.5, tables 2 and 3."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ddrl import checks
from ddrl.algorithms import printed_name
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.studies.curves import linear, over, spread_text
from ddrl.studies.figures import Panel, through
from ddrl.studies.findings import extremes
from ddrl.studies.measures import count, mean, rate, ratio
from ddrl.studies.papers.stooke.q_learning import INTENSITY, with_batch
from ddrl.studies.points import Group, Outcome, grouped, having
from ddrl.studies.settings import TimedSettings, base_config, one_of
from ddrl.studies.statistics import Interval
from ddrl.studies.study import Labels, Report, Study, doublings, product
from ddrl.studies.tables import table
from ddrl.types import Machine
from ddrl.wording import counted

AGENT_STEPS = 50e6
SIMULATORS_PER_WORKER = {"a2c": 16, "a3c": 16, "ppo": 8, "appo": 8}
"""Simulators of each worker of the policy-gradient algorithms, as in the paper."""
BATCH_SIZES = {"dqn": 512, "rainbow": 512, "categorical-dqn": 2048}
"""Batch size of all workers together in Q-learning, as in the paper."""
OF_SEVERAL_WORKERS = ("a3c", "appo")
PAPER_HOURS = {
    "a2c": {1: 3.8, 2: 2.2, 4: 1.2, 8: 0.59},
    "a3c": {2: 2.4, 4: 1.3, 8: 0.65},
    "ppo": {1: 4.4, 2: 2.6, 4: 1.5, 8: 1.1},
    "appo": {2: 2.8, 4: 1.5, 8: 0.71},
    "dqn": {1: 8.3, 2: 4.8, 4: 3.1, 8: 2.6},
    "rainbow": {1: 14.1, 2: 8.6, 4: 6.6, 8: 6.4},
    "categorical-dqn": {1: 10.7, 2: 6.0, 4: 2.8, 8: 1.8},
}
"""The paper's hours for 50 million agent steps by algorithm and number of GPUs: tables 2 and 3."""
Speed = Callable[[Group], "Interval | None"]
HARDWARE = "DGX-1: a P100 GPU and 5 cores for each worker"


@dataclasses.dataclass(frozen=True)
class SpeedSettings(TimedSettings):
    """Agent steps/s while learning, after a warm-up, by number of workers, and the hours that 50 million agent steps
    would take, beside those of Stooke and Abbeel 2018 (tables 2 and 3). A3C and APPO update a central store, all others
    average over the workers (allreduce). Every worker has its own cores and simulators, 16 for A2C and A3C, 8 for PPO
    and APPO. In Q-learning the workers share the batch, 512 for DQN and epsilon-Rainbow, 2,048 for Categorical DQN,
    and use every transition 8 times."""

    algorithms: tuple[str, ...] = tuple(PAPER_HOURS)
    """Which of a2c, a3c, ppo, appo, dqn, rainbow, and categorical-dqn."""
    workers: tuple[int, ...] = ()
    """Numbers of workers (none given: 1, 2, 4, ..., as many as there are cores for). A3C and APPO begin with 2."""
    cores_per_worker: int = 1
    """Cores of each worker; a run uses no more than those of its workers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "algorithms", PAPER_HOURS)
        checks.at_least(self, 1, "cores_per_worker")

    def axes(self, machine: Machine) -> Iterator[Labels]:
        room = machine.cores // self.cores_per_worker
        workers = self.workers or doublings(room)
        if not workers or max(workers) > room:
            raise UsageError(
                f"--workers {max(workers, default=1)} x --cores-per-worker {self.cores_per_worker}: this machine has "
                f"{counted(machine.cores, 'core')}; give fewer"
            )
        for labels in product(algorithm=self.algorithms, game=self.games, workers=workers, seed=self.seeds):
            if labels["workers"] > 1 or labels["algorithm"] not in OF_SEVERAL_WORKERS:
                yield labels

    def config(self, machine: Machine, labels: Labels) -> TrainConfig:
        algorithm, workers = labels["algorithm"], labels["workers"]
        exchange: dict[str, Any] = {"workers": workers}
        if algorithm not in OF_SEVERAL_WORKERS:
            exchange = exchange | {"exchange": "allreduce", "parameter_servers": None} if workers > 1 else {}
        config = base_config(self, algorithm, labels["game"], machine).changed(exchange=exchange, run=self.run)
        if algorithm in BATCH_SIZES:
            return with_shared_batch(config, algorithm, BATCH_SIZES[algorithm])
        return config.changed(sampling={"simulators": SIMULATORS_PER_WORKER[algorithm]})

    def report(self, outcomes: Sequence[Outcome]) -> Report:
        """Rates, hours and speed-ups by workers, with the paper's."""
        measure = rate(warm_up_seconds=self.warm_up_seconds)
        lines = grouped(outcomes, "algorithm", "game")

        def speed_up(group: Group) -> Interval | None:
            """Speed-up over the fewest workers of the same algorithm and game."""
            alike = having(outcomes, algorithm=group["algorithm"], game=group["game"])
            fewest = min(run.point.labels["workers"] for run in alike)
            return ratio(measure, group.runs, having(alike, workers=fewest))

        return Report(
            heading="Learning speed by number of workers",
            caption=f"agent steps/s while learning, after {self.warm_up_seconds:g} s; {spread_text(outcomes)}",
            finding=extremes(grouped(outcomes, "algorithm", "game", "workers"), mean(measure), "rate in agent steps/s"),
            tables=[
                table(
                    f"Hours for {AGENT_STEPS / 1e6:.0f} million agent steps",
                    [group for line in lines for group in grouped(line.runs, "algorithm", "game", "workers")],
                    {
                        "algorithm": "algorithm", "game": "game", "workers": "workers",
                        "cores": lambda group: group.runs[0].point.cores,
                        "runs": count, "agent steps/s": mean(measure),
                        "hours": lambda group: hours(mean(measure)(group)),
                        "speed-up": speed_up,
                        "paper's hours": lambda group: PAPER_HOURS[group["algorithm"]].get(group["workers"]),
                    },
                )
            ],
            panels=list(_panels(outcomes, mean(measure))),
            notes=[f"the paper's hours: Stooke and Abbeel 2018, tables 2 and 3, {HARDWARE}"],
        )  # fmt: skip


def with_shared_batch(config: TrainConfig, algorithm: str, size: int) -> TrainConfig:
    """The settings with a batch of `size` that all workers share, and the learning rate of a batch of that size.

    Learning begins as soon as the replay has one batch of transitions, so that it does so during the warm-up.

    Raises:
        UsageError: the workers cannot share the batch evenly.
    """
    workers = config.exchange.workers
    if size % (INTENSITY * workers):
        raise UsageError(f"--workers {workers}: they cannot share {algorithm}'s batch of {size}; give 1, 2, 4, ...")
    rate = with_batch(config, algorithm, size).optimizer.learning_rate
    shared = with_batch(config, algorithm, size // workers, rate)
    return shared.changed(replay={"replay_minimum": size})


def hours(speed: Interval | None) -> Interval | None:
    """Hours for 50 million agent steps at a rate per second; the bounds are swapped. None without a rate above 0."""
    return speed.map(lambda steps: AGENT_STEPS / steps / 3600.0) if speed and speed.mean and speed.low != 0.0 else None


def _panels(outcomes: Sequence[Outcome], speed: Speed) -> Iterator[Panel]:
    for game in grouped(outcomes, "game"):
        for kind, algorithms in (("policy gradients", SIMULATORS_PER_WORKER), ("Q-learning", BATCH_SIZES)):
            runs = [run for run in game.runs if run.point.labels["algorithm"] in algorithms]
            if runs:
                yield from _speed_panels(f"{game['game']}, {kind}", runs, speed)


def _speed_panels(title: str, runs: Sequence[Outcome], speed: Speed) -> Iterator[Panel]:
    """Panels of rates beside lines that grow with the workers, and of hours beside the paper's."""
    rates, times = [], []
    for style, line in enumerate(grouped(runs, "algorithm")):
        groups, name = grouped(line.runs, "workers"), printed_name(line["algorithm"])
        rates.append(over(groups, "workers", speed, name, style))
        times.append(over(groups, "workers", lambda group: hours(speed(group)), name, style))
        paper = sorted(PAPER_HOURS[line["algorithm"]].items())
        times.append(through(paper, f"{name}, the paper's", style=style, reference=True))
    yield Panel(title, "workers", "agent steps/s", [*rates, *linear(rates)], log_x=True, zero=True)
    million = f"{AGENT_STEPS / 1e6:.0f} million agent steps"
    yield Panel(million, "workers (ours: cores; the paper's: GPUs)", "hours", times, log_x=True, log_y=True)


SPEED = Study(
    name="speed",
    about="hours for 50 million agent steps, by number of workers (Stooke and Abbeel 2018, tables 2 and 3)",
    defaults=SpeedSettings(),
    quick_changes={"seconds": 7.0, "warm_up_seconds": 2.0, "algorithms": ("a2c", "a3c", "ppo", "dqn")},
    point_name="{algorithm}-{game}-{workers}workers-seed{seed}",
    cores=lambda settings, labels: labels["workers"] * settings.cores_per_worker,
)
