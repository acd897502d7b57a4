"""`ddrl study batch-size`: Q-learning with large batches (Stooke and Abbeel 2018, section 5.4.1, figures 4 and 12)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ddrl.studies.curves import spread_text
from ddrl.studies.points import Outcome, Point
from ddrl.studies.q_learning import Scored, check_scored, scored, with_batch
from ddrl.studies.settings import StudySettings, base_config, game_name, one_of
from ddrl.studies.sized import chosen_sizes, sized_report
from ddrl.studies.study import Report, Study
from ddrl.types import Machine

SIZES = {"dqn": (32, 512, 1024, 2048), "categorical-dqn": (32, 256, 512, 1024, 2048), "rainbow": (32, 512)}
"""Batch sizes by algorithm."""
PAPER = (
    "Stooke and Abbeel 2018: DQN learned as well up to batch 512, and at larger ones lost scores in some games; "
    "Categorical DQN up to 2,048; epsilon-Rainbow up to 512"
)


@dataclasses.dataclass(frozen=True)
class BatchSizeSettings(Scored, StudySettings):
    """Score against agent steps by batch size (Stooke and Abbeel 2018, figures 4 and 12). Every transition is used 8
    times whatever the size, so larger batches make fewer updates. DQN's learning rate grows with the batch as in the
    paper; Categorical DQN and epsilon-Rainbow keep theirs, and Adam's epsilon falls with the batch."""

    algorithms: tuple[str, ...] = tuple(SIZES)
    """Which of dqn, categorical-dqn and rainbow."""
    sizes: tuple[str, ...] = ()
    """Batch sizes instead of the paper's, multiples of 8: dqn=32,512 categorical-dqn=2048."""
    agent_steps: int = 2_000_000
    """Agent steps of a point (0: as many as --minutes allow; the paper: 50 million)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scored(self)
        one_of(self, "algorithms", SIZES)
        self.chosen()

    def chosen(self) -> dict[str, tuple[int, ...]]:
        """Algorithm -> its batch sizes."""
        return chosen_sizes({name: SIZES[name] for name in self.algorithms}, self.sizes)


def points(settings: BatchSizeSettings, machine: Machine) -> list[Point]:
    """All of them, of one algorithm after the other."""
    return [
        _point(settings, machine, algorithm, size, game, seed)
        for algorithm, sizes in settings.chosen().items()
        for game in settings.games
        for size in sizes
        for seed in settings.seeds
    ]


def _point(settings: BatchSizeSettings, machine: Machine, algorithm: str, size: int, game: str, seed: int) -> Point:
    config = with_batch(base_config(settings, algorithm, game, machine), algorithm, size)
    labels = {"algorithm": algorithm, "game": game, "size": size}
    return Point(f"{algorithm}-{game_name(game)}-{size}-seed{seed}", scored(settings, config, seed), labels)


def report(settings: BatchSizeSettings, outcomes: Sequence[Outcome]) -> Report:
    """A panel for each algorithm and game, a curve for each batch size."""
    what = dict.fromkeys(SIZES, "per batch")
    found = sized_report(outcomes, "Q-learning by batch size", settings.score_name, what, len(settings.games))
    columns = found.columns if len(settings.games) > 1 else min(3, len(found.panels))
    return found._replace(caption=f"{settings.caption}; {spread_text(outcomes)}", notes=[PAPER], columns=columns)


STUDY = Study(
    name="batch-size",
    defaults=BatchSizeSettings(),
    quick=BatchSizeSettings(
        quick=True,
        preset="smoke",
        games=("ddrl/Catch-v0",),
        agent_steps=16_000,
        eval_every_steps=2000,
        eval_games=20,
        sizes=("dqn=32,128", "categorical-dqn=32,128", "rainbow=32"),
    ),
    points=points,
    report=report,
)
