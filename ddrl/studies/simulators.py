"""`ddrl study simulators`: learning with many simulators (Stooke and Abbeel 2018, section 5.3 and figure 3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.presets import Machine
from ddrl.studies.curves import CAPTIONS, EVALUATION, ONLINE, score_curve, spread_text, steps_unit
from ddrl.studies.figures import Panel
from ddrl.studies.groups import grouped
from ddrl.studies.metrics import agent_steps_per_second, bootstrap, final_metric
from ddrl.studies.points import Outcome, Point
from ddrl.studies.settings import (
    Budget,
    StudySettings,
    base_config,
    budget,
    changed,
    check_budget,
    game_name,
    one_of,
)  # fmt: skip
from ddrl.studies.study import Report, Study
from ddrl.studies.tables import Table

SIZES = {
    "a2c": (16, 32, 64, 128, 256, 512),  # simulators
    "a3c": (1, 2, 4, 8, 16, 32),  # learners of 16 simulators
    "ppo": (8, 16, 32, 64, 128, 256, 512),  # simulators, at 2,048 data-points a rollout
    "appo": (1, 2, 4),  # local steps between two synchronizations
}
"""Of the paper, by algorithm."""
WHAT = {"a2c": "simulators", "a3c": "learners", "ppo": "simulators", "appo": "local steps"}
SIMULATORS_PER_CORE = 64  # by default; more fit, but rollouts then take long
PPO_ROLLOUT = 2048  # 8 simulators x 256 steps
A2C_BATCH = 80  # 16 simulators x 5 steps, at which the paper's learning rate holds
WARM_UP_SECONDS = 10.0  # that do not count in rates; a third of shorter runs


@dataclasses.dataclass(frozen=True)
class SimulatorsSettings(Budget, StudySettings):
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
    score: str = "online"
    """online: of training games; evaluation: of greedy games with frozen parameters, which take time of their own."""
    random_start_steps: int = 1000
    """Random actions of every simulator before training, up to this, so that they are not all in the same state."""
    agent_steps: int = 2_000_000
    """Agent steps of a point, over all its workers (0: as many as --minutes allow)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_budget(self)
        one_of(self, "algorithms", SIZES)
        if self.score not in ("online", "evaluation"):
            raise UsageError(f"--score {self.score}: online or evaluation")
        chosen_sizes(self, Machine(1, 1 << 40))


def points(settings: SimulatorsSettings, machine: Machine) -> list[Point]:
    """All of them, of one algorithm after the other."""
    return [
        _point(settings, machine, algorithm, size, game, seed)
        for algorithm, sizes in chosen_sizes(settings, machine).items()
        for game in settings.games
        for size in sizes
        for seed in settings.seeds
    ]


def chosen_sizes(settings: SimulatorsSettings, machine: Machine) -> dict[str, tuple[int, ...]]:
    """Sizes by algorithm: those asked for, else the paper's as far as they fit the machine.

    Raises:
        UsageError: --sizes that say nothing.
    """
    limits = {"a2c": SIMULATORS_PER_CORE * machine.cores, "a3c": max(2, machine.cores),
              "ppo": SIMULATORS_PER_CORE * machine.cores, "appo": max(SIZES["appo"])}  # fmt: skip
    chosen = {name: tuple(s for s in SIZES[name] if s <= limits[name]) for name in settings.algorithms}
    for words in settings.sizes:
        name, _, numbers = words.partition("=")
        if name not in chosen or not all(n.isdigit() and int(n) > 0 for n in numbers.split(",")):
            raise UsageError(f"--sizes {words}: write one of {', '.join(chosen)}, = and numbers, as in a2c=16,64")
        chosen[name] = tuple(dict.fromkeys(int(n) for n in numbers.split(",")))
    return chosen


def _point(settings: SimulatorsSettings, machine: Machine, algorithm: str, size: int, game: str, seed: int) -> Point:
    name = f"{algorithm}-{game_name(game)}-{size}-seed{seed}"
    try:
        config = SIZED[algorithm](settings, machine, game, size)
        config = changed(
            config, run=budget(settings.minutes, settings.agent_steps) | {"seed": seed},
            environment={"random_start_steps": settings.random_start_steps},
            evaluation={"evaluator": settings.score == "evaluation"},
        )  # fmt: skip
    except UsageError as error:
        raise UsageError(f"{algorithm} with {size} {WHAT[algorithm]}: {error}") from error
    return Point(name, config, {"algorithm": algorithm, "size": size, "game": game})


