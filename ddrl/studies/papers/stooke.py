"""Studies of Stooke and Abbeel 2018, Accelerated Methods for Deep Reinforcement Learning."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ddrl import checks, rundir
from ddrl.algorithms import printed_name
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.studies.curves import learning_panel, linear, over, plural, spread_text
from ddrl.studies.figures import Curve, Panel, through
from ddrl.studies.measures import count, final, mean, most, newest, rate, scores_caption, values
from ddrl.studies.papers.secondary_learner import LEARNERS, of_learner, run_point
from ddrl.studies.points import Group, Outcome, Point, grouped, having
from ddrl.studies.settings import (
    EvaluatedSettings,
    ScoredSettings,
    StudySettings,
    TimedSettings,
    base_config,
    budget,
    changed,
    not_empty,
    one_of,
    positive,
    refusals_of,
)
from ddrl.studies.statistics import Interval, bootstrap, bootstrap_ratio
from ddrl.studies.study import Labels, Report, Study, product
from ddrl.studies.tables import Table, table
from ddrl.types import Machine

Sizes = Mapping[str, tuple[int, ...]]
"""Algorithm -> its sizes: simulators, learners, batch size, ..."""


def chosen_sizes(defaults: Sizes, words: Collection[str]) -> dict[str, tuple[int, ...]]:
    """The default sizes, but where words such as a2c=16,64 give others.

    Raises:
        UsageError: words that say nothing.
    """
    chosen = dict(defaults)
    for word in words:
        name, _, numbers = word.partition("=")
        if name not in chosen or not all(n.isdecimal() and int(n) > 0 for n in numbers.split(",")):
            raise UsageError(f"--sizes {word}: write one of {', '.join(chosen)}, = and numbers, as in a2c=16,64")
        chosen[name] = tuple(dict.fromkeys(int(n) for n in numbers.split(",")))
    return chosen


def _size_axes(sizes: Sizes, settings: StudySettings) -> Iterator[Labels]:
    for algorithm, of_algorithm in sizes.items():
        yield from product(algorithm=[algorithm], game=settings.games, size=of_algorithm, seed=settings.seeds)


def _sizes_report(
    settings: ScoredSettings,
    outcomes: Sequence[Outcome],
    heading: str,
    caption: str,
    what: Mapping[str, str],
    **more: Any,
) -> Report:
    """A panel for each algorithm and game, a curve for each size; `what` says by algorithm what its sizes are of."""
    score, games = settings.score_name, len(settings.games)
    return Report(
        heading=heading,
        caption=f"{caption}; {spread_text(outcomes)}",
        tables=[
            table(f"{settings.score} score at the end of the budget", grouped(outcomes, "algorithm", "game", "size"), {
                "algorithm": "algorithm", "game": "game", "size": "size",
                "": lambda group: what[group["algorithm"]],
                "seeds": count, "agent steps": most("agent_steps"), "score": final(score),
                "agent steps/s": mean(rate()),
            })
        ],
        panels=[
            learning_panel(
                f"{printed_name(group['algorithm'])} on {group['game']}", "raw score", grouped(group.runs, "size"),
                score, _size_label(what[group["algorithm"]]),
            )
            for group in grouped(outcomes, "algorithm", "game")
        ],
        columns=min(games, 3) if games > 1 else 2,
        **more,
    )  # fmt: skip


def _size_label(what: str) -> Callable[[Group], str]:
    return lambda group: plural(group["size"], what)


# sampling: section 5.2, figure 2 and table 1 --------------------------------------------------------------------------

RATE = "agent_steps_per_s"
PARTS = ("groups", "barrier")
KINDS = {
    "one": "one group",
    "alternating": "two alternating groups",
    "in-turn": "two alternating groups, one predictor",
    "random": "random actions, no inference",
}
ALTERNATING = ("alternating", "in-turn")
BARRIERS = {"barrier": "barrier every rollout", "free": "each core for itself"}
SAMPLING_PAPER = (
    "Stooke and Abbeel 2018, table 1, DGX-1 (8 P100, 40 cores), A3C-Net: 29.6, 33.0, 35.7, 35.8 thousand agent steps/s "
    "with a barrier every five steps, 31.9, 34.7, 36.7, 38.4 without, by growing number of simulators; figure 2: with "
    "8 simulators per core about 0.8 of the inference-free speed on 16 cores"
)


@dataclasses.dataclass(frozen=True)
class SamplingSettings(StudySettings):
    """Agent steps/s of acting alone. groups: one process, its simulators in one group, or in two that alternate, whose
    queries meet, or wait for each other at one predictor that gives each all cores; beside random actions without
    inference (Stooke and Abbeel 2018, figure 2). barrier: a process for each core, with and without a barrier after
    every rollout (table 1)."""

    parts: tuple[str, ...] = PARTS
    """groups, barrier."""
    simulators_per_core: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    """Simulators for each core."""
    cores: tuple[int, ...] = ()
    """Cores that act together (none given: 1, 2, 4, ... as many as there are here)."""
    seconds: float = 10.0
    """Time of each measurement."""
    repeats: int = 3
    """Measurements of every point, each with a seed of its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "parts", PARTS)
        positive(self, "simulators_per_core", *(["cores"] if self.cores else []))
        checks.above(self, 0.0, "seconds")


