"""Scores of several games together: interquartile mean and performance profile of human-normalized scores.

These are means over runs and games of scores in percent between random play and people, with intervals whose resamples
draw runs within each game (stratified bootstrap). Source: Agarwal et al. 2021, Deep Reinforcement Learning at the Edge
of the Statistical Precipice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ddrl.reporting.atari_scores import reference_of
from ddrl.studies.curves import interval_curve
from ddrl.studies.figures import Curve, Panel
from ddrl.studies.measures import Measure
from ddrl.studies.points import Group, Outcome, grouped
from ddrl.studies.statistics import share_above, stratified_interquartile_mean
from ddrl.studies.tables import Table, table

THRESHOLDS = 41
NORMALIZED = "human-normalized score (%)"
NOTE = (
    "all games together: 100 (score - random) / (human - random) of every run, with the random and human scores of DQN "
    "Zoo; interquartile mean over runs and games, and its 95% stratified bootstrap interval where each game has three "
    "runs or more (Agarwal et al. 2021)"
)


def normalized(runs: Sequence[Outcome], measure: Measure) -> dict[str, list[float]]:
    """Game -> human-normalized scores of its runs in percent, for games with a known human score.

    Args:
        measure: the raw score of a run; runs without one are left out.
    """
    scores: dict[str, list[float]] = {}
    for game in grouped(runs, "game"):
        reference = reference_of(game["game"])
        known = [score for run in game.runs if (score := measure(run)) is not None]
        if reference is not None and known:
            scores[game["game"]] = [reference.normalized(score) for score in known]
    return scores


class Together(NamedTuple):
    """The part of a report on all games together; see the attributes of `Report` with these names."""

    tables: Sequence[Table] = ()
    panels: Sequence[Panel] = ()
    notes: Sequence[str] = ()
    careful: Sequence[str] = ()


def together(systems: Sequence[tuple[str, Group]], measure: Measure) -> Together:
    """A table and the performance profiles of systems over all games, with a warning where some have more runs.

    Empty unless all systems have equally many runs of the same games, two games or more: games and runs that only some
    systems have would distort the comparison.

    Args:
        systems: (name, runs of all games) of each system.
        measure: the raw score of a run.
    """
    by_game = {name: normalized(group.runs, measure) for name, group in systems}
    counts = _counts(by_game)
    if not counts:
        return Together()
    scores = {name: list(games.values()) for name, games in by_game.items()}
    of_all = table("All games together", scores.items(), {
        "system": lambda row: row[0], "games": lambda row: len(row[1]), "runs": lambda row: sum(map(len, row[1])),
        "interquartile mean, human-normalized (%)": lambda row: stratified_interquartile_mean(row[1]),
    })  # fmt: skip
    every = [score for games in scores.values() for game in games for score in game]
    thresholds = np.linspace(min(0.0, *every), max(every), THRESHOLDS).tolist()
    curves = [profile(games, thresholds, name, style) for style, (name, games) in enumerate(scores.items())]
    runs = ", ".join(f"{game} {count}" for game, count in counts.items())
    uneven = f"all games together: every run counts alike, so games with more runs count more (runs: {runs})"
    careful = [uneven] if len(set(counts.values())) > 1 else []  # as in a study that is half done
    profiles = Panel("Performance profile", NORMALIZED, "share of runs above", curves)
    return Together([of_all], [profiles], [NOTE], careful)


def _counts(by_game: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, int]:
    """Game -> number of runs, which all systems share. Empty if they do not, as one has not played all of them yet, or
    if there is one game.

    Args:
        by_game: for each system, what `normalized` gives.
    """
    played = {tuple(sorted((game, len(runs)) for game, runs in games.items())) for games in by_game.values()}
    counts = dict(next(iter(played), ()))
    return counts if len(played) == 1 and len(counts) > 1 else {}


def profile(scores: Sequence[Sequence[float]], thresholds: Sequence[float], label: str, style: int = 0) -> Curve:
    """The curve of the share of all runs whose score is above each threshold, with its interval.

    Args:
        scores: for each game, those of its runs.
    """
    points: list[tuple[float, Any]] = [(threshold, share_above(scores, threshold)) for threshold in thresholds]
    return interval_curve(points, label, style)
