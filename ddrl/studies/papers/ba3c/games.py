"""Scores of six games against time: section 3.2, table 3."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddrl.algorithms.ba3c import TARGET_SCORES
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.reporting.metrics import complete
from ddrl.rom_names import of_game
from ddrl.studies import across_games
from ddrl.studies.curves import SECONDS, level, score_curves, spread_text, unit_of
from ddrl.studies.figures import Panel
from ddrl.studies.findings import extremes
from ddrl.studies.measures import (
    EVALUATION,
    MAXIMUM,
    Measure,
    caption_of,
    count,
    evaluations,
    final,
    given_seconds,
    last_score,
    mean,
    most,
    times_to,
)
from ddrl.studies.points import Group, Outcome, grouped
from ddrl.studies.settings import BudgetSettings, base_config
from ddrl.studies.statistics import TimeToScore
from ddrl.studies.study import Labels, Report, Study, product
from ddrl.studies.tables import Columns, table
from ddrl.types import Machine
from ddrl.wording import counted, plural

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
NOTES = (
    "best mean: of the best evaluation of each run, which is chosen by its own score and so flatters; after hours: "
    "when its parameters were taken; maximum: of all games of whole evaluations of all runs. The published columns: "
    "Adamski et al. 2018, table 3; DDRL A3C on 64 nodes of 12 cores, GA3C with a GPU, BA3C and A3C on one node; they "
    "warn that scores of different implementations are not directly comparable"
)


@dataclasses.dataclass(frozen=True)
class GamesSettings(BudgetSettings):
    """BA3C on the six games of Adamski et al. 2018 (section 3.2, table 3): mean and maximum of 50 evaluation games with
    frozen parameters, against wall time, beside what they and others published."""

    eval_games: int = 50
    """Games of an evaluation."""
    eval_every_updates: int = 1000
    """Updates between evaluations."""
    eval_time_share: float = 0.1
    """Largest share of a run's time that evaluations may take."""
    evaluation_minutes: float = 3.0
    """Longest time of one evaluation, in minutes; one that is cut off does not count."""
    to_target: bool = False
    """End a run when an evaluation reaches the score at which the published code stops (Breakout 300, Pong 10,
    River Raid 4,000, Seaquest 1,830, Space Invaders 700), and report when."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for game in self.games if self.to_target else ():
            if self.target(game) is None:
                raise UsageError(f"--to-target: {game} has no published target; choose from {', '.join(TARGET_SCORES)}")

    def target(self, game: str) -> float | None:
        """The score at which a run of a game ends; None if it has none."""
        return of_game(TARGET_SCORES, game) if self.to_target else None

    def config(self, machine: Machine, labels: Labels) -> TrainConfig:
        names = ("eval_games", "eval_every_updates", "eval_time_share", "evaluation_minutes")
        evaluation = {name: getattr(self, name) for name in names} | {
            "evaluator": True,
            "target_score": self.target(labels["game"]),
        }
        return base_config(self, "ba3c", labels["game"], machine).changed(run=self.run, evaluation=evaluation)

    def times(self, game: Group) -> TimeToScore | None:
        """When the runs of a game reached its target; None without a target."""
        target = self.target(game["game"])
        return None if target is None else times_to(game.runs, EVALUATION, target, self.minutes)

    def report(self, outcomes: Sequence[Outcome]) -> Report:
        """A panel for each game: mean and maximum of its evaluation games against time."""
        games = grouped(outcomes, "game")
        published = {
            system: lambda game, place=place: (of_game(PUBLISHED, game["game"]) or (None,) * len(SYSTEMS))[place]
            for place, system in enumerate(SYSTEMS)
        }
        timed: Columns = {
            "target": lambda game: self.target(game["game"]),
            "time to it": lambda game: (times := self.times(game)) and times.text(),
        }
        whole = [] if self.to_target else [("BA3C", Group({}, outcomes))]  # runs to a target have no final score
        together = across_games.together(whole, last_score(EVALUATION))
        panels = [*(_panel(game, self.target(game["game"])) for game in games), *together.panels]
        caption = caption_of(EVALUATION, outcomes).replace(": ", ": mean and maximum of ")
        return Report(
            heading="Scores by game against time",
            caption=f"{caption}, {self.eval_games} where time was enough; {spread_text(outcomes, EVALUATION)}",
            finding=self._finding(games),
            tables=[
                table(f"Evaluations of {self.eval_games} games", games, {
                    "game": "game", "actions": actions_of, "runs": count, **(timed if self.to_target else {}),
                    "hours": mean(lambda run: given_seconds(run) / 3600.0),
                    "most agent steps": most("agent_steps"),
                    "evaluations": lambda game: sum(len(played(run)) for run in game.runs),
                    "last mean": final(EVALUATION),
                    "best mean": mean(of_best("mean")),
                    "after hours": mean(of_best("wall_seconds", 3600.0)),
                    "maximum": lambda game: max(
                        (float(r["maximum"]) for run in game.runs for r in played(run) if "maximum" in r), default=None
                    ),
                    **published,
                }),
                *together.tables,
            ],
            panels=panels,
            columns=2 if len(panels) in (1, 2, 4) else 3,
            notes=[NOTES, *together.notes],
            careful=together.careful,
        )  # fmt: skip

    def _finding(self, games: Sequence[Group]) -> str:
        """How many games reach their targets if runs end there, else the range of the last scores."""
        if not self.to_target:
            return extremes(games, final(EVALUATION), "mean score of the last evaluation")
        reached = [game for game in games if (times := self.times(game)) and times.median is not None]
        limit = f" within {self.minutes:g} {plural('minute', self.minutes)}" if self.minutes else ""
        do = "reaches its" if len(reached) == 1 else "reach their"
        finding = f"{len(reached)} of {counted(len(self.games), 'game')} {do} target{limit} by the median of the runs."
        missing = [game for game in self.games if game not in {group["game"] for group in games}]
        return f"{finding} No run of {', '.join(missing)} has ended." if missing else finding

    def axes(self, machine: Machine) -> Iterator[Labels]:
        return product(game=self.games, seed=self.seeds)


def actions_of(game: Group) -> str:
    """How actions are chosen in the evaluation games of a group, as a text."""
    evaluation = game.config.evaluation
    return evaluation.eval_actions + (f", epsilon {evaluation.eval_epsilon:g}" if evaluation.eval_epsilon else "")


def played(run: Outcome) -> list[Mapping[str, Any]]:
    """The evaluations of a run whose games were all played to their end."""
    return list(complete(evaluations(run)))


def of_best(name: str, unit: float = 1.0) -> Measure:
    """The measure that is a number in a run's evaluation with the highest mean; None without an evaluation."""

    def measure(run: Outcome) -> float | None:
        best = max(played(run), key=lambda record: record["mean"], default=None)
        return None if best is None else best[name] / unit

    return measure


def _panel(game: Group, target: float | None) -> Panel:
    unit, x_label = unit_of(game.runs, SECONDS)
    scores = {EVALUATION: "mean", MAXIMUM: "maximum"}
    curves = [
        curve
        for style, (score, label) in enumerate(scores.items())
        for curve in score_curves(game.runs, score, SECONDS, unit, label, style=style)
    ]
    return Panel(game["game"], x_label, "raw evaluation score", [*curves, *level(curves, target)])


GAMES = Study(
    name="games",
    about="mean and maximum of 50 games against time, on six games (BA3C, table 3)",
    defaults=GamesSettings(minutes=30.0, games=tuple(PUBLISHED)),
    quick_changes={"minutes": 0.25, "eval_every_updates": 100, "eval_time_share": 0.5, "repeats": 2},
    point_name="{game}-seed{seed}",
)
