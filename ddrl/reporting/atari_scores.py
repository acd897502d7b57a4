"""What random play and people score at Atari games, to compare a run with. The table is atari_scores.csv.

Human-normalized score = 100 (score - random) / (human - random), in percent.
"""

from __future__ import annotations

import csv
import functools
from pathlib import Path
from typing import NamedTuple

from ddrl.rom_names import of_game

TABLE = Path(__file__).with_suffix(".csv")


class Reference(NamedTuple):
    """Mean raw scores of a game."""

    random: float
    human: float

    def normalized(self, score: float) -> float:
        """The human-normalized score, in percent."""
        return 100.0 * (score - self.random) / (self.human - self.random)


def reference_of(game: str) -> Reference | None:
    """The scores of random play and of people at a game, which is named as for `ddrl train --game`.

    None if none are published, as for an environment that a plugin registers.
    """
    return of_game(_table(), game)


@functools.cache
def _table() -> dict[str, Reference]:
    """ROM name without underscores -> its scores."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return {row["game"].replace("_", ""): Reference(float(row["random"]), float(row["human"])) for row in rows}
