"""Studies of BA3C: Adamski et al. 2018, Distributed Deep Reinforcement Learning: learn how to play Atari games in 21
minutes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ddrl import checks
from ddrl.algorithms.parts import rom_name
from ddrl.config import EnvironmentConfig, TrainConfig
from ddrl.errors import UsageError
from ddrl.placement.resources import this_machine
from ddrl.reporting.metrics import whole
from ddrl.studies import collapse
from ddrl.studies import plan as plans
from ddrl.studies.curves import SECONDS, STEPS, learning_panel, over, score_curve, spread_text, unit_of
from ddrl.studies.engine import limited_to
from ddrl.studies.figures import Curve, Panel
from ddrl.studies.measures import (
    CAPTIONS,
    EVALUATION,
    MAXIMUM,
    ONLINE,
    Measure,
    count,
    evaluations,
    final,
    given_seconds,
    mean,
    most,
    rate,
    rate_per_second,
    values,
)
from ddrl.studies.median_rule import Rule, train_unless_hopeless
from ddrl.studies.papers import ba3c_epsilon, ba3c_scaling
from ddrl.studies.papers.ba3c_scaling import STRONG, WEAK
from ddrl.studies.points import Group, Outcome, Point, grouped, having
from ddrl.studies.settings import (
    BudgetSettings,
    ScoredSettings,
    TimedSettings,
    base_config,
    budget,
    changed,
    from_json,
    not_empty,
    one_of,
    positive,
    refusals_of,
)
from ddrl.studies.statistics import Interval, bootstrap_ratio
from ddrl.studies.study import Labels, Report, Study, product
from ddrl.studies.tables import table
from ddrl.studies.training import train_point
from ddrl.types import Machine

# scaling: section 3.1, figure 8 ---------------------------------------------------------------------------------------

MODES = {"both": (STRONG, WEAK), STRONG: (STRONG,), WEAK: (WEAK,)}


@dataclasses.dataclass(frozen=True)
class ScalingSettings(BudgetSettings):
    """BA3C with more and more workers (Adamski et al. 2018, figure 8): data-points/s and agent steps/s after a warm-up,
    their ratio to those of the fewest workers, parallel efficiency, and the time to a score. strong: one effective
    batch for all, divided among the workers; weak: one batch for each worker. One worker is one process without
    servers; more have a server for every --workers-per-server."""

    workers: tuple[int, ...] = (1, 2, 4, 8)
    """Numbers of workers; the others are compared with the fewest."""
    mode: Literal["strong", "weak", "both"] = "strong"
    """strong: constant effective batch; weak: constant batch per worker; or both."""
    effective_batch: int = 512
    """Strong: data-points in one update, of all workers together (the paper's single node: 512)."""
    min_batch_per_worker: int = 32
    """Strong: data-points of each worker's gradient at least; with more workers the effective batch grows."""
    batch_per_worker: int = 128
    """Weak: data-points of each worker's gradient."""
    workers_per_server: int = 8
    """There is a parameter server for every so many workers, rounded up."""
    cores_per_worker: int = 1
    """A run uses so many cores for each worker, its servers and evaluator among them, or all that there are where they
    are fewer (0: all always)."""
    target_score: float | None = None
    """A run ends when an evaluation reaches this, and the time is reported (None: no evaluations)."""
    eval_every_steps: int = 50_000
    """Agent steps between evaluations. They take a tenth of the time at most."""
    eval_games: int = 50
    """Games of an evaluation."""
    warm_up_seconds: float = 30.0
    """Time at the beginning of a run that does not count in rates; a third of shorter runs."""
    minutes: float = 5.0
    """Wall time of a point, in minutes (0: as many as --agent-steps take)."""
    repeats: int = 3
    """Runs of every point, each with a seed of its own (the paper: 10)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "workers")
        batches = ("effective_batch", "min_batch_per_worker", "batch_per_worker")
        checks.at_least(self, 1, *batches, "workers_per_server", "eval_every_steps", "eval_games")
        checks.at_least(self, 0, "cores_per_worker", "warm_up_seconds")
        if self.target_score is not None:
            checks.finite(self, "target_score")
        for number in self.workers:
            share = self.effective_batch / number
            if STRONG in MODES[self.mode] and share > self.min_batch_per_worker and self.effective_batch % number:
                checks.refuse(self, "effective_batch", f"{number} workers cannot divide it; give a multiple")

    def batch(self, mode: str, workers: int) -> int:
        """Data-points of each worker's gradient."""
        if mode == WEAK:
            return self.batch_per_worker
        return max(self.min_batch_per_worker, self.effective_batch // workers)

    def evaluation(self, config: TrainConfig) -> dict[str, Any]:
        """The changes of the group `evaluation`: there are evaluations where there is a target."""
        if self.target_score is None:
            return {"evaluator": False, "target_score": None}
        return {"evaluator": True, "target_score": self.target_score} | _evaluations(self, config)


def _evaluations(settings: Any, config: TrainConfig) -> dict[str, Any]:
    every = max(1, settings.eval_every_steps // config.effective_batch)
    return {"eval_games": settings.eval_games, "eval_every_updates": every}


def _scaling_axes(settings: ScalingSettings, machine: Machine) -> Iterator[Labels]:
    for labels in product(
        mode=MODES[settings.mode], game=settings.games, workers=sorted(settings.workers), seed=settings.seeds
    ):
        smallest = settings.effective_batch / labels["workers"] < settings.min_batch_per_worker
        more = {
            "cores": labels["workers"] * settings.cores_per_worker,
            "at_least": labels["mode"] == STRONG and smallest,
        }
        yield labels | more


def _scaling_config(settings: ScalingSettings, machine: Machine, labels: Labels) -> TrainConfig:
    workers = labels["workers"]
    config = base_config(settings, "ba3c", labels["game"], machine)
    with refusals_of(f"{workers} workers"):
        config = with_workers(config, workers, settings.workers_per_server, settings.batch(labels["mode"], workers))
    report_often = {"log_every_seconds": 1.0} if settings.quick else {}
    return changed(config, run=settings.run | report_often, evaluation=settings.evaluation(config))


def with_workers(config: TrainConfig, workers: int, workers_per_server: int, batch: int) -> TrainConfig:
    """The settings with so many workers, each with such a batch. One worker is a single process."""
    exchange: dict[str, object] = {"workers": workers}
    if workers == 1:
        exchange |= {"exchange": "parameter_server", "parameter_servers": 0}
    elif config.exchange.kind.has_servers:
        exchange |= {"parameter_servers": -(-workers // workers_per_server)}
    return changed(config, exchange=exchange, optimizer={"batch_size": batch})


def run_scaled(point: Point, path: Path) -> None:
    """Trains with the cores of its workers, as far as there are so many.

    Raises:
        UsageError, RuntimeError: see train_point.
    """
    wanted, here = point.labels["cores"], this_machine().cores
    with limited_to(wanted) if 0 < wanted < here else contextlib.nullcontext():
        train_point(point, path)


SCALING = Study(
    name="scaling",
    about="speed and time to a score by number of workers, strong and weak (Adamski et al. 2018, figure 8)",
    defaults=ScalingSettings(),
    quick_changes={
        "workers": (1, 2, 4), "minutes": 0.13, "warm_up_seconds": 3.0, "effective_batch": 128, "batch_per_worker": 64,
        "repeats": 2,
    },
    axes=_scaling_axes,
    point_name="{mode}-{game}-{workers}workers-seed{seed}",
    config=_scaling_config,
    report=ba3c_scaling.report,
    run=run_scaled,
)  # fmt: skip


# epsilon: section 2.4.3, figure 5 -------------------------------------------------------------------------------------

RATES = {"epsilon": "adam_epsilon", "beta1": "beta1", "beta2": "beta2", "learning_rate": "learning_rate"}
"""Setting, and label -> field of the optimizer's settings."""


@dataclasses.dataclass(frozen=True)
class EpsilonSettings(ScoredSettings):
    """BA3C with every pair of Adam's epsilon and effective batch, and other rates of Adam where they are given. Adamski
    et al. 2018: an epsilon of 1e-8 instead of 1e-3 helped from an effective batch of 512 on, and not in every game.
    Reports score against time, time to a score, and the best epsilon of each batch, as options of `ddrl train`."""

    epsilon: tuple[float, ...] = (1e-3, 1e-5, 1e-8)
    """Adam's epsilons."""
    batch_size: tuple[int, ...] = (128, 512, 2048)
    """Effective batches: data-points in one update, of all workers together."""
    beta1: tuple[float, ...] = ()
    """Adam's decays of the mean of gradients (none given: the preset's; the paper: 0.8)."""
    beta2: tuple[float, ...] = ()
    """Adam's decays of the mean of squared gradients (none given: the preset's; the paper: 0.75)."""
    learning_rate: tuple[float, ...] = ()
    """Learning rates (none given: the preset's)."""
    workers: int = 0
    """Workers of every run (0: the preset's)."""
    score: Literal["online", "evaluation"] = "online"
    """online: of training games, as in the paper's figure 5; evaluation: of greedy games with frozen parameters, which
    take up to a tenth of the time."""
    target_score: float | None = None
    """Score whose time is measured; the runs go on after it (None: final scores alone)."""
    eval_every_steps: int = 50_000
    """Agent steps between evaluations."""
    eval_games: int = 50
    """Games of an evaluation."""
    stop_hopeless: bool = False
    """End a run early when its best score is below the median of what runs of other cells with the same game and batch
    had on average until that time. It is marked, and stays in the report. One after the other, only later runs can
    be ended."""
    stop_after: float = 0.3
    """Share of its budget that every run has, hopeless or not."""
    minutes: float = 10.0
    """Wall time of a point, in minutes (0: as many as --agent-steps take)."""
    repeats: int = 3
    """Runs of every cell, each with a seed of its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        not_empty(self, "epsilon", "batch_size", *(name for name in RATES if getattr(self, name)))
        checks.at_least(self, 0, "workers")
        checks.at_least(self, 1, "eval_every_steps")
        checks.between(self, 0.0, 1.0, "stop_after", why="a share of the budget")
        if self.target_score is not None:
            checks.finite(self, "target_score")

    @property
    def rule(self) -> Rule:
        """When a run is hopeless."""
        if self.minutes:
            return Rule(self.score_name, SECONDS, 60.0 * self.minutes * self.stop_after)
        return Rule(self.score_name, STEPS, self.agent_steps * self.stop_after)

    def rates(self) -> Iterator[dict[str, float]]:
        """Every combination of the rates of Adam that are given."""
        given = {name: chosen for name in RATES if (chosen := getattr(self, name))}
        yield from (dict(zip(given, combination)) for combination in itertools.product(*given.values()))


def _epsilon_axes(settings: EpsilonSettings, machine: Machine) -> Iterator[Labels]:
    """Runs of one seed follow each other, so that half a study compares something."""
    for game in settings.games:
        preset = base_config(settings, "ba3c", game, machine).optimizer
        others = {name: getattr(preset, field) for name, field in RATES.items()}
        for seed, batch, rates in itertools.product(settings.seeds, settings.batch_size, settings.rates()):
            yield {"game": game, "batch": batch, **others, **rates, "seed": seed}


def _epsilon_name(settings: EpsilonSettings, labels: Labels) -> str:
    rates = [f"{name.replace('_', '')}{labels[name]:g}" for name in RATES if getattr(settings, name)]
    return f"{labels['game']}-batch{labels['batch']}-{'-'.join(rates)}-seed{labels['seed']}"


def _epsilon_config(settings: EpsilonSettings, machine: Machine, labels: Labels) -> TrainConfig:
    config, batch = base_config(settings, "ba3c", labels["game"], machine), labels["batch"]
    if config.optimizer.optimizer != "adam":
        raise UsageError("--train-options: the study is of Adam's epsilon; leave --optimizer out")
    workers = settings.workers or config.exchange.workers
    if batch < workers or batch % workers:
        why = f"{workers} workers cannot divide it; give a multiple, or other --workers"
        raise UsageError(f"--batch-size {batch}: {why}")
    if workers == config.exchange.workers:
        config = changed(config, optimizer={"batch_size": batch // workers})
    else:
        config = with_workers(config, workers, 8, batch // workers)
    evaluation = {"evaluator": settings.score == "evaluation", "target_score": None} | _evaluations(settings, config)
    rates = {field: labels[name] for name, field in RATES.items()}
    return changed(config, optimizer=rates, run=settings.run, evaluation=evaluation)


def run_cell(point: Point, path: Path) -> None:
    """Trains, until it is hopeless where that is asked for.

    Raises:
        UsageError, RuntimeError: see train_point.
    """
    plan = plans.load(path.parent.parent, EPSILON.name)
    settings = None if plan is None else from_json(EpsilonSettings, plan.settings)
    if plan is None or settings is None or not settings.stop_hopeless:
        train_point(point, path)
        return
    others = [plan.path(other) for other in plan.points if _compared(other, point)]
    train_unless_hopeless(lambda: train_point(point, path), path, others, settings.rule)


def _compared(other: Point, point: Point) -> bool:
    """Whether a point is of another cell with the same game and batch."""
    ours, theirs = point.labels, other.labels
    same = all(ours[name] == theirs[name] for name in ("game", "batch"))
    return same and any(ours[name] != theirs[name] for name in ba3c_epsilon.CELL)


EPSILON = Study(
    name="epsilon",
    about="Adam's epsilon (and betas, learning rate) by effective batch (Adamski et al. 2018, section 2.4.3)",
    defaults=EpsilonSettings(),
    quick_changes={
        "epsilon": (1e-3, 1e-8), "batch_size": (64, 256), "minutes": 0.15, "repeats": 2, "target_score": 0.0
    },
    axes=_epsilon_axes,
    point_name=_epsilon_name,
    config=_epsilon_config,
    report=ba3c_epsilon.report,
    run=run_cell,
)  # fmt: skip


# communication: section 2.5, figures 6 and 7 --------------------------------------------------------------------------

PAPER_WEIGHTS = {256: 538_119, 128: 332_295, 64: 229_383, 32: 177_927, 16: 152_199}
"""Neurons -> all weights of the paper's network: table 2."""
LEAST_WORKERS = 2  # one alone exchanges nothing
DATAPOINTS, EXCHANGE = "datapoints_per_s", "least_exchange_ms"
COMMUNICATION_NOTES = (
    (
        "the paper's weights: Adamski et al. 2018, table 2; its text gives figures 6 and 7 without numbers: fewer "
        "neurons and more servers were both faster, and 128 neurons learned as fast as 256"
    ),
    (
        "data-points/s are those of all workers, simulators included; where those take most of the time, or where "
        "messages go through the memory of one machine, smaller messages gain little: see the exchange's own time"
    ),
    "exchange: from a gradient that is sent to the next parameters, of the worker that waits least for the others",
)


@dataclasses.dataclass(frozen=True)
class CommunicationSettings(TimedSettings):
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

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "neurons", "parameter_servers")
        checks.at_least(self, 0, "workers")
        checks.at_least(self, 1, "batch_size")
        if self.workers == 1:
            checks.refuse(self, "workers", f"one alone exchanges nothing; give {LEAST_WORKERS} or more")

    def measure(self, name: str) -> Measure:
        """The mean of a rate or of the least exchange time of a run, after its warm-up."""
        return lambda run: rate_per_second(list(map(_with_least, run.records)), name, self.warm_up_seconds)


def _with_least(record: dict[str, Any]) -> dict[str, Any]:
    waits = record.get("exchange_ms_by_worker")
    return record | {EXCHANGE: min(waits.values())} if waits else record


def _communication_axes(settings: CommunicationSettings, machine: Machine) -> Iterator[Labels]:
    """A size that both parts have is there once."""
    neurons, servers = settings.neurons, settings.parameter_servers
    pairs = [(n, servers[0]) for n in neurons] + [(neurons[0], s) for s in servers[1:]]
    for game, (n, s), seed in itertools.product(settings.games, pairs, settings.seeds):
        yield {"game": game, "neurons": n, "servers": s, "seed": seed}


def _communication_config(settings: CommunicationSettings, machine: Machine, labels: Labels) -> TrainConfig:
    workers = settings.workers or max(LEAST_WORKERS, machine.cores)
    return changed(
        base_config(settings, "ba3c", labels["game"], machine),
        network={"network": "ba3c", "fc_neurons": labels["neurons"]},
        optimizer={"batch_size": settings.batch_size},
        exchange={"workers": workers, "parameter_servers": labels["servers"]},
        run=budget(settings.seconds / 60.0) | {"log_every_seconds": 1.0},
    )


def _communication_report(settings: CommunicationSettings, outcomes: Sequence[Outcome]) -> Report:
    """Figures 6 and 7: data-points/s by neurons, and by servers; below, what an exchange takes."""
    workers = sorted({outcome.point.config.exchange.workers for outcome in outcomes})
    many = f"{', '.join(map(str, workers))} workers of {settings.batch_size} data-points a gradient"
    speed = settings.measure(DATAPOINTS)
    short = [outcome.point.name for outcome in outcomes if speed(outcome) is None]
    why = f"no update for long enough between {settings.warm_up_seconds:g} s and the end; give more --seconds"
    return Report(
        heading="Model size, parameter servers and speed",
        caption=f"data-points/s of {many}, after {settings.warm_up_seconds:g} s; scores are not looked at; "
        f"{spread_text(outcomes)}",
        tables=[
            table("Speed", grouped(outcomes, "game", "neurons", "servers"), {
                "game": "game", "neurons": "neurons", "servers": "servers", "runs": count,
                "weights": weights,
                "of most": lambda group: _share_of_most(group, having(outcomes, game=group["game"])),
                "the paper's weights": lambda group: PAPER_WEIGHTS.get(group["neurons"]),
                # Each worker sends a gradient and gets parameters, of 4 bytes each.
                "MB an update": lambda group: (
                    (weight := weights(group)) and 8e-6 * weight * group.config.exchange.workers
                ),
                "data-points/s": mean(speed),
                "over the first": lambda group: _over_first(settings, group, outcomes),
                "exchange (ms)": mean(settings.measure(EXCHANGE)),
            })
        ],
        panels=list(_communication_panels(settings, outcomes)),
        notes=[*([f"nothing measured: {', '.join(short)}: {why}"] if short else []), *COMMUNICATION_NOTES],
    )  # fmt: skip


def _over_first(settings: CommunicationSettings, group: Group, outcomes: Sequence[Outcome]) -> Interval | None:
    """Ratio of rates to those of the first sizes in the same game; None of these."""
    sizes = {"neurons": settings.neurons[0], "servers": settings.parameter_servers[0]}
    first, speed = having(outcomes, game=group["game"], **sizes), settings.measure(DATAPOINTS)
    return None if group.runs == first else bootstrap_ratio(values(speed, group.runs), values(speed, first))


def _share_of_most(group: Group, same_game: Sequence[Outcome]) -> str | None:
    largest = max(filter(None, map(weights, grouped(same_game, "neurons", "servers"))), default=None)
    return f"{weight / largest:.0%}" if largest and (weight := weights(group)) else None


def _communication_panels(settings: CommunicationSettings, outcomes: Sequence[Outcome]) -> Iterator[Panel]:
    several = len(grouped(outcomes, "game")) > 1
    axes = (("neurons", "neurons of the fully connected layer", "servers", settings.parameter_servers[0]),
            ("servers", "parameter servers", "neurons", settings.neurons[0]))  # fmt: skip
    for group in grouped(outcomes, "game"):
        for style, (name, y_label) in enumerate(
            ((DATAPOINTS, "data-points/s"), (EXCHANGE, "time of an exchange (ms)"))
        ):
            for axis, text, other, value in axes:
                same = _by(axis, having(group.runs, **{other: value}))
                title = f"{group['game']}, " * several + f"{value} {other.removesuffix('s' * (value == 1))}"
                curve = over(same, axis, mean(settings.measure(name)), style=style)
                yield Panel(title, text, y_label, [curve], log_x=True, zero=True)


def _by(label: str, outcomes: Sequence[Outcome]) -> list[Group]:
    return sorted(grouped(outcomes, label), key=lambda group: group[label])


def weights(group: Group) -> int | None:
    """Length of the parameter vector; None where the game is not here."""
    return _parameter_count(group.config)


@functools.cache
def _parameter_count(config: TrainConfig) -> int | None:
    from ddrl.algorithms import network_for

    shapes = _shapes(config.environment)
    return shapes and network_for(config, *shapes).size


@functools.cache
def _shapes(config: EnvironmentConfig) -> tuple[Any, Any, Any] | None:
    """Shape and dtype of the observations, and the actions."""
    from ddrl.envs import make_environment

    try:
        with contextlib.closing(make_environment(config, num_envs=1)) as environment:
            return environment.observation_shape, environment.observation_dtype, environment.action_space
    except UsageError:
        return None


COMMUNICATION = Study(
    name="communication",
    about="data-points/s by size of the network and parameter servers (BA3C, figures 6 and 7)",
    defaults=CommunicationSettings(),
    quick_changes={
        "preset": "laptop", "games": ("breakout",), "neurons": (64, 16), "parameter_servers": (1, 2), "batch_size": 8,
        "seconds": 24.0, "warm_up_seconds": 8.0, "train_options": "--simulators 4",
    },
    axes=_communication_axes,
    point_name="{game}-{neurons}neurons-{servers}servers-seed{seed}",
    config=_communication_config,
    report=_communication_report,
)  # fmt: skip


# synchronous-vs-asynchronous: section 2.3, figure 3; learning-rate: section 2.4.2, figure 4 ---------------------------

LEAST_STALE_WORKERS = 4  # fewer make hardly any gradient stale
UPDATES = ("synchronous", "asynchronous")
RULES = ("constant", "linear")
UPDATES_PAPER = (
    "Adamski et al. 2018, figure 3: with asynchronous updates the online score rose, and after 50 minutes dropped to 0 "
    "while the loss had a spike; with synchronous ones they never saw that"
)
RULES_PAPER = (
    "Adamski et al. 2018, section 2.4.2 and figure 4: with Adam the linear scaling rule made training unstable; models "
    "learned to play well and then scored 0 until the end; 1e-3, as on one node, was the largest stable rate"
)


@dataclasses.dataclass(frozen=True)
class CollapseSettings(BudgetSettings):
    """What points depend on that may learn and then collapse."""

    agent_steps: int = 2_000_000
    """Agent steps of a run, over all its workers (0: as many as --minutes allow)."""
    learned_score: float | None = None
    """Online score from which on a run has learned (None: halfway from the first to the best of all runs)."""


@dataclasses.dataclass(frozen=True)
class StalenessSettings(CollapseSettings):
    """BA3C with synchronous and with asynchronous updates, the same workers and the same budget: online score, loss and
    staleness over time (Adamski et al. 2018, figure 3). Synchronous updates average a gradient of every worker;
    asynchronous ones take each as it comes, so that there are more of them, and older."""

    modes: tuple[str, ...] = UPDATES
    """synchronous, asynchronous."""
    workers: int = 0
    """Workers of every run (0: one for each core, 4 at least)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "modes", UPDATES)
        checks.at_least(self, 0, "workers")
        if self.workers == 1:
            checks.refuse(self, "workers", "one alone has nothing to wait for; give 2 or more")


def _staleness_config(settings: StalenessSettings, machine: Machine, labels: Labels) -> TrainConfig:
    config = base_config(settings, "ba3c", labels["game"], machine)
    workers = settings.workers or max(LEAST_STALE_WORKERS, machine.cores)
    servers = {} if config.exchange.servers else {"parameter_servers": None}  # not that of one worker
    return changed(config, exchange={"workers": workers, "updates": labels["mode"], **servers}, run=settings.run)


def _staleness_report(settings: StalenessSettings, outcomes: Sequence[Outcome]) -> Report:
    """Score, loss and staleness over time."""
    levels = collapse.levels(outcomes, settings.learned_score)
    stale: Callable[[Callable[[Group], Any]], Callable[[Group], Any]]
    stale = lambda measure: lambda group: measure(group) if group["mode"] == "asynchronous" else 0  # noqa: E731
    return Report(
        heading="Synchronous and asynchronous updates",
        caption=f"{CAPTIONS[ONLINE]}; loss of training batches; {spread_text(outcomes)}",
        tables=[
            table("The whole budget", grouped(outcomes, "game", "mode"), {
                "game": "game", "updates": "mode", "runs": count,
                "workers": lambda group: group.config.exchange.workers,
                "agent steps": most("agent_steps"),
                "minutes": mean(_trained_minutes),
                "updates/s": mean(rate("updates_per_s")),
                "staleness (versions)": stale(mean(rate("staleness_mean"))),
                "largest": stale(lambda group: most("staleness_max")(group) if _is_stale(group) else None),
                "best online score": mean(collapse.best_online),
                "last online score": final(ONLINE),
                **collapse.columns(levels),
            })
        ],
        panels=list(_staleness_panels(outcomes)),
        notes=[collapse.rule_text(levels), UPDATES_PAPER],
    )  # fmt: skip


def _is_stale(group: Group) -> bool:
    return any("staleness_max" in record for run in group.runs for record in run.records)


def _trained_minutes(run: Outcome) -> float | None:
    trained = [record for record in run.records if record["kind"] == "train"]
    return trained[-1]["wall_seconds"] / 60.0 if trained else None


def _staleness_panels(outcomes: Sequence[Outcome]) -> Iterator[Panel]:
    """Four for each game."""
    for group in grouped(outcomes, "game"):
        modes = grouped(group.runs, "mode")
        for what, y_label, name, against in (
            ("online score", "raw score", ONLINE, SECONDS),
            ("online score", "raw score", ONLINE, STEPS),
            ("loss", "training loss", "loss", SECONDS),
            ("stale gradients", "mean staleness (versions)", "staleness_mean", SECONDS),
        ):
            panel = learning_panel(
                f"{group['game']}: {what}", y_label, modes, name, lambda mode: mode["mode"], against,
                style=lambda mode: UPDATES.index(mode["mode"]),
            )  # fmt: skip
            if name == "staleness_mean":
                panel = panel._replace(curves=[_never_stale(mode, curve) for mode, curve in zip(modes, panel.curves)])
            yield panel


def _never_stale(mode: Group, curve: Curve) -> Curve:
    """Synchronous gradients never are, and so it is not measured."""
    if mode["mode"] != "synchronous":
        return curve
    x = score_curve(mode.runs, ONLINE, SECONDS, unit_of(mode.runs, SECONDS)[0]).x
    return curve._replace(x=x, y=[0.0] * len(x), low=(), high=())


STALENESS = Study(
    name="synchronous-vs-asynchronous",
    about="score, loss and staleness with either kind of updates (BA3C, figure 3)",
    defaults=StalenessSettings(),
    quick_changes={"minutes": 0.2, "agent_steps": 0, "workers": 2, "repeats": 2},
    axes=lambda settings, machine: product(game=settings.games, seed=settings.seeds, mode=settings.modes),
    point_name="{game}-{mode}-seed{seed}",
    config=_staleness_config,
    report=_staleness_report,
)


@dataclasses.dataclass(frozen=True)
class LearningRateSettings(CollapseSettings):
    """BA3C at growing effective batches, with one learning rate for all of them and with one that grows in proportion,
    the linear scaling rule (Adamski et al. 2018, section 2.4.2, figure 4): which runs learned, and which of these then
    collapsed?"""

    rules: tuple[str, ...] = RULES
    """constant: --learning-rate whatever the batch; linear: times effective batch / --base-batch."""
    batch_size: tuple[int, ...] = (128, 512, 2048)
    """Effective batches, multiples of the number of workers."""
    learning_rate: float = 1e-3
    """Learning rate at --base-batch."""
    base_batch: int = 128
    """Effective batch at which both rules are the same; there, its runs stand for both."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "rules", RULES)
        positive(self, "batch_size")
        checks.above(self, 0.0, "learning_rate")
        checks.at_least(self, 1, "base_batch")

    def rule_of(self, group: Group) -> str:
        """The rule's name; at the base batch that of both."""
        return "both" if group["batch"] == self.base_batch else group["rule"]


def _learning_rate_axes(settings: LearningRateSettings, machine: Machine) -> Iterator[Labels]:
    """From the smallest batch on; at the base batch one rule's alone, since they are the same."""
    for game, batch in itertools.product(settings.games, settings.batch_size):
        rules = settings.rules if batch != settings.base_batch else settings.rules[:1]
        yield from product(game=[game], batch=[batch], rule=rules, seed=settings.seeds)


def _learning_rate_config(settings: LearningRateSettings, machine: Machine, labels: Labels) -> TrainConfig:
    config, batch = base_config(settings, "ba3c", labels["game"], machine), labels["batch"]
    gradients = config.effective_batch // config.batch_size
    if batch % gradients:
        raise UsageError(f"--batch-size {batch}: an update has {gradients} gradients, and they do not divide it evenly")
    rate = settings.learning_rate * (batch / settings.base_batch if labels["rule"] == "linear" else 1.0)
    return changed(config, optimizer={"batch_size": batch // gradients, "learning_rate": rate}, run=settings.run)


def _learning_rate_report(settings: LearningRateSettings, outcomes: Sequence[Outcome]) -> Report:
    """A panel for each batch: the online score with either rule."""
    levels = collapse.levels(outcomes, settings.learned_score)
    rate_of: Callable[[Group], str] = lambda group: f"{group.config.optimizer.learning_rate:.3g}"  # noqa: E731
    several = len(grouped(outcomes, "game")) > 1
    return Report(
        heading="Learning rate and effective batch",
        caption=f"{CAPTIONS[ONLINE]}; {spread_text(outcomes)}",
        tables=[
            table("The whole budget", grouped(outcomes, "game", "batch", "rule"), {
                "game": "game", "effective batch": "batch", "rule": settings.rule_of, "learning rate": rate_of,
                "runs": count, "agent steps": most("agent_steps"),
                "best online score": mean(collapse.best_online),
                "last online score": final(ONLINE),
                **collapse.columns(levels),
            })
        ],
        panels=[
            learning_panel(
                f"{batch['game']}, " * several + f"effective batch {batch['batch']:,}", "raw online score",
                grouped(batch.runs, "batch", "rule"), ONLINE,
                lambda group: f"{settings.rule_of(group).replace('both', 'both rules')}, {rate_of(group)}",
                style=lambda group: RULES.index(group["rule"]),
            )
            for batch in grouped(outcomes, "game", "batch")
        ],
        columns=min(3, len(settings.batch_size)),
        notes=[collapse.rule_text(levels), RULES_PAPER],
    )  # fmt: skip


LEARNING_RATE = Study(
    name="learning-rate",
    about="the linear scaling rule with Adam: learned, then collapsed? (BA3C, figure 4)",
    defaults=LearningRateSettings(),
    quick_changes={"minutes": 0.15, "agent_steps": 0, "batch_size": (64, 512), "base_batch": 64, "repeats": 2},
    axes=_learning_rate_axes,
    point_name="{game}-{batch}-{rule}-seed{seed}",
    config=_learning_rate_config,
    report=_learning_rate_report,
)


# games: section 3.2, table 3 ------------------------------------------------------------------------------------------

SYSTEMS = ("DDRL A3C, 64 nodes", "GA3C", "BA3C", "A3C")
PUBLISHED = {
    "beam_rider": ("14900 (2.7h)", "3000 (24h)", None, "15000 (15h)"),
    "breakout": ("350 (0.5h)", "350 (21h)", "400 (15h)", "500 (11h)"),
    "boxing": ("98 (0.5h)", "92 (2h)", None, None),
    "pong": ("20 (4h)", "18 (1h)", "17 (24h)", "20 (8h)"),
    "seaquest": ("1832 (0.5h)", "1706 (24h)", "1840 (24h)", "2300 (24h)"),
    "space_invaders": ("650 (0.5h)", "600 (24h)", "700 (24h)", "1400 (15h)"),
}
"""Game -> scores of the SYSTEMS, with the hours that they took: Adamski et al. 2018, table 3."""
GAMES_NOTES = (
    (
        "best mean: of the best evaluation of each run, which is chosen by its own score and so flatters; after "
        "hours: when its parameters were taken; maximum: of all games of all evaluations and runs"
    ),
    (
        "the published columns: Adamski et al. 2018, table 3; DDRL A3C on 64 nodes of 12 cores, GA3C with a GPU, BA3C "
        "and A3C on one node; they warn that scores of different implementations are not directly comparable"
    ),
)


@dataclasses.dataclass(frozen=True)
class GamesSettings(BudgetSettings):
    """BA3C on the six games of Adamski et al. 2018 (section 3.2, table 3): mean and maximum of 50 evaluation games with
    frozen parameters, against wall time, beside what they and others published."""

    games: tuple[str, ...] = tuple(PUBLISHED)
    """Games, as for `ddrl train --game`."""
    minutes: float = 30.0
    """Wall time of a run, in minutes (0: as many as --agent-steps take)."""
    eval_games: int = 50
    """Games of an evaluation."""
    eval_every_updates: int = 1000
    """Updates between evaluations."""
    eval_time_share: float = 0.1
    """Largest share of a run's time that evaluations may take."""
    evaluation_minutes: float = 3.0
    """Longest time of one evaluation, in minutes; one that is cut off does not count."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least(self, 1, "eval_games", "eval_every_updates")
        checks.between(self, 0.0, 1.0, "eval_time_share")
        checks.above(self, 0.0, "evaluation_minutes")


def _games_config(settings: GamesSettings, machine: Machine, labels: Labels) -> TrainConfig:
    names = ("eval_games", "eval_every_updates", "eval_time_share", "evaluation_minutes")
    evaluation = {name: getattr(settings, name) for name in names} | {"evaluator": True, "target_score": None}
    return changed(base_config(settings, "ba3c", labels["game"], machine), run=settings.run, evaluation=evaluation)


def _games_report(settings: GamesSettings, outcomes: Sequence[Outcome]) -> Report:
    """A panel for each game: mean and maximum of its evaluation games against time."""
    games = grouped(outcomes, "game")
    published = {
        system: lambda game, place=place: PUBLISHED.get(rom_name(game["game"]), (None,) * len(SYSTEMS))[place]
        for place, system in enumerate(SYSTEMS)
    }
    caption = f"evaluation score: mean and maximum of {settings.eval_games} greedy games with frozen parameters"
    return Report(
        heading="Scores by game against time",
        caption=f"{caption}; {spread_text(outcomes)}",
        tables=[
            table(f"Evaluations of {settings.eval_games} games", games, {
                "game": "game", "runs": count,
                "hours": mean(lambda run: given_seconds(run) / 3600.0),
                "agent steps": most("agent_steps"),
                "evaluations": lambda game: sum(len(played(run)) for run in game.runs),
                "last mean": final(EVALUATION),
                "best mean": mean(of_best("mean")),
                "after hours": mean(of_best("wall_seconds", 3600.0)),
                "maximum": lambda game: max(
                    (float(r["maximum"]) for run in game.runs for r in played(run) if "maximum" in r), default=None
                ),
                **published,
            })
        ],
        panels=[_game_panel(game) for game in games],
        columns=3 if len(games) > 2 else 2,
        notes=GAMES_NOTES,
    )  # fmt: skip


def played(run: Outcome) -> list[Mapping[str, Any]]:
    """Its evaluations whose games were all played to their end."""
    return list(whole(evaluations(run)))


def of_best(name: str, unit: float = 1.0) -> Measure:
    """The measure of a number in the evaluation with the highest mean, None where there is none."""

    def measure(run: Outcome) -> float | None:
        best = max(played(run), key=lambda record: record["mean"], default=None)
        return None if best is None else best[name] / unit

    return measure


def _game_panel(game: Group) -> Panel:
    unit, x_label = unit_of(game.runs, SECONDS)
    curves = [score_curve(game.runs, score, SECONDS, unit, label)
              for score, label in ((EVALUATION, "mean"), (MAXIMUM, "maximum"))]  # fmt: skip
    return Panel(game["game"], x_label, "raw evaluation score", curves)


GAMES = Study(
    name="games",
    about="mean and maximum of 50 games against time, on six games (BA3C, table 3)",
    defaults=GamesSettings(),
    quick_changes={"minutes": 0.25, "eval_every_updates": 100, "eval_time_share": 0.5, "repeats": 2},
    axes=lambda settings, machine: product(game=settings.games, seed=settings.seeds),
    point_name="{game}-seed{seed}",
    config=_games_config,
    report=_games_report,
)
