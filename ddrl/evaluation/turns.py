"""Which games of an evaluation begin in the time that it has."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable


class Turns:
    """Lets games of an evaluation begin, a few at once, as long as there is time for them.

    When games are cut off, the short ones are over and the long ones are not, and a long game is often a good one. So
    the mean of those that are over is fair only if hardly any is cut off: a game begins only where it would be over in
    time if it took as long as the longest one so far.

    Attributes:
        begun: games that have begun.
        over: games that are over.

    Args:
        games: that the evaluation has; no more begin.
        at_once: under way at the same time, at most.
        seconds: that all of them together may take, from now on.
        target: mean score that the run is to reach, or None. Where the games that are over may have reached it when the
            time is up, the rest of the games begins after all, since only all of them can tell.
        target_seconds: that all games may take then.
        clock: seconds, for tests.
    """

    def __init__(
        self,
        games: int,
        at_once: int,
        seconds: float,
        target: float | None = None,
        target_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.games, self.at_once = games, min(games, at_once)
        self.begun = self.over = 0
        self._seconds, self._target, self._target_seconds, self._clock = seconds, target, target_seconds, clock
        self._began: dict[int, float] = {}  # by row, of the game under way there
        self._start = clock()
        self._longest = 0.0
        self._scores: list[float] = []

    def begin(self, row: int) -> None:
        """A game begins in this row."""
        self._began[row] = self._clock()
        self.begun += 1

    def end(self, row: int, score: float, cut: bool) -> bool:
        """The game of this row is over; whether another one begins there.

        Args:
            score: of the game.
            cut: a limit of steps ended it: it says nothing of how long the others take.
        """
        self.over += 1
        if math.isfinite(score):
            self._scores.append(score)
        if not cut:
            self._longest = max(self._longest, self._clock() - self._began[row])
        if self.begun >= self.games or not self._time_for_another():
            return False
        self.begin(row)
        return True

    def time_is_up(self) -> bool:
        """Whether the games that are under way are to be cut off."""
        return self._clock() - self._start > self._seconds

    def _time_for_another(self) -> bool:
        spent = self._clock() - self._start
        if spent + self._longest > self._seconds and self._may_have_reached_target():
            self._seconds = max(self._seconds, self._target_seconds)
        return spent + self._longest <= self._seconds

    def _may_have_reached_target(self) -> bool:
        """Within a standard error of the mean."""
        if self._target is None or not self._scores:
            return False
        several = len(self._scores) > 1
        error = statistics.stdev(self._scores) / math.sqrt(len(self._scores)) if several else 0.0
        return statistics.fmean(self._scores) + error >= self._target
