"""Records spans of time of named parts, thread by thread, and adds them up over a window. It knows nothing of ddrl."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple


class Span(NamedTuple):
    """One call of a part; times are in nanoseconds.

    Attributes:
        part: the name of the part.
        start, stop: begin and end by time.monotonic_ns.
        processor: processor time that the calling thread used.
        busy: processor time that all threads of the process used meanwhile.
    """

    part: str
    start: int
    stop: int
    processor: int
    busy: int


class Total(NamedTuple):
    """The sum of a part's calls without the parts nested in them, in nanoseconds; see `Span` for the fields."""

    calls: int = 0
    wall: int = 0
    processor: int = 0
    busy: int = 0


def thread_time(thread: int) -> int:
    """Nanoseconds of processor time of a thread of this process, by its native ID (Linux only).

    Raises:
        OSError: the thread has ended.
    """
    return time.clock_gettime_ns((~thread << 3) | 6)  # the kernel's CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED


class Track:
    """The spans of one thread.

    Attributes:
        name: name of the thread.
        thread: its native ID.
        spans: the spans that have ended.
        open: the calls that are running, outer ones first: part, and the wall clock, the thread's processor time and
            the process's processor time at their beginning.
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
        """Returns the function, wrapped so that its calls are recorded as spans of `part`."""

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
        """Each thread with its spans until now, including calls that are still running."""
        now, busy_now = time.monotonic_ns(), time.process_time_ns()
        found = []
        for track in list(self._tracks):
            unfinished, spans = list(track.open), list(track.spans)
            try:
                used = thread_time(track.thread)
            except OSError:  # the thread has ended
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
        spans: spans of one thread; any two of them are nested or do not overlap.
        start, stop: begin and end of the window by time.monotonic_ns.
    """
    found = []
    for span in sorted(spans, key=lambda span: (span.start, -span.stop)):
        begin, end = max(span.start, start), min(span.stop, stop)
        if begin < end:
            share = (end - begin) / (span.stop - span.start)
            found.append(Span(span.part, begin, end, round(share * span.processor), round(share * span.busy)))
    return found


def self_times(spans: Sequence[Span]) -> dict[str, Total]:
    """The total of each part's spans without the spans nested in them; all add up to at most the thread's time.

    Args:
        spans: spans of one thread, as `clipped` returns them.
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
