"""Work that is repeated for a while, and how fast it goes."""

from __future__ import annotations

import time
from collections.abc import Callable


def work_for(work: Callable[[], int | None], seconds: float) -> tuple[int, float]:
    """Calls `work` again and again for at least `seconds`, and until at least one unit is done.

    Args:
        work: does some work, and returns how many units that was; None: one.

    Returns:
        The total number of units, and the seconds that they took.
    """
    done, start = 0, time.perf_counter()
    while True:
        units = work()
        done += 1 if units is None else units
        elapsed = time.perf_counter() - start
        if elapsed >= seconds and done:
            return done, elapsed


def rate(work: Callable[[], int | None], seconds: float) -> float:
    """Units per second of `work`, see `work_for`."""
    done, elapsed = work_for(work, seconds)
    return done / elapsed