def _sampling_axes(settings: SamplingSettings, machine: Machine) -> Iterator[Labels]:
    """Two groups need two simulators."""
    cores = settings.cores or tuple(2**k for k in range(machine.cores.bit_length()))
    for game, seed, per_core in itertools.product(settings.games, settings.seeds, settings.simulators_per_core):
        kinds = [
            ("groups", c, kind) for c in cores for kind in KINDS if kind not in ALTERNATING or per_core * c % 2 == 0
        ]
        kinds += [("barrier", max(cores), kind) for kind in BARRIERS]
        for part, c, kind in kinds:
            if part in settings.parts:
                yield {"part": part, "game": game, "cores": c, "per_core": per_core, "kind": kind, "seed": seed}


def _sampling_config(settings: SamplingSettings, machine: Machine, labels: Labels) -> TrainConfig:
    cores, per_core, kind = labels["cores"], labels["per_core"], labels["kind"]
    if labels["part"] == "barrier":  # of each process
        sampling = {"simulators": per_core, "groups": 2 if per_core % 2 == 0 else 1}
    else:
        sampling = {"simulators": cores * per_core, "groups": 2 if kind in ALTERNATING else 1}
    if kind == "in-turn":
        sampling |= {"predictors": 1, "predict_batch": cores * per_core // 2}
    config = base_config(settings, "a2c", labels["game"], machine)
    return changed(config, sampling=sampling, run={"minutes": settings.seconds / 60.0})


def measure_point(point: Point, path: Path) -> None:
    """Measures, and writes the rate into result.json.

    Raises:
        UsageError, RuntimeError: see measure_sampling.
    """
    from ddrl.bench.sampling import Sampling, measure_sampling

    kind, cores = point.labels["kind"], point.labels["cores"]
    if point.labels["part"] == "groups":
        what = Sampling(point.config, cores=cores, inference=kind != "random")
    else:
        what = Sampling(point.config, processes=cores, barrier=kind == "barrier")
    path.mkdir(parents=True, exist_ok=True)
    with rundir.locked(path):
        measured = measure_sampling(what, 60.0 * point.config.run.minutes)
        rundir.write_json(path / rundir.RESULT, {"status": "finished", RATE: measured})


def _sampling_report(settings: SamplingSettings, outcomes: Sequence[Outcome]) -> Report:
    """Rates and their ratios to the inference-free rate of as many cores."""
    tables: list[Table] = []
    panels: list[Panel] = []
    for group in grouped(outcomes, "game"):
        if in_groups := having(group.runs, part="groups"):
            tables.append(_groups_table(group["game"], in_groups))
            panels += _groups_panels(group["game"], in_groups)
        if in_processes := having(group.runs, part="barrier"):
            tables.append(_barrier_table(group["game"], in_processes))
            panels.append(_sampling_panel(f"{group['game']}, a process for each core", in_processes, BARRIERS))
    caption = f"no learner, initial parameters; {spread_text(outcomes)}"
    return Report("Acting without learning", caption, tables, panels, min(3, len(panels)), [SAMPLING_PAPER])


def _measured(run: Outcome) -> float:
    return run.result[RATE]


def inference_free(outcomes: Sequence[Outcome]) -> list[float]:
    """Rates of the number of simulators that is fastest with random actions; none where it was not measured."""
    random = [list(map(_measured, group.runs)) for group in grouped(having(outcomes, kind="random"), "per_core")]
    return max(random, key=lambda rates: sum(rates) / len(rates), default=[])


def _groups_table(game: str, outcomes: Sequence[Outcome]) -> Table:
    limits = {group["cores"]: inference_free(group.runs) for group in grouped(outcomes, "cores")}
    rows = [group for cores in grouped(outcomes, "cores") for group in grouped(cores.runs, "cores", "per_core", "kind")]
    return table(f"{game}: one process", rows, {
        "cores": "cores", "simulators per core": "per_core", "acting": lambda group: KINDS[group["kind"]],
        "measured": count, "agent steps/s": mean(_measured),
        "ratio to inference-free": lambda group: (
            None if group["kind"] == "random"
            else bootstrap_ratio(values(_measured, group.runs), limits[group["cores"]])
        ),
    })  # fmt: skip


def _barrier_table(game: str, outcomes: Sequence[Outcome]) -> Table:
    def rates(kind: str) -> Callable[[Group], list[float | None]]:
        return lambda group: values(_measured, having(group.runs, kind=kind))

    def mean_rate(kind: str) -> Callable[[Group], Interval | None]:
        return lambda group: bootstrap(rates(kind)(group))

    return table(f"{game}: a process for each core", grouped(outcomes, "cores", "per_core"), {
        "cores": "cores", "simulators": lambda group: group["cores"] * group["per_core"],
        **{f"agent steps/s, {text}": mean_rate(kind) for kind, text in BARRIERS.items()},
        "ratio": lambda group: bootstrap_ratio(rates("barrier")(group), rates("free")(group)),
    })  # fmt: skip


def _groups_panels(game: str, outcomes: Sequence[Outcome]) -> Iterator[Panel]:
    for group in grouped(outcomes, "cores"):
        panel = _sampling_panel(f"{game}, one process on {plural(group['cores'], 'cores')}", group.runs, KINDS)
        x = sorted({run.point.labels["per_core"] for run in group.runs})
        if limit := bootstrap(inference_free(group.runs)):
            line = Curve("fastest without inference", x, [limit.mean / group["cores"]] * len(x), reference=True)
            panel = panel._replace(curves=[*panel.curves, line])
        yield panel


def _sampling_panel(title: str, outcomes: Sequence[Outcome], kinds: Mapping[str, str]) -> Panel:
    curves = [
        over(
            grouped(having(outcomes, kind=kind), "per_core"), "per_core",
            mean(lambda run: _measured(run) / run.point.labels["cores"]), label, style,
        )
        for style, (kind, label) in enumerate(kinds.items())
    ]  # fmt: skip
    return Panel(title, "simulators per core", "agent steps/s per core", curves, log_x=True, zero=True)


SAMPLING = Study(
    name="sampling",
    about="agent steps/s without learning, by simulators and groups (Stooke and Abbeel 2018, figure 2)",
    defaults=SamplingSettings(),
    quick_changes={"simulators_per_core": (2, 8), "cores": (1,), "seconds": 1.0, "repeats": 1},
    axes=_sampling_axes,
    point_name="{part}-{game}-{cores}x{per_core}-{kind}-seed{seed}",
    config=_sampling_config,
    report=_sampling_report,
    run=measure_point,
)


# simulators: section 5.3, figure 3 ------------------------------------------------------------------------------------

SIMULATOR_SIZES = {
    "a2c": (16, 32, 64, 128, 256, 512),  # simulators
    "a3c": (1, 2, 4, 8, 16, 32),  # learners of 16 simulators
    "ppo": (8, 16, 32, 64, 128, 256, 512),  # simulators, at 2,048 data-points a rollout
    "appo": (1, 2, 4),  # local steps between two synchronizations
}
"""Of the paper, by algorithm."""
SIZE_NAMES = {"a2c": "simulators", "a3c": "learners", "ppo": "simulators", "appo": "local steps"}
SIMULATORS_PER_CORE = 64  # by default; more fit, but rollouts then take long
PPO_ROLLOUT = 2048  # 8 simulators x 256 steps
A2C_BATCH = 80  # 16 simulators x 5 steps, at which the paper's learning rate holds


@dataclasses.dataclass(frozen=True)
class SimulatorsSettings(ScoredSettings):
    """Score against agent steps with more and more simulators (Stooke and Abbeel 2018, figure 3): A2C whose batch grows
    with them and whose rate grows with its square root, A3C with more learners, PPO with shorter rollouts at a
    constant batch, APPO with more local steps between two synchronizations."""

    algorithms: tuple[str, ...] = ("a2c", "a3c", "ppo", "appo")
    """Which of a2c, a3c, ppo and appo."""
    sizes: tuple[str, ...] = ()
    """Sizes instead of those that fit this machine: a2c=16,64,256 (simulators) a3c=1,2,4 (learners) ppo=8,64
    (simulators) appo=1,4 (local steps)."""
    learners: int = 0
    """Workers of APPO (0: one per core, 2 to 8)."""
    score: Literal["online", "evaluation"] = "online"
    """online: of training games; evaluation: of greedy games with frozen parameters, which take time of their own."""
    random_start_steps: int = 1000
    """Random actions of every simulator before training, up to this, so that they are not all in the same state."""
    agent_steps: int = 2_000_000
    """Agent steps of a point, over all its workers (0: as many as --minutes allow)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "algorithms", SIMULATOR_SIZES)
        self.sizes_on(Machine(1, 1 << 40))

    def sizes_on(self, machine: Machine) -> dict[str, tuple[int, ...]]:
        """Sizes by algorithm: those asked for, else the paper's as far as they fit the machine.

        Raises:
            UsageError: --sizes that say nothing.
        """
        simulators = SIMULATORS_PER_CORE * machine.cores
        limits = {
            "a2c": simulators,
            "a3c": max(2, machine.cores),
            "ppo": simulators,
            "appo": max(SIMULATOR_SIZES["appo"]),
        }
        sizes = {name: tuple(s for s in SIMULATOR_SIZES[name] if s <= limits[name]) for name in self.algorithms}
        return chosen_sizes(sizes, self.sizes)


def _simulators_config(settings: SimulatorsSettings, machine: Machine, labels: Labels) -> TrainConfig:
    algorithm, size = labels["algorithm"], labels["size"]
    with refusals_of(f"{algorithm} with {size} {SIZE_NAMES[algorithm]}"):
        name = "a2c" if (algorithm, size) == ("a3c", 1) else algorithm  # one learner is A2C
        config = base_config(settings, name, labels["game"], machine)
        return changed(
            config,
            **_SIZED[algorithm](settings, machine, config, size),
            run=settings.run,
            environment={"random_start_steps": settings.random_start_steps},
            evaluation={"evaluator": settings.score == "evaluation"},
        )


Changes = dict[str, dict[str, Any]]
"""Group of the settings -> what changes in it."""


def _a2c(settings: SimulatorsSettings, machine: Machine, config: TrainConfig, size: int) -> Changes:
    """The batch grows with the simulators, and the rate with the batch's square root."""
    scaling = {"learning_rate_scaling": "sqrt", "learning_rate_batch": A2C_BATCH}
    return {"sampling": {"simulators": size}, "optimizer": scaling}


def _a3c(settings: SimulatorsSettings, machine: Machine, config: TrainConfig, size: int) -> Changes:
    """Nothing else changes with the learners."""
    return {"exchange": {"workers": size}} if size > 1 else {}


def _ppo(settings: SimulatorsSettings, machine: Machine, config: TrainConfig, size: int) -> Changes:
    """Shorter rollouts of more simulators, and the same data-points in each, in 4 minibatches an epoch."""
    total = 256 if settings.preset == "smoke" else PPO_ROLLOUT
    if total % size:
        raise UsageError(f"they do not divide the rollout of {total} data-points")
    groups = config.sampling.groups if size % config.sampling.groups == 0 else 1
    return {
        "algorithm": {"unroll_length": total // size},
        "sampling": {"simulators": size, "groups": groups},
        "optimizer": {"batch_size": total // 4},
    }


def _appo(settings: SimulatorsSettings, machine: Machine, config: TrainConfig, size: int) -> Changes:
    return {"exchange": {"workers": settings.learners or max(2, min(machine.cores, 8)), "local_steps": size}}


_SIZED: Mapping[str, Callable[..., Changes]] = {"a2c": _a2c, "a3c": _a3c, "ppo": _ppo, "appo": _appo}

SIMULATORS = Study(
    name="simulators",
    about="score against agent steps, by number of simulators or learners (Stooke and Abbeel 2018, figure 3)",
    defaults=SimulatorsSettings(),
    quick_changes={
        "minutes": 0.12, "agent_steps": 0, "random_start_steps": 10,
        "sizes": ("a2c=8,16", "a3c=2", "ppo=8,16", "appo=1,2"),
    },
    axes=lambda settings, machine: _size_axes(settings.sizes_on(machine), settings),
    point_name="{algorithm}-{game}-{size}-seed{seed}",
    config=_simulators_config,
    report=lambda settings, outcomes: _sizes_report(
        settings, outcomes, "Learning with many simulators", scores_caption(settings.score_name), SIZE_NAMES
    ),
)  # fmt: skip


# speed: section 5.5, tables 2 and 3 -----------------------------------------------------------------------------------

AGENT_STEPS = 50e6
SIMULATORS_PER_WORKER = {"a2c": 16, "a3c": 16, "ppo": 8, "appo": 8}
"""As in the paper."""
OF_SEVERAL_WORKERS = ("a3c", "appo")
PAPER_HOURS = {
    "a2c": {1: 3.8, 2: 2.2, 4: 1.2, 8: 0.59},
    "a3c": {2: 2.4, 4: 1.3, 8: 0.65},
    "ppo": {1: 4.4, 2: 2.6, 4: 1.5, 8: 1.1},
    "appo": {2: 2.8, 4: 1.5, 8: 0.71},
}
"""By number of GPUs: table 2."""
HARDWARE = "DGX-1: a P100 GPU and 5 cores for each worker"


@dataclasses.dataclass(frozen=True)
class SpeedSettings(TimedSettings):
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

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "algorithms", SIMULATORS_PER_WORKER)
        checks.at_least(self, 1, "cores_per_worker")
        if self.workers:
            positive(self, "workers")


def _speed_axes(settings: SpeedSettings, machine: Machine) -> Iterator[Labels]:
    room = machine.cores // settings.cores_per_worker
    workers = settings.workers or tuple(2**k for k in range(room.bit_length()))
    if not workers or max(workers) > room:
        raise UsageError(
            f"--workers {max(workers, default=1)} x --cores-per-worker {settings.cores_per_worker}: this machine has "
            f"{machine.cores} cores"
        )
    for labels in product(algorithm=settings.algorithms, game=settings.games, workers=workers, seed=settings.seeds):
        if labels["workers"] > 1 or labels["algorithm"] not in OF_SEVERAL_WORKERS:
            yield labels


def _speed_config(settings: SpeedSettings, machine: Machine, labels: Labels) -> TrainConfig:
    algorithm, workers = labels["algorithm"], labels["workers"]
    exchange: dict[str, Any] = {"workers": workers}
    if algorithm not in OF_SEVERAL_WORKERS:
        exchange = exchange | {"exchange": "allreduce", "parameter_servers": None} if workers > 1 else {}
    return changed(
        base_config(settings, algorithm, labels["game"], machine),
        sampling={"simulators": SIMULATORS_PER_WORKER[algorithm]},
        exchange=exchange,
        run=budget(settings.seconds / 60.0) | {"log_every_seconds": 1.0},
    )


def hours(rate: Interval | None) -> Interval | None:
    """Hours for 50 million agent steps at a rate per second; the bounds change places."""
    return rate.map(lambda steps: AGENT_STEPS / steps / 3600.0) if rate and rate.mean and rate.low != 0.0 else None


def _speed_report(settings: SpeedSettings, outcomes: Sequence[Outcome]) -> Report:
    """Rates, hours and speed-ups by workers, with the paper's."""
    measure = rate(warm_up_seconds=settings.warm_up_seconds)

    def speed_up(group: Group) -> Interval | None:
        """Over the fewest workers of the same algorithm and game."""
        first = min(grouped(having(outcomes, **{name: group[name] for name in ("algorithm", "game")}), "workers"),
                    key=lambda other: other["workers"])  # fmt: skip
        ratio = bootstrap_ratio(values(measure, group.runs), values(measure, first.runs))
        return None if first["workers"] == group["workers"] else ratio

    return Report(
        heading="Learning speed by number of workers",
        caption=f"agent steps/s while learning, after {settings.warm_up_seconds:g} s; {spread_text(outcomes)}",
        tables=[
            table(
                f"Hours for {AGENT_STEPS / 1e6:.0f} million agent steps",
                [group for line in grouped(outcomes, "algorithm", "game")
                 for group in grouped(line.runs, "algorithm", "game", "workers")],
                {
                    "algorithm": "algorithm", "game": "game", "workers": "workers",
                    "cores": lambda group: group.runs[0].point.cores,
                    "runs": count, "agent steps/s": mean(measure), "hours": lambda group: hours(mean(measure)(group)),
                    "speed-up": speed_up,
                    "paper's hours": lambda group: PAPER_HOURS[group["algorithm"]].get(group["workers"]),
                },
            )
        ],
        panels=[panel for game in grouped(outcomes, "game") for panel in _speed_panels(game, mean(measure))],
        notes=[f"the paper's hours: Stooke and Abbeel 2018, table 2, {HARDWARE}"],
    )  # fmt: skip


def _speed_panels(game: Group, speed: Callable[[Group], Interval | None]) -> Iterator[Panel]:
    """Rates beside lines that grow with the workers, and hours beside the paper's."""
    rates, times = [], []
    for style, line in enumerate(grouped(game.runs, "algorithm")):
        groups, name = grouped(line.runs, "workers"), printed_name(line["algorithm"])
        rates.append(over(groups, "workers", speed, name, style))
        times.append(over(groups, "workers", lambda group: hours(speed(group)), name, style))
        paper = sorted(PAPER_HOURS[line["algorithm"]].items())
        times.append(through(paper, f"{name}, the paper's", style=style, reference=True))
    yield Panel(game["game"], "workers", "agent steps/s", [*rates, *linear(rates)], log_x=True, zero=True)
    title = f"{game['game']}, {AGENT_STEPS / 1e6:.0f} million agent steps"
    yield Panel(title, "workers (ours: cores; the paper's: GPUs)", "hours", times, log_x=True, log_y=True)


SPEED = Study(
    name="speed",
    about="hours for 50 million agent steps, by number of workers (Stooke and Abbeel 2018, table 2)",
    defaults=SpeedSettings(),
    quick_changes={"seconds": 7.0, "warm_up_seconds": 2.0, "algorithms": ("a2c", "a3c", "ppo")},
    axes=_speed_axes,
    point_name="{algorithm}-{game}-{workers}workers-seed{seed}",
    config=_speed_config,
    report=_speed_report,
    cores=lambda settings, labels: labels["workers"] * settings.cores_per_worker,
)


# Q-learning with batches of any size, at one training intensity -------------------------------------------------------

INTENSITY = 8  # uses of each transition, whatever the batch
RATE_FACTORS: Mapping[str, Mapping[int, float]] = {
    "dqn": {32: 1.0, 512: 3.0, 1024: 6.0},
    "categorical-dqn": {32: 1.0, 256: 1.68},
    "rainbow": {32: 1.0},
}
"""Learning rate by batch size, over that of batch 32 (Stooke and Abbeel 2018, section 5.4.1)."""
EPSILONS = {"categorical-dqn": 0.01, "rainbow": 0.005}
"""Adam's epsilon times the batch size."""


def rate_factor(algorithm: str, size: int) -> float:
    """Between two of the published sizes on the line through their logarithms, beyond them as at the last one."""
    sizes, factors = zip(*sorted(RATE_FACTORS[algorithm].items()))
    return float(np.exp(np.interp(np.log(size), np.log(sizes), np.log(factors))))


def with_batch(config: TrainConfig, algorithm: str, size: int, rate: float = 0.0) -> TrainConfig:
    """Batches of another size, and fewer updates, so that every transition is used as often.

    The target period is rounded to whole updates. RMSProp's epsilon, inside the root, falls with the square of the
    batch: the published one belongs to gradients that are summed.

    Args:
        algorithm: dqn, categorical-dqn, rainbow.
        rate: learning rate (0: it grows as published).

    Raises:
        UsageError: a size that is not a multiple of 8.
    """
    if size % INTENSITY:
        raise UsageError(f"batch size {size}: give a multiple of {INTENSITY}, the uses of each transition")
    before, steps = config.optimizer, size // INTENSITY
    growth = rate_factor(algorithm, size) / rate_factor(algorithm, before.batch_size)
    optimizer = {"batch_size": size, "learning_rate": rate or before.learning_rate * growth}
    if algorithm in EPSILONS:
        optimizer["adam_epsilon"] = EPSILONS[algorithm] / size
    if before.optimizer == "rmsprop-centered":
        optimizer["rmsprop_epsilon"] = before.rmsprop_epsilon * (before.batch_size / size) ** 2
    unit = max(steps, config.rows)
    period = max(1, round(config.replay_data.target_period / unit)) * unit
    return changed(config, optimizer=optimizer, algorithm={"steps_per_update": steps, "target_period": period})


# batch-size: section 5.4.1, figures 4 and 12 --------------------------------------------------------------------------

BATCH_SIZES = {"dqn": (32, 512, 1024, 2048), "categorical-dqn": (32, 256, 512, 1024, 2048), "rainbow": (32, 512)}
"""By algorithm."""
BATCHES_PAPER = (
    "Stooke and Abbeel 2018: DQN learned as well up to batch 512, and at larger ones lost scores in some games; "
    "Categorical DQN up to 2,048; epsilon-Rainbow up to 512"
)


@dataclasses.dataclass(frozen=True)
class BatchSizeSettings(EvaluatedSettings):
    """Score against agent steps by batch size (Stooke and Abbeel 2018, figures 4 and 12). Every transition is used 8
    times whatever the size, so larger batches make fewer updates. DQN's learning rate grows with the batch as in the
    paper; Categorical DQN and epsilon-Rainbow keep theirs, and Adam's epsilon falls with the batch."""

    algorithms: tuple[str, ...] = tuple(BATCH_SIZES)
    """Which of dqn, categorical-dqn and rainbow."""
    sizes: tuple[str, ...] = ()
    """Batch sizes instead of the paper's, multiples of 8: dqn=32,512 categorical-dqn=2048."""
    agent_steps: int = 2_000_000
    """Agent steps of a point (0: as many as --minutes allow; the paper: 50 million)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "algorithms", BATCH_SIZES)
        self.chosen()

    def chosen(self) -> dict[str, tuple[int, ...]]:
        """Algorithm -> its batch sizes."""
        return chosen_sizes({name: BATCH_SIZES[name] for name in self.algorithms}, self.sizes)


def _batches_config(settings: BatchSizeSettings, machine: Machine, labels: Labels) -> TrainConfig:
    algorithm = labels["algorithm"]
    return settings.scored(
        with_batch(base_config(settings, algorithm, labels["game"], machine), algorithm, labels["size"])
    )


def _batches_report(settings: BatchSizeSettings, outcomes: Sequence[Outcome]) -> Report:
    what = dict.fromkeys(BATCH_SIZES, "per batch")
    report = _sizes_report(
        settings, outcomes, "Q-learning by batch size", settings.caption, what, notes=[BATCHES_PAPER]
    )
    one_game = len(settings.games) == 1
    return dataclasses.replace(report, columns=min(3, len(report.panels))) if one_game else report


BATCH_SIZE = Study(
    name="batch-size",
    about="Q-learning with large batches (Stooke and Abbeel 2018, figure 4)",
    defaults=BatchSizeSettings(),
    quick_changes={
        "agent_steps": 16_000, "eval_every_steps": 2000, "eval_games": 20,
        "sizes": ("dqn=32,128", "categorical-dqn=32,128", "rainbow=32"),
    },
    axes=lambda settings, machine: _size_axes(settings.chosen(), settings),
    point_name="{algorithm}-{game}-{size}-seed{seed}",
    config=_batches_config,
    report=_batches_report,
)  # fmt: skip


# secondary-learner: appendix B ----------------------------------------------------------------------------------------

NORM = "parameter_norm/all"
SECONDARY_PAPER = (
    "Stooke and Abbeel 2018, appendix B, Breakout: a secondary learner of batch 64 kept up with its sampler of 2,048; "
    "one of 2,048 learned nothing beside a sampler of 64; two of 256 scored alike"
)


@dataclasses.dataclass(frozen=True)
class SecondarySettings(EvaluatedSettings):
    """A secondary DQN learner trains from nothing but the replay of a normal one, the sampler, with batches of another
    size: where it keeps up, optimization does not limit large batches (Stooke and Abbeel 2018, appendix B). Both begin
    with equal parameters and use every transition 8 times. A point that is interrupted begins anew."""

    repeats: int = 2
    """Runs of every point, each with a seed of its own."""
    pairs: tuple[str, ...] = ("2048:64", "64:2048", "256:256")
    """Batch sizes of sampler and secondary learner, multiples of 8."""
    agent_steps: int = 2_000_000
    """Agent steps of a point (0: as many as --minutes allow; the paper: some 50 million)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        not_empty(self, "pairs")
        if self.score == "online":
            raise UsageError("--score online: the secondary learner plays no training games; use evaluation")
        self.parsed()

    def parsed(self) -> list[dict[str, int]]:
        """The batch sizes of both learners by their names.

        Raises:
            UsageError: a pair that says nothing.
        """
        pairs = []
        for words in self.pairs:
            sizes = words.split(":")
            if len(sizes) != 2 or not all(size.isdecimal() and int(size) > 0 for size in sizes):
                raise UsageError(f"--pairs {words}: write batch sizes of sampler and secondary learner, as in 2048:64")
            pairs.append(dict(zip(LEARNERS, map(int, sizes))))
        return pairs


def _secondary_axes(settings: SecondarySettings, machine: Machine) -> Iterator[Labels]:
    for game, pair, seed in itertools.product(settings.games, settings.parsed(), settings.seeds):
        yield {"game": game, **pair, "seed": seed}


def _secondary_config(settings: SecondarySettings, machine: Machine, labels: Labels) -> TrainConfig:
    """The sampler's."""
    config = changed(base_config(settings, "dqn", labels["game"], machine), sampling={"schedule": "concurrent"})
    if not config.single_process:
        raise UsageError("secondary-learner: its two learners share one process; leave workers out of --train-options")
    sizes = [labels[learner] for learner in LEARNERS]
    config = with_batch(config, "dqn", max(sizes))  # a target period that suits both
    return settings.scored(with_batch(config, "dqn", labels["sampler"]))


def secondary_config(point: Point) -> TrainConfig:
    """Settings of the secondary learner."""
    return with_batch(point.config, "dqn", point.labels["secondary"])


def _secondary_report(settings: SecondarySettings, outcomes: Sequence[Outcome]) -> Report:
    """Figures 6 to 8: scores of both learners, and the norms of their parameters; a column for each pair."""
    pairs = grouped(outcomes, "game", *LEARNERS)
    rows = [learner for pair in pairs for learner in _learners(pair)]
    shown = ((settings.score_name, "raw score"), (NORM, "norm of the parameters"))
    return Report(
        heading="A secondary DQN learner beside the one that acts",
        caption=f"{settings.caption}; {spread_text(outcomes)}",
        tables=[
            table("At the end of the budget", rows, {
                "game": "game", "learner": "learner", "batch size": "size",
                "beside": lambda group: f"{group['other']} of {group['other_size']:,}",
                "seeds": count, "updates": most("update"), "score": final(settings.score_name),
                "norm of parameters": mean(newest(NORM)),
            })
        ],
        panels=[
            learning_panel(
                f"{pair['game']}: sampler {pair['sampler']:,}, secondary {pair['secondary']:,}", y_label,
                _learners(pair), name, lambda group: f"{group['learner']}, {group['size']:,}", among=pair.runs,
            )
            for name, y_label in shown
            for pair in pairs
        ],
        columns=len(pairs),
        notes=[SECONDARY_PAPER],
    )  # fmt: skip


def _learners(pair: Group) -> list[Group]:
    """The runs of a pair by learner."""
    groups = []
    for learner, other in (LEARNERS, LEARNERS[::-1]):
        labels = {"game": pair["game"], "learner": learner, "size": pair[learner], "other": other}
        runs = [of_learner(run, learner) for run in pair.runs]
        groups.append(Group(labels | {"other_size": pair[other]}, runs))
    return groups


SECONDARY_LEARNER = Study(
    name="secondary-learner",
    about="DQN beside a second learner from its replay (Stooke and Abbeel 2018, appendix B)",
    defaults=SecondarySettings(),
    quick_changes={
        "repeats": 1, "agent_steps": 24_000, "eval_every_steps": 3000, "eval_games": 20, "pairs": ("256:32", "32:256")
    },
    axes=_secondary_axes,
    point_name="{game}-{sampler}-secondary-{secondary}-seed{seed}",
    config=_secondary_config,
    report=_secondary_report,
    run=lambda point, path: run_point(point, secondary_config(point), path),
)  # fmt: skip


# norms: appendix C, figure 9 ------------------------------------------------------------------------------------------

ALGORITHM = "categorical-dqn"
OPTIMIZERS = {"adam": "Adam", "rmsprop": "RMSProp"}
RMSPROP = {"rmsprop_decay": 0.95, "rmsprop_epsilon": 1e-6, "rmsprop_epsilon_inside": True}
"""DQN's decay, and the epsilon of the program that the paper names; it tells neither."""
PARAMETERS = "norm of the parameters"
QUANTITIES = {"parameter_norm": PARAMETERS, "gradient_norm": "norm of a gradient", "step_norm": "norm of a step"}
NORMS_PAPER = (
    "Stooke and Abbeel 2018, appendix C: with Adam the dense layer's parameters are alike for all batch sizes at one "
    "learning rate, and the first convolution's spread; RMSProp needs 20 times the rate from 64 to 1,024; larger "
    "batches have smaller gradients and larger steps"
)


class Setup(NamedTuple):
    """Optimizer, batch size, learning rate."""

    optimizer: str
    size: int
    rate: float

    @property
    def labels(self) -> dict[str, str]:
        """Of its points: the optimizer, and the rest such as 64, 0.00042."""
        return {"optimizer": self.optimizer, "setup": f"{self.size}, {self.rate:g}"}


@dataclasses.dataclass(frozen=True)
class NormsSettings(EvaluatedSettings):
    """Norms of parameters, gradients and steps of the first convolution and of the dense layer while Categorical DQN
    learns with batches of several sizes: Adam beside RMSProp (Stooke and Abbeel 2018, appendix C, figure 9). Every
    transition is used 8 times whatever the size."""

    games: tuple[str, ...] = ("qbert",)
    """Games, as for `ddrl train --game`."""
    repeats: int = 2
    """Runs of every point, each with a seed of its own."""
    setups: tuple[str, ...] = (
        "adam:64:4.2e-4", "adam:256:4.2e-4", "adam:1024:4.2e-4",
        "rmsprop:64:1e-4", "rmsprop:64:2.5e-4", "rmsprop:64:5e-4", "rmsprop:256:1.1e-3", "rmsprop:1024:5e-3",
    )  # fmt: skip
    """Optimizer (adam or rmsprop), batch size and learning rate of each. Of RMSProp at 64 the first is slow and the
    third unstable, as in the paper."""
    layers: tuple[str, ...] = ("conv0", "dense")
    """Layers that are shown: names of the network's tensors before the first /."""
    norms_every_steps: int = 10_000
    """Agent steps between measures."""
    agent_steps: int = 2_000_000
    """Agent steps of a point (0: as many as --minutes allow; the paper: 50 million)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        not_empty(self, "setups", "layers")
        checks.at_least(self, 1, "norms_every_steps")
        self.parsed()

    def parsed(self) -> list[Setup]:
        """The setups.

        Raises:
            UsageError: one that says nothing.
        """
        return [_setup(words) for words in self.setups]


def _setup(words: str) -> Setup:
    optimizer, _, rest = words.partition(":")
    size, _, rate = rest.partition(":")
    try:
        setup = Setup(optimizer, int(size), float(rate))
    except ValueError:
        setup = None
    if setup is None or optimizer not in OPTIMIZERS or setup.size < 1 or not 0 < setup.rate < 1:
        raise UsageError(f"--setups {words}: write optimizer, batch size and learning rate, as in adam:64:4.2e-4")
    return setup


def _norms_axes(settings: NormsSettings, machine: Machine) -> Iterator[Labels]:
    for game, setup, seed in itertools.product(settings.games, settings.parsed(), settings.seeds):
        yield {"game": game, **setup.labels, "seed": seed}


def _norms_config(settings: NormsSettings, machine: Machine, labels: Labels) -> TrainConfig:
    setup = next(setup for setup in settings.parsed() if setup.labels.items() <= labels.items())
    config = with_batch(base_config(settings, ALGORITHM, labels["game"], machine), ALGORITHM, setup.size, setup.rate)
    config = settings.scored(changed(config, optimizer={"optimizer": setup.optimizer, **RMSPROP}))
    return changed(config, run={"norms_every_updates": max(1, settings.norms_every_steps * INTENSITY // setup.size)})


def _norms_report(settings: NormsSettings, outcomes: Sequence[Outcome]) -> Report:
    """Figure 9: scores and norms; the last values as a table."""
    names = [f"{quantity}/{layer}" for layer in settings.layers for quantity in QUANTITIES]
    return Report(
        heading="Norms by batch size and optimizer, Categorical DQN",
        caption=f"curves: batch size, learning rate; {settings.caption}; {spread_text(outcomes)}",
        tables=[
            table("At the end of the budget", grouped(outcomes, "game", "optimizer", "setup"), {
                "game": "game", "optimizer": "optimizer", "batch, rate": "setup", "seeds": count,
                "score": final(settings.score_name),
                **{name: mean(newest(name)) for name in names},
            })
        ],
        panels=list(_norms_panels(settings, outcomes)),
        columns=len(grouped(outcomes, "optimizer")) * (2 if len(settings.layers) == 2 else 1),
        notes=[NORMS_PAPER],
    )  # fmt: skip


def _norms_panels(settings: NormsSettings, outcomes: Sequence[Outcome]) -> Iterator[Panel]:
    """Optimizers side by side: scores, norms of all parameters, then each quantity of each layer."""
    for game in grouped(outcomes, "game"):
        shown = [
            (settings.score_name, f" on {game['game']}", "raw score"),
            ("parameter_norm/all", ", all layers", PARAMETERS),
        ]
        for quantity, text in QUANTITIES.items():
            shown += [(f"{quantity}/{layer}", f", {layer}", text) for layer in settings.layers]
        for name, what, y_label in shown:
            for group in grouped(game.runs, "optimizer"):
                title, setups = f"{OPTIMIZERS[group['optimizer']]}{what}", grouped(group.runs, "setup")
                yield learning_panel(title, y_label, setups, name, lambda setup: setup["setup"], among=game.runs)


NORMS = Study(
    name="norms",
    about="norms of layers by batch size, Adam and RMSProp (Stooke and Abbeel 2018, appendix C)",
    defaults=NormsSettings(),
    quick_changes={
        "repeats": 1, "agent_steps": 16_000, "eval_every_steps": 2000, "eval_games": 20, "norms_every_steps": 500,
        "layers": ("q0", "q1"), "setups": ("adam:32:1e-3", "adam:128:1e-3", "rmsprop:32:1e-3", "rmsprop:128:2e-3"),
    },
    axes=_norms_axes,
    point_name=lambda settings, labels: (
        f"{labels['game']}-{labels['optimizer']}-{labels['setup'].replace(', ', '-')}-seed{labels['seed']}"
    ),
    config=_norms_config,
    report=_norms_report,
)  # fmt: skip
