"""Learning with many simulators: section 5.3, figure 3."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from ddrl.algorithms import printed_name
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.studies.curves import learning_panel, spread_text
from ddrl.studies.findings import extremes
from ddrl.studies.measures import count, final, mean, most, rate, scores_caption
from ddrl.studies.points import Group, Outcome, grouped
from ddrl.studies.settings import ScoredSettings, TrainingSettings, base_config, one_of, refusals_of
from ddrl.studies.study import Labels, Report, Study, product
from ddrl.studies.tables import table
from ddrl.types import Machine
from ddrl.wording import counted

Sizes = Mapping[str, tuple[int, ...]]
"""Algorithm -> its sizes: simulators, learners, batch size, ..."""
Changes = dict[str, dict[str, Any]]
"""Group of the settings -> what changes in it."""


def chosen_sizes(defaults: Sizes, words: Collection[str]) -> dict[str, tuple[int, ...]]:
    """The default sizes, or those of words such as a2c=16,64 for the algorithms that these name.

    Raises:
        UsageError: a word cannot be read.
    """
    chosen = dict(defaults)
    for word in words:
        name, _, numbers = word.partition("=")
        if name not in chosen or not all(n.isdecimal() and int(n) > 0 for n in numbers.split(",")):
            raise UsageError(f"--sizes {word}: write one of {', '.join(chosen)}, = and numbers, as in a2c=16,64")
        chosen[name] = tuple(dict.fromkeys(int(n) for n in numbers.split(",")))
    return chosen


def size_axes(sizes: Sizes, settings: TrainingSettings) -> Iterator[Labels]:
    """Yields the labels of each algorithm with each of its sizes, by game and seed."""
    for algorithm, of_algorithm in sizes.items():
        yield from product(algorithm=[algorithm], game=settings.games, size=of_algorithm, seed=settings.seeds)


def sizes_report(
    settings: ScoredSettings, outcomes: Sequence[Outcome], heading: str, caption: str, what: Mapping[str, str]
) -> Report:
    """A report with a panel for each algorithm and game, which has a curve for each size.

    Args:
        what: algorithm -> what its sizes count, such as simulators.
    """
    groups = grouped(outcomes, "algorithm", "game", "size")
    panels = [
        learning_panel(
            f"{printed_name(group['algorithm'])} on {group['game']}", "raw score", grouped(group.runs, "size"),
            settings.score_name, _size_label(what[group["algorithm"]]),
        )
        for group in grouped(outcomes, "algorithm", "game")
    ]  # fmt: skip
    return Report(
        heading=heading,
        caption=f"{caption}; {spread_text(outcomes, settings.score_name)}",
        finding=extremes(groups, final(settings.score_name), f"final {settings.score} score"),
        tables=[
            table(f"{settings.score} score at the end of the budget", groups, {
                "algorithm": "algorithm", "game": "game", "size": "size",
                "of": lambda group: what[group["algorithm"]],
                "seeds": count, "agent steps": most("agent_steps"), "score": final(settings.score_name),
                "agent steps/s": mean(rate()),
            })
        ],
        panels=panels,
        columns=min(3, len(settings.games) if len(settings.games) > 1 else len(panels)),
    )  # fmt: skip


def _size_label(what: str) -> Callable[[Group], str]:
    return lambda group: counted(group["size"], what.removesuffix("s"))


SIZES = {
    "a2c": (16, 32, 64, 128, 256, 512),  # simulators
    "a3c": (1, 2, 4, 8, 16, 32),  # learners of 16 simulators
    "ppo": (8, 16, 32, 64, 128, 256, 512),  # simulators, at 2,048 data-points a rollout
    "appo": (1, 2, 4),  # local steps between two synchronizations
}
"""The paper's sizes by algorithm."""
SIZE_NAMES = {"a2c": "simulators", "a3c": "learners", "ppo": "simulators", "appo": "local steps"}
SIMULATORS_PER_CORE = 64  # by default; more fit, but rollouts then take long
PPO_ROLLOUT = 2048  # 8 simulators x 256 steps
A2C_BATCH = 80  # 16 simulators x 5 steps, at which the paper's learning rate holds


