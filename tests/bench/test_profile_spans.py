"""Spans of `ddrl bench profile`, and what they come to."""

from __future__ import annotations

import contextlib
import os
import threading
import time

from ddrl.bench.profile import parts
from ddrl.bench.profile.spans import Recorder, Span, Total, clipped, self_times, thread_time

MS = 1_000_000


def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def recorded(work, *names):
    """The spans of this thread while `work` is called with wrapped functions of these parts."""
    recorder = Recorder()
    recorder.active = True
    functions = {"sleep": time.sleep, "burn": burn}
    work(*(recorder.wrap(name, functions.get(name, lambda run: run())) for name in names))
    ((_, spans),) = recorder.tracks()
    return spans


def test_a_sleep_is_waiting_and_a_loop_is_processor_time():
    def work(sleep, burn):
        sleep(0.05)
        burn(0.05)

    totals = self_times(clipped(recorded(work, "sleep", "burn"), 0, time.monotonic_ns()))
    assert totals["sleep"].wall >= 50 * MS > 10 * MS > totals["sleep"].processor
    assert totals["burn"].processor >= 50 * MS and totals["burn"].busy >= 50 * MS
    assert totals["burn"].wall >= totals["burn"].processor - MS
    assert [total.calls for total in totals.values()] == [1, 1]


def test_what_a_part_calls_is_not_counted_in_it():
    def work(outer, burn):
        outer(lambda: (burn(0.01), burn(0.01)))

    begin = time.monotonic_ns()
    totals = self_times(clipped(recorded(work, "outer", "burn"), 0, time.monotonic_ns()))
    assert totals["burn"].calls == 2 and totals["outer"].calls == 1
    assert totals["burn"].processor >= 20 * MS > 10 * MS > totals["outer"].processor
    assert sum(total.wall for total in totals.values()) <= time.monotonic_ns() - begin


def test_self_times_of_three_levels_and_of_a_part_within_itself():
    spans = [
        Span("a", 0, 100, 80, 90),
        Span("b", 10, 60, 30, 40),
        Span("b", 20, 50, 20, 25),  # a method of the same part, such as an environment around another
        Span("c", 25, 30, 5, 5),
        Span("c", 60, 70, 10, 10),  # begins where the one before it ends
        Span("a", 200, 210, 0, 0),
    ]
    found = self_times(clipped(reversed(spans), 0, 1000))
    assert found == {"a": Total(2, 50, 40, 40), "b": Total(1, 45, 25, 35), "c": Total(2, 15, 15, 15)}


def test_spans_are_cut_where_the_window_begins_and_ends():
    spans = [Span("inner", 5, 100, 50, 95), Span("outer", 0, 100, 60, 100), Span("before", -9, -3, 6, 6)]
    found = clipped(spans, 10, 60)
    assert found == [Span("outer", 10, 60, 30, 50), Span("inner", 10, 60, 26, 50)], "the outer one first, still"
    assert self_times(found)["outer"].wall == 0 and self_times(found)["inner"].wall == 50


def test_a_call_that_is_not_over_is_a_span_until_now():
    recorder, begun, end = Recorder(), threading.Event(), threading.Event()
    recorder.active = True

    def wait():
        begun.set()
        end.wait()

    thread = threading.Thread(target=recorder.wrap("wait", wait), name="waits")
    thread.start()
    begun.wait()
    ((track, spans),) = recorder.tracks()
    end.set()
    thread.join()
    assert track.name == "waits" and [span.part for span in spans] == ["wait"]
    ((_, ended),) = recorder.tracks()
    assert [span.part for span in ended] == ["wait"] and ended[0].stop >= spans[0].stop


def test_an_error_passes_and_ends_its_span():
    recorder = Recorder()
    recorder.active = True

    def fail():
        raise KeyError("x")

    with contextlib.suppress(KeyError):
        recorder.wrap("fails", fail)()
    ((track, spans),) = recorder.tracks()
    assert not track.open and [span.part for span in spans] == ["fails"]


def test_nothing_is_recorded_while_it_is_not_active():
    recorder = Recorder()
    assert recorder.wrap("part", lambda: 3)() == 3 and recorder.tracks() == []


def test_processor_time_of_another_thread():
    burned, end = threading.Event(), threading.Event()

    def work():
        burn(0.03)
        burned.set()
        end.wait()

    thread = threading.Thread(target=work)
    thread.start()
    burned.wait()
    assert 30 * MS <= thread_time(thread.native_id) < 1000 * MS
    named = parts.threads_now(thread_time)
    assert named[thread.native_id][1] >= 30 * MS and os.getpid() in named
    end.set()
    thread.join()
