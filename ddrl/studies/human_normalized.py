"""Scores of 49 Atari games relative to people and random play (Mnih et al. 2015). The table is human_normalized.csv.

Human-normalized score = 100 (score - random) / (human - random), in percent. The 57-game table of later papers has
other random and human scores; numbers of the two do not compare.
"""

from __future__ import annotations

import csv
import functools
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ddrl.checks import did_you_mean
from ddrl.errors import UsageError
from ddrl.rom_names import of_game

TABLE = Path(__file__).with_suffix(".csv")
HUMAN_LEVEL = 75.0  # percent; Mnih et al. call a score of this or more human-level


class GameScores(NamedTuple):
    """Raw scores of a game; the comments of the table give their sources.

    Attributes:
        name: the game's name as the papers write it.
        fast_dqn: the best evaluation of fast DQN, which is concurrent and synchronized.
    """

    name: str
    random: float
    human: float
    dqn: float
    fast_dqn: float

    def normalized(self, score: float) -> float:
        """The human-normalized score, in percent."""
        return 100.0 * (score - self.random) / (self.human - self.random)


class Summary(NamedTuple):
    """A summary of an agent's scores on several games.

    Attributes:
        games: number of games.
        median: median of the human-normalized scores, in percent.
        human_level: number of games at HUMAN_LEVEL or above.
        above_dqn: number of games above DQN's score.
    """

    games: int
    median: float
    human_level: int
    above_dqn: int


@functools.cache
def scores_by_game() -> dict[str, GameScores]:
    """ROM name in snake case -> its scores, in the papers' order."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        numbers = GameScores._fields[1:]
        return {row["game"]: GameScores(row["name"], *(float(row[key]) for key in numbers)) for row in rows}


def scores_of(game: str) -> GameScores:
    """The scores of a game, written as for `ddrl train --game`.

    Raises:
        UsageError: it is not one of the 49.
    """
    table = scores_by_game()
    if (scores := of_game(table, game)) is None:
        meant = did_you_mean(game, table) or f"; choose from {', '.join(table)}"
        raise UsageError(f"game {game}: there is no human score for it{meant}")
    return scores


def summary(scores: Mapping[str, float]) -> Summary:
    """The summary of an agent's raw scores by game, of which there must be at least one.

    Raises:
        UsageError: a game is not one of the 49.
    """
    known = {game: scores_of(game) for game in scores}
    normalized = [known[game].normalized(score) for game, score in scores.items()]
    return Summary(
        len(scores),
        statistics.median(normalized),
        sum(value >= HUMAN_LEVEL for value in normalized),
        sum(score > known[game].dqn for game, score in scores.items()),
    )
