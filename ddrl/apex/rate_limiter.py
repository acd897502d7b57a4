"""Makes the learner or the actors wait, so that the samples per insert of a replay stay near a ratio."""

from __future__ import annotations


class RateLimiter:
    """Keeps the number of transitions drawn for each one inserted near a ratio, counted from the start of drawing.

    The side that is ahead waits. Both never wait at once, because the slack is no less than what is drawn at once.

    Args:
        ratio: samples per insert; 0: nobody waits.
        batch_size: transitions drawn at once.
        inserted_at_once: transitions inserted at once, so that whole segments fit into the slack.
    """

    def __init__(self, ratio: float, batch_size: int, inserted_at_once: int):
        self._ratio, self._batch_size = ratio, batch_size
        self._slack = 2.0 * batch_size + ratio * inserted_at_once
        self._start: tuple[int, int] | None = None

    def start(self, inserted: int, sampled: int) -> None:
        """Begins to count, after so many transitions were inserted and drawn."""
        self._start = inserted, sampled

    def pause(self) -> None:
        """Stops counting until `start`: nothing is drawn meanwhile, and nobody has to wait."""
        self._start = None

    def may_draw(self, inserted: int, sampled: int) -> bool:
        """Whether a batch may be drawn after so many transitions were inserted and drawn."""
        if not self._ratio or self._start is None:
            return True
        return sampled - self._start[1] + self._batch_size <= self._ratio * (inserted - self._start[0]) + self._slack

    def may_insert(self, inserted: int, sampled: int) -> bool:
        """Whether more may be inserted after so many transitions were inserted and drawn."""
        if not self._ratio or self._start is None:
            return True
        return self._ratio * (inserted - self._start[0]) <= sampled - self._start[1] + self._slack
