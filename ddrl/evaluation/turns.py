"""Decides whether another game of an evaluation begins, so that hardly any is cut off when its time is up."""

from __future__ import annotations

import time
from collections.abc import Callable


class Turns:
    """Lets games of an evaluation begin, a few at once, as long as there is time for them.

    When games are cut off, the short ones are over and the long ones are not, and a long game is often a good one. So
    the mean of those that are over is fair only if hardly any is cut off: a game begins only where it would be over in
    time if it took as long as the longest one so far. Games that a limit of steps ended count only while no game has
    ended by itself: in some environments a limit ends every game, and in others only games that are stuck.

    Attributes:
        begun: games that have begun.
        over: games that are over.

    Args:
        games: that the evaluation has; no more begin.
        at_once: under way at the same time, at most.
        seconds: that all of them together may take, from now on.
        clock: seconds, for tests.
    """

    def __init__(self, games: int, at_once: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.games, self.at_once = games, min(games, at_once)
        self.begun = self.over = 0
        self._seconds, self._clock = seconds, clock
        self._began: dict[int, float] = {}  # by row, of the game under way there
        self._start = clock()
        self._longest = self._longest_cut = 0.0  # seconds of games that ended by themselves, and of those that were cut

    def begin(self, row: int) -> None:
        """A game begins in this row."""
        self._began[row] = self._clock()
        self.begun += 1

    def end(self, row: int, cut: bool, able: bool = True) -> bool:
        """The game of this row is over; whether another one begins there.

        Args:
            row: of the game.
            cut: a limit of steps ended it.
            able: whether another one can begin there; if not, the next one is left to the other rows.
        """
        self.over += 1
        seconds = self._clock() - self._began[row]
        if cut:
            self._longest_cut = max(self._longest_cut, seconds)
        else:
            self._longest = max(self._longest, seconds)
        if not able or self.begun >= self.games or not self._time_for_another():
            return False
        self.begin(row)
        return True

    def time_is_up(self) -> bool:
        """Whether the games that are under way are to be cut off."""
        return self._clock() - self._start > self._seconds

    def _time_for_another(self) -> bool:
        longest = self._longest or self._longest_cut
        return self._clock() - self._start + longest <= self._seconds
