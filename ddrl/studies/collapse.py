"""Whether runs learned, and whether they then forgot it: 'learning how to play well only to later abruptly forget'
(Adamski et al. 2018, section 2.4.2). Judged by online scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ddrl.reporting.metrics import ONLINE_EPISODES
from ddrl.studies.measures import ONLINE
from ddrl.studies.points import Group, Outcome, grouped
from ddrl.studies.tables import Columns

KEPT = 0.25  # share of its own gain that a run must still have at its end


class Level(NamedTuple):
    """Scores of one game.

    Attributes:
        start: mean of the first scores of all runs.
        learned: from which on a run has learned; infinite where no run gained anything.
        best: of all runs.
    """

    start: float
    learned: float
    best: float


def levels(outcomes: Sequence[Outcome], learned_score: float | None = None) -> dict[str, Level]:
    """Game -> its level, for games with scores.

    Args:
        learned_score: from which on a run has learned (None: halfway from the start to the best of all runs).
    """
    by_game = {}
    for group in grouped(outcomes, "game"):
        if scores := [of_run for run in group.runs if (of_run := scores_of(run))]:
            start, best = float(np.mean([of_run[0] for of_run in scores])), max(map(max, scores))
            half = (start + best) / 2 if best > start else float("inf")
            by_game[group["game"]] = Level(start, half if learned_score is None else learned_score, best)
    return by_game


def scores_of(run: Outcome) -> list[float]:
    """Online scores, oldest first, from the first one on that is the mean of as many games as all others."""
    records = [record for record in run.records if record["kind"] == "train" and ONLINE in record]
    return [record[ONLINE] for record in records if record.get("episodes", ONLINE_EPISODES) >= ONLINE_EPISODES]


def best_online(run: Outcome) -> float | None:
    """The largest of these scores; None of none."""
    return max(scores_of(run), default=None)


def learned(run: Outcome, level: Level) -> bool:
    """Whether its score ever reached the level."""
    return max(scores_of(run), default=-float("inf")) >= level.learned


def collapsed(run: Outcome, level: Level) -> bool:
    """Whether it learned, and lost three quarters of its gain until its end."""
    scores = scores_of(run)
    return learned(run, level) and scores[-1] < level.start + KEPT * (max(scores) - level.start)


def columns(by_game: Mapping[str, Level]) -> Columns:
    """Of a table of groups of one game: how many runs learned, and how many of these collapsed."""

    def of_them(group: Group, collapse: bool) -> str:
        level = by_game.get(group.runs[0].point.labels["game"])
        if level is None:
            return "-"
        good = [run for run in group.runs if learned(run, level)]
        return (
            f"{sum(collapsed(run, level) for run in good)} of {len(good)}"
            if collapse
            else f"{len(good)} of {len(group.runs)}"
        )

    return {"learned": lambda group: of_them(group, False), "then collapsed": lambda group: of_them(group, True)}


def rule_text(by_game: Mapping[str, Level]) -> str:
    """What was counted."""
    if not by_game:
        return f"no run played {ONLINE_EPISODES} games, so whether one learned cannot be told"
    each = "; ".join(
        f"{game}: {level.learned:.3g}, between {level.start:.3g} at the start and {level.best:.3g} at best"
        for game, level in by_game.items()
    )
    return (
        f"learned: an online score that reached a level ({each}; --learned-score sets it); collapsed: at its end the "
        f"run had less than {KEPT:.0%} of what it had gained since the start"
    )
