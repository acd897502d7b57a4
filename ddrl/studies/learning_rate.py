"""`ddrl study learning-rate`: the linear scaling rule with Adam (Adamski et al. 2018, section 2.4.2 and figure 4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from ddrl import checks
from ddrl.errors import UsageError
from ddrl.studies.collapse import COLUMNS, LearningBudget, Level, counts, levels, rule_text, scores_of
from ddrl.studies.curves import CAPTIONS, ONLINE, score_curve, spread_text, steps_unit
from ddrl.studies.figures import Panel
from ddrl.studies.groups import grouped
from ddrl.studies.measures import bootstrap
from ddrl.studies.points import Outcome, Point
from ddrl.studies.settings import (
    StudySettings,
    base_config,
    budget,
    changed,
    check_budget,
    game_name,
    not_empty,
    one_of,
)
from ddrl.studies.sized import last_score
from ddrl.studies.study import Report, Study
from ddrl.studies.tables import Table
from ddrl.types import Machine

RULES = ("constant", "linear")
PAPER = (
    "Adamski et al. 2018, section 2.4.2 and figure 4: with Adam the linear scaling rule made training unstable; models "
    "learned to play well and then scored 0 until the end; 1e-3, as on one node, was the largest stable rate"
)


@dataclasses.dataclass(frozen=True)
class LearningRateSettings(LearningBudget, StudySettings):
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
        check_budget(self)
        one_of(self, "rules", RULES)
        not_empty(self, "batch_size")
        checks.above(self, 0.0, "learning_rate")
        checks.at_least(self, 1, "base_batch")
        if min(self.batch_size) < 1:
            raise UsageError(f"--batch-size {min(self.batch_size)}: give 1 or more")


def points(settings: LearningRateSettings, machine: Machine) -> list[Point]:
    """All of them, from the smallest batch on; at the base batch one rule's alone, since they are the same."""
    return [
        _point(settings, machine, game, batch, rule, seed)
        for game in settings.games
        for batch in settings.batch_size
        for rule in (settings.rules if batch != settings.base_batch else settings.rules[:1])
        for seed in settings.seeds
    ]


def rate_of(settings: LearningRateSettings, rule: str, batch: int) -> float:
    """The learning rate of a rule at an effective batch."""
    return settings.learning_rate * (batch / settings.base_batch if rule == "linear" else 1.0)


def _point(settings: LearningRateSettings, machine: Machine, game: str, batch: int, rule: str, seed: int) -> Point:
    config = base_config(settings, "ba3c", game, machine)
    gradients = config.effective_batch // config.batch_size
    if batch % gradients:
        raise UsageError(f"--batch-size {batch}: an update has {gradients} gradients, and they do not divide it evenly")
    config = changed(
        config,
        optimizer={"batch_size": batch // gradients, "learning_rate": rate_of(settings, rule, batch)},
        run=budget(settings.minutes, settings.agent_steps) | {"seed": seed},
    )
    return Point(f"{game_name(game)}-{batch}-{rule}-seed{seed}", config, {"game": game, "batch": batch, "rule": rule})


def report(settings: LearningRateSettings, outcomes: Sequence[Outcome]) -> Report:
    """A panel for each batch: the online score with either rule."""
    reached = levels(outcomes, settings.learned_score)
    return Report(
        heading="Learning rate and effective batch",
        caption=f"{CAPTIONS[ONLINE]}; {spread_text(outcomes)}",
        tables=[
            Table(
                "The whole budget",
                (
                    "game",
                    "effective batch",
                    "rule",
                    "learning rate",
                    "runs",
                    "agent steps",
                    "best online score",
                    "last online score",
                    *COLUMNS,
                ),
                [_row(settings, *some, reached) for some in grouped(outcomes, "game", "batch", "rule")],
            )
        ],
        panels=list(_panels(settings, outcomes)),
        columns=min(3, len(settings.batch_size)),
        notes=[rule_text(reached), PAPER],
    )


def _row(
    settings: LearningRateSettings, labels: tuple[str, int, str], runs: Sequence[Outcome], reached: dict[str, Level]
) -> list[object]:
    game, batch, rule = labels
    steps = max((r.get("agent_steps", 0) for run in runs for r in run.records), default=0)
    best = bootstrap([max(scores_of(run), default=None) for run in runs])
    last = bootstrap([last_score(run, ONLINE) for run in runs])
    rule = "both" if batch == settings.base_batch else rule
    rate = f"{runs[0].point.config.optimizer.learning_rate:.3g}"
    return [game, batch, rule, rate, len(runs), steps, best, last, *counts(runs, reached)]


def _panels(settings: LearningRateSettings, outcomes: Sequence[Outcome]) -> Iterator[Panel]:
    several = len({outcome.point.labels["game"] for outcome in outcomes}) > 1
    for (game, batch), some in grouped(outcomes, "game", "batch"):
        unit, x_label = steps_unit(some)
        curves = []
        for (rule,), runs in grouped(some, "rule"):
            rate = f"{runs[0].point.config.optimizer.learning_rate:.3g}"
            name = "both rules" if batch == settings.base_batch else rule
            curve = score_curve(runs, ONLINE, "agent_steps", unit, f"{name}, {rate}")
            curves.append(curve._replace(style=RULES.index(rule)))
        yield Panel(f"{f'{game}, ' if several else ''}effective batch {batch:,}", x_label, "raw online score", curves)


STUDY = Study(
    name="learning-rate",
    defaults=LearningRateSettings(),
    quick=LearningRateSettings(
        quick=True,
        preset="smoke",
        games=("ddrl/Catch-v0",),
        minutes=0.15,
        agent_steps=0,
        batch_size=(64, 512),
        base_batch=64,
        repeats=2,
    ),
    points=points,
    report=report,
)
