"""`ddrl study games`: mean and maximum of 50 games against time (Adamski et al. 2018, section 3.2 and table 3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from ddrl import checks
from ddrl.algorithms.parts import rom_name
from ddrl.reporting.metrics import whole
from ddrl.studies.curves import EVALUATION, MAXIMUM, score_curve, spread_text, time_unit
from ddrl.studies.figures import Panel
from ddrl.studies.groups import grouped
from ddrl.studies.measures import bootstrap
from ddrl.studies.points import Outcome, Point
from ddrl.studies.settings import Budget, StudySettings, base_config, budget, changed, check_budget, game_name
from ddrl.studies.study import Report, Study
from ddrl.studies.tables import Table
from ddrl.types import Machine

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
PAPER = (
    "the published columns: Adamski et al. 2018, table 3; DDRL A3C on 64 nodes of 12 cores, GA3C with a GPU, BA3C and "
    "A3C on one node; they warn that scores of different implementations are not directly comparable"
)


@dataclasses.dataclass(frozen=True)
class GamesSettings(Budget, StudySettings):
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
        check_budget(self)
        checks.at_least(self, 1, "eval_games", "eval_every_updates")
        checks.between(self, 0.0, 1.0, "eval_time_share")
        checks.above(self, 0.0, "evaluation_minutes")


def points(settings: GamesSettings, machine: Machine) -> list[Point]:
    """All of them, one game after the other."""
    return [_point(settings, machine, game, seed) for game in settings.games for seed in settings.seeds]


def _point(settings: GamesSettings, machine: Machine, game: str, seed: int) -> Point:
    config = changed(
        base_config(settings, "ba3c", game, machine),
        run=budget(settings.minutes, settings.agent_steps) | {"seed": seed},
        evaluation={
            "evaluator": True,
            "target_score": None,
            "eval_games": settings.eval_games,
            "eval_every_updates": settings.eval_every_updates,
            "eval_time_share": settings.eval_time_share,
            "evaluation_minutes": settings.evaluation_minutes,
        },
    )
    return Point(f"{game_name(game)}-seed{seed}", config, {"game": game})


def report(settings: GamesSettings, outcomes: Sequence[Outcome]) -> Report:
    """A panel for each game: mean and maximum of its evaluation games against time."""
    games = [(game, runs) for (game,), runs in grouped(outcomes, "game")]
    caption = f"evaluation score: mean and maximum of {settings.eval_games} greedy games with frozen parameters"
    return Report(
        heading="Scores by game against time",
        caption=f"{caption}; {spread_text(outcomes)}",
        tables=[
            Table(
                f"Evaluations of {settings.eval_games} games",
                (
                    "game",
                    "runs",
                    "hours",
                    "agent steps",
                    "evaluations",
                    "last mean",
                    "best mean",
                    "after hours",
                    "maximum",
                    *SYSTEMS,
                ),
                [_row(game, runs) for game, runs in games],
            )
        ],
        panels=list(_panels(games)),
        columns=3 if len(games) > 2 else 2,
        notes=[
            "best mean: of the best evaluation of each run, which is chosen by its own score and so flatters; after "
            "hours: when its parameters were taken; maximum: of all games of all evaluations and runs",
            PAPER,
        ],
    )


def evaluations(run: Outcome) -> list[dict]:
    """Those whose games were all played to their end."""
    return list(whole([record for record in run.records if record["kind"] == "evaluation"]))


def _row(game: str, runs: Sequence[Outcome]) -> list[object]:
    played = [evaluations(run) for run in runs]
    best = [max(records, key=lambda record: record["mean"]) for records in played if records]
    ends = [max((r.get("wall_seconds", 0.0) for r in run.records), default=0.0) / 3600.0 for run in runs]
    steps = max((r.get("agent_steps", 0) for run in runs for r in run.records), default=0)
    return [
        game,
        len(runs),
        bootstrap(ends),
        steps,
        sum(map(len, played)),
        bootstrap([records[-1]["mean"] for records in played if records]),
        bootstrap([record["mean"] for record in best]),
        bootstrap([record["wall_seconds"] / 3600.0 for record in best]),
        max((float(r["maximum"]) for records in played for r in records if "maximum" in r), default=None),
        *PUBLISHED.get(rom_name(game), (None,) * len(SYSTEMS)),
    ]


def _panels(games: Sequence[tuple[str, Sequence[Outcome]]]) -> Iterator[Panel]:
    for game, runs in games:
        unit, x_label = time_unit(runs)
        curves = [score_curve(runs, EVALUATION, "wall_seconds", unit, "mean"),
                  score_curve(runs, MAXIMUM, "wall_seconds", unit, "maximum")]  # fmt: skip
        yield Panel(game, x_label, "raw evaluation score", curves)


STUDY = Study(
    name="games",
    defaults=GamesSettings(),
    quick=GamesSettings(
        quick=True,
        preset="smoke",
        games=("ddrl/Catch-v0",),
        minutes=0.25,
        eval_every_updates=100,
        eval_time_share=0.5,
        repeats=2,
    ),
    points=points,
    report=report,
)
