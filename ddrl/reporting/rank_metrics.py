"""What one rank counts: rates, averages, episodes and the seconds of each activity, between two reports.

Nothing here imports TensorFlow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

REPORT_SECONDS = 1.0
"""Most seconds between two reports of a rank that acts. The end of a budget of agent steps is noticed so much later,
and what is not reported is lost with the process."""
AHEAD = "_ahead"
"""Suffix of a counter's name for the part that is ahead of the actor's state in a checkpoint. A resumed run acts that
part again."""


def resident_mb() -> float:
    """Resident memory of this process in MB (10^6 bytes), or its peak if /proc cannot be read."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


@dataclasses.dataclass(eq=False)
class _Span:
    """One use of `RankMetrics.timer`, or what is left of it since the last report."""

    activity: str
    start: float


class RankMetrics:
    """What one rank counts between two reports. Every method may be called from any thread.

    Args:
        role: worker, parameter_server, evaluator, ...
        index: number of this rank among those of its role.
        clock: seconds, for tests.

    Attributes:
        counted: how often anything was counted since the start. It stands still where nothing happens.
    """

    def __init__(self, role: str, index: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.role = role
        self.index = index
        self._clock = clock
        self._lock = threading.Lock()
        self._open: set[_Span] = set()
        self._told = False  # of a score that is not finite
        self.counted = 0
        self._ahead: dict[str, float] = {}  # counted since `settle`
        self._since = clock()
        self._cpu_since = time.process_time()
        self._clear()

    def count(self, name: str, amount: float = 1, ahead: bool = False) -> None:
        """Add an amount to a counter: agent_steps, frames, datapoints, gradients_dropped, ...

        Args:
            ahead: the amount is in no checkpoint before the next `settle`.
        """
        with self._lock:
            self._add_count(name, amount, ahead)

    def settle(self) -> None:
        """Notes that what was counted as ahead is no longer so: checkpoints have it from now on."""
        with self._lock:
            for name, amount in self._ahead.items():
                self._add_count(name + AHEAD, -amount)
                self._add_count(name, amount)
            self._ahead = {}

    def mean(self, name: str, value: float, weight: float = 1) -> None:
        """Add one value, or the mean of `weight` values, to an average: loss, entropy, lag, ..."""
        with self._lock:
            total, count = self._means.get(name, (0.0, 0.0))
            self._means[name] = (total + float(value) * weight, count + weight)

    def maximum(self, name: str, value: float) -> None:
        """Keep the largest value: lag, staleness."""
        with self._lock:
            self._maxima[name] = max(self._maxima.get(name, -math.inf), float(value))

    def gauge(self, name: str, value: float) -> None:
        """Keep the newest value: live_workers, learning_rate."""
        with self._lock:
            self._gauges[name] = value

    def episode(self, score: float, agent_steps: int, ahead: bool = False) -> None:
        """Note a finished training episode: raw score, length in agent steps; `ahead` as for `count`.

        Scores that are not finite are counted and left out of all means; the first one also makes an event.
        """
        if not math.isfinite(score):
            self.count("scores_not_finite", ahead=ahead)
            if not self._told:
                self._told = True
                text = f"an episode of {self.role} {self.index} has the score {score}, which no mean includes"
                self.event(
                    "score_not_finite", f"{text}; it is counted in scores_not_finite, and later ones are not reported"
                )
            return
        with self._lock:
            self._episodes.append([float(score), int(agent_steps)])
            if ahead:  # the list has all of them
                self._add_count("episodes", 1, ahead)

    def event(self, name: str, text: str) -> None:
        """Tell the chief of something, for `metrics.jsonl` and the panel."""
        with self._lock:
            self._events.append({"name": name, "text": text})

    @contextlib.contextmanager
    def timer(self, activity: str) -> Iterator[None]:
        """Adds its wall time to an activity: acting, gradient, push, wait, pull, apply.

        Time in a timer that is still open counts in every report that it spans.
        """
        span = _Span(activity, self._clock())
        with self._lock:
            self._open.add(span)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(span)
                self._add_seconds(span, self._clock())

    def report(self) -> dict[str, Any]:
        """Everything since the last report, as a JSON-able dict for `Collector.add`."""
        with self._lock:
            now, cpu = self._clock(), time.process_time()
            for span in self._open:
                self._add_seconds(span, now)
            report = {
                "role": self.role,
                "index": self.index,
                "interval_seconds": now - self._since,
                "cpu_seconds": cpu - self._cpu_since,
                "counters": self._counters,
                "means": self._means,
                "maxima": self._maxima,
                "gauges": self._gauges,
                "seconds": self._seconds,
                "episodes": self._episodes,
                "resident_mb": round(resident_mb(), 1),
                "events": self._events,
            }
            self._since, self._cpu_since = now, cpu
            self._clear()
        return report

    def _clear(self) -> None:
        self._counters: dict[str, float] = {}
        self._means: dict[str, tuple[float, float]] = {}
        self._maxima: dict[str, float] = {}
        self._gauges: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        self._episodes: list[list[float]] = []
        self._events: list[dict[str, str]] = []

    def _add_count(self, name: str, amount: float, ahead: bool = False) -> None:
        self.counted += 1
        if ahead:
            self._ahead[name] = self._ahead.get(name, 0) + amount
            name += AHEAD
        self._counters[name] = self._counters.get(name, 0) + amount

    def _add_seconds(self, span: _Span, now: float) -> None:
        self._seconds[span.activity] = self._seconds.get(span.activity, 0.0) + now - span.start
        span.start = now
