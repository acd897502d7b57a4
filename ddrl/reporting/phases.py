"""Phases of a run, and of a rank's start: where the time goes.

The chief writes the phase of the run and the time that is left of it, until the command ends, to metrics.jsonl:
every `train` record has `phase` and, where the run has a budget, `seconds_left`; the event `phase` has both at the
moment at which a phase begins. The launcher writes the last one, of drawing.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

STARTING, TRAINING, EVALUATING, DRAWING = PHASES = ("starting", "training", "evaluating", "drawing")
"""The phases of a run in order: processes load and compile; learning; the final evaluation; curve and video."""

_CURVE_SECONDS, _VIDEO_SECONDS = 5.0, 15.0  # about, on a quiet machine, TensorFlow's start included

_seconds: dict[str, float] = {}
_last: float | None = None


def drawing_seconds(video: bool) -> float:
    """About how many seconds the phase `drawing` takes."""
    return _CURVE_SECONDS + video * _VIDEO_SECONDS


def phase_ended(name: str) -> None:
    """Counts the time since the last call, or since this process was started, as that of the phase `name`."""
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