@dataclasses.dataclass(frozen=True)
class SimulatorsSettings(ScoredSettings):
    """Score against agent steps with more and more simulators (Stooke and Abbeel 2018, figure 3): A2C whose batch grows
    with them and whose rate grows with its square root, A3C with more learners, PPO with shorter rollouts at a
    constant batch, APPO with more local steps between two synchronizations."""

    algorithms: tuple[str, ...] = tuple(SIZES)
    """Which of a2c, a3c, ppo, and appo."""
    sizes: tuple[str, ...] = ()
    """Sizes instead of those that fit this machine: a2c=16,64,256 (simulators) a3c=1,2,4 (learners) ppo=8,64
    (simulators) appo=1,4 (local steps)."""
    learners: int = 0
    """Workers of APPO (0: one per core, 2 to 8)."""
    random_start_steps: int = 1000
    """Largest number of random actions of each simulator before training, so that they are not all in the same
    state."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "algorithms", SIZES)
        self.sizes_on(Machine(1, 1 << 40))

    def sizes_on(self, machine: Machine) -> dict[str, tuple[int, ...]]:
        """Sizes by algorithm: those asked for, else the paper's as far as they fit the machine.

        Raises:
            UsageError: --sizes cannot be read.
        """
        limits = {"simulators": SIMULATORS_PER_CORE * machine.cores, "learners": max(2, machine.cores)}
        sizes = {}
        for name in self.algorithms:
            limit = limits.get(SIZE_NAMES[name], max(SIZES[name]))
            sizes[name] = tuple(size for size in SIZES[name] if size <= limit)
        return chosen_sizes(sizes, self.sizes)

    def config(self, machine: Machine, labels: Labels) -> TrainConfig:
        algorithm, size = labels["algorithm"], labels["size"]
        change = {"a2c": self._a2c, "a3c": self._a3c, "ppo": self._ppo, "appo": self._appo}[algorithm]
        with refusals_of(f"{algorithm} with {size} {SIZE_NAMES[algorithm]}"):
            name = "a2c" if (algorithm, size) == ("a3c", 1) else algorithm  # one learner is A2C
            config = base_config(self, name, labels["game"], machine)
            return config.changed(
                **change(machine, config, size),
                run=self.run,
                environment={"random_start_steps": self.random_start_steps},
                evaluation={"evaluator": self.score == "evaluation"},
            )

    def _a2c(self, machine: Machine, config: TrainConfig, size: int) -> Changes:
        """The batch grows with the simulators, and the rate with the batch's square root."""
        scaling = {"learning_rate_scaling": "sqrt", "learning_rate_batch": A2C_BATCH}
        return {"sampling": {"simulators": size}, "optimizer": scaling}

    def _a3c(self, machine: Machine, config: TrainConfig, size: int) -> Changes:
        return {"exchange": {"workers": size}} if size > 1 else {}

    def _ppo(self, machine: Machine, config: TrainConfig, size: int) -> Changes:
        """More simulators have shorter rollouts, so that each has as many data-points; an epoch has 4 minibatches."""
        total, groups = 256 if self.preset == "smoke" else PPO_ROLLOUT, config.sampling.groups
        if total % size:
            raise UsageError(f"they do not divide the rollout of {total} data-points")
        return {
            "algorithm": {"unroll_length": total // size},
            "sampling": {"simulators": size, "groups": groups if size % groups == 0 else 1},
            "optimizer": {"batch_size": total // 4},
        }

    def _appo(self, machine: Machine, config: TrainConfig, size: int) -> Changes:
        return {"exchange": {"workers": self.learners or max(2, min(machine.cores, 8)), "local_steps": size}}

    def axes(self, machine: Machine) -> Iterator[Labels]:
        return size_axes(self.sizes_on(machine), self)

    def report(self, outcomes: Sequence[Outcome]) -> Report:
        return sizes_report(
            self, outcomes, "Learning with many simulators", scores_caption(self.score_name), SIZE_NAMES
        )


SIMULATORS = Study(
    name="simulators",
    about="score against agent steps, by number of simulators or learners (Stooke and Abbeel 2018, figure 3)",
    defaults=SimulatorsSettings(agent_steps=2_000_000, score="online"),
    quick_changes={
        "minutes": 0.12, "agent_steps": 0, "random_start_steps": 10,
        "sizes": ("a2c=8,16", "a3c=2", "ppo=8,16", "appo=1,2"),
    },
    point_name="{algorithm}-{game}-{size}-seed{seed}",
)  # fmt: skip
