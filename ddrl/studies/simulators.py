"""`ddrl study simulators`: learning with many simulators (Stooke and Abbeel 2018, section 5.3 and figure 3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.studies.curves import EVALUATION, ONLINE
from ddrl.studies.points import Outcome, Point
from ddrl.studies.settings import Budget, StudySettings, base_config, budget, changed, check_budget, game_name, one_of
from ddrl.studies.sized import chosen_sizes, sized_report
from ddrl.studies.study import Report, Study
from ddrl.types import Machine

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
        sizes_here(self, Machine(1, 1 << 40))


def points(settings: SimulatorsSettings, machine: Machine) -> list[Point]:
    """All of them, of one algorithm after the other."""
    return [
        _point(settings, machine, algorithm, size, game, seed)
        for algorithm, sizes in sizes_here(settings, machine).items()
        for game in settings.games
        for size in sizes
        for seed in settings.seeds
    ]


def sizes_here(settings: SimulatorsSettings, machine: Machine) -> dict[str, tuple[int, ...]]:
    """Sizes by algorithm: those asked for, else the paper's as far as they fit the machine.

    Raises:
        UsageError: --sizes that say nothing.
    """
    limits = {"a2c": SIMULATORS_PER_CORE * machine.cores, "a3c": max(2, machine.cores),
              "ppo": SIMULATORS_PER_CORE * machine.cores, "appo": max(SIZES["appo"])}  # fmt: skip
    fitting = {name: tuple(s for s in SIZES[name] if s <= limits[name]) for name in settings.algorithms}
    return chosen_sizes(fitting, settings.sizes)


def _point(settings: SimulatorsSettings, machine: Machine, algorithm: str, size: int, game: str, seed: int) -> Point:
    name = f"{algorithm}-{game_name(game)}-{size}-seed{seed}"
    try:
        config = SIZED[algorithm](settings, machine, game, size)
        config = changed(
            config,
            run=budget(settings.minutes, settings.agent_steps) | {"seed": seed},
            environment={"random_start_steps": settings.random_start_steps},
            evaluation={"evaluator": settings.score == "evaluation"},
        )
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
    """Shorter rollouts of more simulators, and the same data-points in each, in 4 minibatches an epoch."""
    config = base_config(settings, "ppo", game, machine)
    total = 256 if settings.preset == "smoke" else PPO_ROLLOUT
    if total % size:
        raise UsageError(f"they do not divide the rollout of {total} data-points")
    groups = config.sampling.groups if size % config.sampling.groups == 0 else 1
    return changed(
        config,
        algorithm={"unroll_length": total // size},
        sampling={"simulators": size, "groups": groups},
        optimizer={"batch_size": total // 4},
    )


def _appo(settings: SimulatorsSettings, machine: Machine, game: str, size: int) -> TrainConfig:
    config = base_config(settings, "appo", game, machine)
    workers = settings.learners or max(2, min(machine.cores, 8))
    return changed(config, exchange={"workers": workers, "local_steps": size})


SIZED = {"a2c": _a2c, "a3c": _a3c, "ppo": _ppo, "appo": _appo}


def report(settings: SimulatorsSettings, outcomes: Sequence[Outcome]) -> Report:
    """A panel for each algorithm and game, a curve for each size."""
    score = ONLINE if settings.score == "online" else EVALUATION
    return sized_report(outcomes, "Learning with many simulators", score, WHAT, len(settings.games))


STUDY = Study(
    name="simulators",
    defaults=SimulatorsSettings(),
    quick=SimulatorsSettings(
        quick=True,
        preset="smoke",
        games=("ddrl/Catch-v0",),
        minutes=0.12,
        agent_steps=0,
        random_start_steps=10,
        sizes=("a2c=8,16", "a3c=2", "ppo=8,16", "appo=1,2"),
    ),
    points=points,
    report=report,
)
