"""Where the time of a rank's start goes: phases that follow each other, from the start of its process."""

from __future__ import annotations

import os
import time
from pathlib import Path

_seconds: dict[str, float] = {}
_last: float | None = None


def phase_ended(name: str) -> None:
    """What this process did since the last call, or since it was started, was the phase `name`."""
    global _last  # noqa: PLW0603 - a process has one beginning
    now = time.monotonic()
    _seconds[name] = _seconds.get(name, 0.0) + now - (_process_start(now) if _last is None else _last)
    _last = now


def take_phases() -> dict[str, float]:
    """Seconds of each phase since the last call."""
    taken = {name: round(seconds, 2) for name, seconds in _seconds.items()}
    _seconds.clear()
    return taken


def _process_start(now: float) -> float:
    """When this process was started, in time.monotonic's seconds; `now` where the system does not say."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return now
    return now - age