def _a2c(settings: SimulatorsSettings, machine: Machine, game: str, size: int) -> TrainConfig:
    """The batch grows with the simulators, and the rate with the batch's square root."""
    config = base_config(settings, "a2c", game, machine)
    scaling = {"learning_rate_scaling": "sqrt", "learning_rate_batch": A2C_BATCH}
    return changed(config, sampling={"simulators": size}, optimizer=scaling)


def _a3c(settings: SimulatorsSettings, machine: Machine, game: str, size: int) -> TrainConfig:
    """Nothing else changes with the learners; one learner is A2C."""
    config = base_config(settings, "a3c" if size > 1 else "a2c", game, machine)
    return changed(config, exchange={"workers": size}) if size > 1 else config


def _ppo(settings: SimulatorsSettings, machine: Machine, game: str, size: int) -> TrainConfig:
    """Shorter rollouts of more simulators, and the same data-points in each; 4 epochs of 4 minibatches."""
    config = base_config(settings, "ppo", game, machine)
    total = 256 if settings.preset == "smoke" else PPO_ROLLOUT
    if total % size:
        raise UsageError(f"they do not divide the rollout of {total} data-points")
    groups = config.sampling.groups if size % config.sampling.groups == 0 else 1
    return changed(
        config, algorithm={"unroll_length": total // size}, sampling={"simulators": size, "groups": groups},
        optimizer={"batch_size": total // 4},
    )  # fmt: skip


def _appo(settings: SimulatorsSettings, machine: Machine, game: str, size: int) -> TrainConfig:
    config = base_config(settings, "appo", game, machine)
    workers = settings.learners or max(2, min(machine.cores, 8))
    return changed(config, exchange={"workers": workers, "local_steps": size})


SIZED = {"a2c": _a2c, "a3c": _a3c, "ppo": _ppo, "appo": _appo}


def report(settings: SimulatorsSettings, outcomes: Sequence[Outcome]) -> Report:
    """A panel for each algorithm and game, a curve for each size."""
    score = ONLINE if settings.score == "online" else EVALUATION
    rows = [_row(settings, labels, runs) for labels, runs in grouped(outcomes, "algorithm", "game", "size")]
    return Report(
        heading="Learning with many simulators",
        caption=f"{CAPTIONS[score]}; {spread_text(outcomes)}",
        tables=[Table(
            f"{settings.score} score at the end of the budget",
            ("algorithm", "game", "size", "", "seeds", "agent steps", "score", "agent steps/s"), rows,
        )],
        panels=list(_panels(outcomes, score)),
        columns=min(len(settings.games), 3) if len(settings.games) > 1 else 2,
    )  # fmt: skip


def _row(settings: SimulatorsSettings, labels: tuple[Any, ...], runs: Sequence[Outcome]) -> list[Any]:
    algorithm, game, size = labels
    steps = max((r.get("agent_steps", 0) for run in runs for r in run.records), default=0)
    last = bootstrap([_last_score(settings, run) for run in runs])
    rate = bootstrap([agent_steps_per_second(run.records, _warm_up(run)) for run in runs])
    return [algorithm, game, size, WHAT[algorithm], len(runs), steps, last, rate]


def _last_score(settings: SimulatorsSettings, run: Outcome) -> float | None:
    if settings.score == "evaluation":
        return final_metric([r for r in run.records if r["kind"] == "evaluation"], policies=1)
    return next((r[ONLINE] for r in reversed(run.records) if r["kind"] == "train" and ONLINE in r), None)


def _warm_up(run: Outcome) -> float:
    return min(WARM_UP_SECONDS, max((r.get("wall_seconds", 0.0) for r in run.records), default=0.0) / 3)


def _panels(outcomes: Sequence[Outcome], score: str) -> Iterator[Panel]:
    for (algorithm, game), some in grouped(outcomes, "algorithm", "game"):
        unit, x_label = steps_unit(some)
        curves = [
            score_curve(runs, score, "agent_steps", unit, f"{size} {WHAT[algorithm].removesuffix('s' * (size == 1))}")
            for (size,), runs in grouped(some, "size")
        ]
        yield Panel(f"{algorithm.upper()} on {game}", x_label, "raw score", curves)


STUDY = Study(
    name="simulators",
    defaults=SimulatorsSettings(),
    quick=SimulatorsSettings(
        quick=True, preset="smoke", games=("ddrl/Catch-v0",), minutes=0.12, agent_steps=0, random_start_steps=10,
        sizes=("a2c=8,16", "a3c=2", "ppo=8,16", "appo=1,2"),
    ),
    points=points,
    report=report,
)  # fmt: skip
