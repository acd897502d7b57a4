"""Spans of time of named parts, thread by thread, and what they come to in a window. Knows nothing of ddrl."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple


class Span(NamedTuple):
    """One call of a part, in nanoseconds.

    Attributes:
        part: its name.
        start, stop: of time.monotonic_ns.
        processor: that its thread used.
        busy: that all threads of the process used meanwhile.
    """

    part: str
    start: int
    stop: int
    processor: int
    busy: int


class Total(NamedTuple):
    """What the calls of a part come to, without the parts within them; nanoseconds, see `Span`."""

    calls: int = 0
    wall: int = 0
    processor: int = 0
    busy: int = 0


def thread_time(thread: int) -> int:
    """Nanoseconds of processor time of a thread of this process, by its native id. Linux.

    Raises:
        OSError: it has ended.
    """
    return time.clock_gettime_ns((~thread << 3) | 6)  # the kernel's CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED


class Track:
    """The spans of one thread.

    Attributes:
        name: of the thread.
        thread: its native id.
        spans: those that are over.
        open: the others, outer ones first: part, and start, processor and busy at their beginning.
    """

    def __init__(self) -> None:
        thread = threading.current_thread()
        self.name = "main" if thread is threading.main_thread() else thread.name
        self.thread = threading.get_native_id()
        self.spans: list[Span] = []
        self.open: list[tuple[str, int, int, int]] = []


class Recorder:
    """Records calls of the functions that it has wrapped while it is `active`."""

    def __init__(self) -> None:
        self.active = False
        self._local = threading.local()
        self._tracks: list[Track] = []

    def wrap(self, part: str, function: Callable) -> Callable:
        """The same function; its calls are spans of `part`."""

        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if not self.active:
                return function(*args, **kwargs)
            track = getattr(self._local, "track", None) or self._new_track()
            before = (part, time.monotonic_ns(), time.thread_time_ns(), time.process_time_ns())
            track.open.append(before)
            try:
                return function(*args, **kwargs)
            finally:
                _, start, processor, busy = before
                processor, busy = time.thread_time_ns() - processor, time.process_time_ns() - busy
                track.open.pop()
                track.spans.append(Span(part, start, time.monotonic_ns(), processor, busy))

        return recorded

    def tracks(self) -> list[tuple[Track, list[Span]]]:
        """Each thread with its spans until now, those that are not over included."""
        now, busy_now = time.monotonic_ns(), time.process_time_ns()
        found = []
        for track in list(self._tracks):
            unfinished, spans = list(track.open), list(track.spans)
            try:
                used = thread_time(track.thread)
            except OSError:  # it has ended
                unfinished = []
            spans += [Span(part, start, now, used - cpu, busy_now - busy) for part, start, cpu, busy in unfinished]
            found.append((track, spans))
        return found

    def _new_track(self) -> Track:
        self._local.track = track = Track()
        self._tracks.append(track)
        return track


def clipped(spans: Iterable[Span], start: int, stop: int) -> list[Span]:
    """The parts of spans that are in a window, outer ones first; their processor time is cut in proportion.

    Args:
        spans: of one thread, each within another or apart from it.
        start, stop: of the window, of time.monotonic_ns.
    """
    found = []
    for span in sorted(spans, key=lambda span: (span.start, -span.stop)):
        begin, end = max(span.start, start), min(span.stop, stop)
        if begin < end:
            share = (end - begin) / (span.stop - span.start)
            found.append(Span(span.part, begin, end, round(share * span.processor), round(share * span.busy)))
    return found


def self_times(spans: Sequence[Span]) -> dict[str, Total]:
    """By part, what its spans took without those within them; so the sum is no more than the time of their thread.

    Args:
        spans: from `clipped`.
    """
    totals: dict[str, Total] = {}
    around: list[Span] = []
    for span in spans:
        while around and (around[-1].stop < span.stop or around[-1].stop <= span.start):
            around.pop()
        outer = around[-1] if around else None
        again = outer is not None and outer.part == span.part  # a method that calls another of the same part
        _add(totals, span.part, span, 1, calls=0 if again else 1)
        if outer is not None:
            _add(totals, outer.part, span, -1)
        around.append(span)
    return totals


def _add(totals: dict[str, Total], part: str, span: Span, sign: int, calls: int = 0) -> None:
    before = totals.get(part, Total())
    totals[part] = Total(
        before.calls + calls,
        before.wall + sign * (span.stop - span.start),
        before.processor + sign * span.processor,
        before.busy + sign * span.busy,
    )
