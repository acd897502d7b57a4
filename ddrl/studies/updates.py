"""`ddrl study synchronous-vs-asynchronous`: stale gradients (Adamski et al. 2018, section 2.3 and figure 3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from ddrl import checks
from ddrl.studies.collapse import COLUMNS, LearningBudget, counts, levels, rule_text, scores_of
from ddrl.studies.curves import CAPTIONS, ONLINE, score_curve, spread_text, steps_unit, time_unit
from ddrl.studies.figures import Curve, Panel
from ddrl.studies.groups import grouped
from ddrl.studies.measures import bootstrap, rate_per_second
from ddrl.studies.points import Outcome, Point
from ddrl.studies.settings import StudySettings, base_config, budget, changed, check_budget, game_name, one_of
from ddrl.studies.sized import last_score, warm_up
from ddrl.studies.study import Report, Study
from ddrl.studies.tables import Table
from ddrl.types import Machine

MODES = ("synchronous", "asynchronous")
Modes = Sequence[tuple[str, Sequence[Outcome]]]
"""Mode -> its runs."""
LEAST_WORKERS = 4  # fewer make hardly any gradient stale
PAPER = (
    "Adamski et al. 2018, figure 3: with asynchronous updates the online score rose, and after 50 minutes dropped to 0 "
    "while the loss had a spike; with synchronous ones they never saw that"
)


@dataclasses.dataclass(frozen=True)
class UpdatesSettings(LearningBudget, StudySettings):
    """BA3C with synchronous and with asynchronous updates, the same workers and the same budget: online score, loss and
    staleness over time (Adamski et al. 2018, figure 3). Synchronous updates average a gradient of every worker;
    asynchronous ones take each as it comes, so that there are more of them, and older."""

    modes: tuple[str, ...] = MODES
    """synchronous, asynchronous."""
    workers: int = 0
    """Workers of every run (0: one for each core, 4 at least)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_budget(self)
        one_of(self, "modes", MODES)
        checks.at_least(self, 0, "workers")
        if self.workers == 1:
            checks.refuse(self, "workers", "one alone has nothing to wait for; give 2 or more")


def points(settings: UpdatesSettings, machine: Machine) -> list[Point]:
    """All of them; runs of one seed follow each other, so that half a study compares something."""
    return [
        _point(settings, machine, mode, game, seed)
        for game in settings.games
        for seed in settings.seeds
        for mode in settings.modes
    ]


def _point(settings: UpdatesSettings, machine: Machine, mode: str, game: str, seed: int) -> Point:
    config = base_config(settings, "ba3c", game, machine)
    exchange = {"workers": settings.workers or max(LEAST_WORKERS, machine.cores), "updates": mode}
    if not config.exchange.servers:  # that of one worker
        exchange["parameter_servers"] = None
    config = changed(config, exchange=exchange, run=budget(settings.minutes, settings.agent_steps) | {"seed": seed})
    return Point(f"{game_name(game)}-{mode}-seed{seed}", config, {"game": game, "mode": mode})


def report(settings: UpdatesSettings, outcomes: Sequence[Outcome]) -> Report:
    """Score, loss and staleness over time."""
    reached = levels(outcomes, settings.learned_score)
    return Report(
        heading="Synchronous and asynchronous updates",
        caption=f"{CAPTIONS[ONLINE]}; loss of training batches; {spread_text(outcomes)}",
        tables=[
            Table(
                "The whole budget",
                (
                    "game",
                    "updates",
                    "runs",
                    "workers",
                    "agent steps",
                    "minutes",
                    "updates/s",
                    "staleness (versions)",
                    "largest",
                    "best online score",
                    "last online score",
                    *COLUMNS,
                ),
                [_row(*some, reached) for some in grouped(outcomes, "game", "mode")],
            )
        ],
        panels=list(_panels(outcomes)),
        notes=[rule_text(reached), PAPER],
    )


def _row(labels: tuple[str, str], runs: Sequence[Outcome], reached: Any) -> list[Any]:
    game, mode = labels
    trained = [[r for r in run.records if r["kind"] == "train"] for run in runs]
    steps = max((r.get("agent_steps", 0) for records in trained for r in records), default=0)
    minutes = bootstrap([records[-1]["wall_seconds"] / 60.0 if records else None for records in trained])
    oldest = max((r["staleness_max"] for records in trained for r in records if "staleness_max" in r), default=None)
    mean = lambda name: bootstrap([rate_per_second(run.records, name, warm_up(run)) for run in runs])  # noqa: E731
    best = [max(scores_of(run), default=None) for run in runs]
    return [
        game,
        mode,
        len(runs),
        runs[0].point.config.exchange.workers,
        steps,
        minutes,
        mean("updates_per_s"),
        mean("staleness_mean") if mode == "asynchronous" else 0,
        oldest if mode == "asynchronous" else 0,
        bootstrap(best),
        bootstrap([last_score(run, ONLINE) for run in runs]),
        *counts(runs, reached),
    ]


def _panels(outcomes: Sequence[Outcome]) -> Iterator[Panel]:
    """Four for each game."""
    for (game,), some in grouped(outcomes, "game"):
        seconds, time_label = time_unit(some)
        steps, steps_label = steps_unit(some)
        modes = [(mode, runs) for (mode,), runs in grouped(some, "mode")]
        yield _panel(f"{game}: online score", time_label, "raw score", modes, ONLINE, "wall_seconds", seconds)
        yield _panel(f"{game}: online score", steps_label, "raw score", modes, ONLINE, "agent_steps", steps)
        yield _panel(f"{game}: loss", time_label, "training loss", modes, "loss", "wall_seconds", seconds)
        text = "mean staleness (versions)"
        yield _panel(f"{game}: stale gradients", time_label, text, modes, "staleness_mean", "wall_seconds", seconds)


def _panel(title: str, x_label: str, y_label: str, modes: Modes, name: str, against: str, unit: float) -> Panel:
    curves = []
    for mode, runs in modes:
        curve = score_curve(runs, name, against, unit, mode)
        if name == "staleness_mean" and mode == "synchronous":  # never stale, and so not measured
            x = score_curve(runs, ONLINE, against, unit).x
            curve = Curve(mode, x, [0.0] * len(x))
        curves.append(curve._replace(style=MODES.index(mode)))
    return Panel(title, x_label, y_label, curves)


STUDY = Study(
    name="synchronous-vs-asynchronous",
    defaults=UpdatesSettings(),
    quick=UpdatesSettings(
        quick=True, preset="smoke", games=("ddrl/Catch-v0",), minutes=0.2, agent_steps=0, workers=2, repeats=2
    ),
    points=points,
    report=report,
)
