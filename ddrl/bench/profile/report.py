"""Summarizes the spans of all ranks: tables by thread and part, and events for Perfetto. All functions are pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ddrl.bench.profile.parts import GRADIENT, IDLE, PARTS
from ddrl.bench.profile.spans import Span, Total, self_times

MS = 1e-6  # a nanosecond in milliseconds
REST = "no part"
OTHERS = "libraries"
NUMBER = re.compile(r"[-_ ]*\d+(_\d+)?$")


class Rank(NamedTuple):
    """What one rank recorded; all times are in nanoseconds.

    Attributes:
        rank: the number of the rank.
        start, stop: begin and end of the window by time.monotonic_ns, the same clock for all processes of a host.
        process: processor time of all threads in the window, including those that ended in it.
        machine: processor time of all processes of its host, and time that other virtual machines took (steal).
        cores: number of cores that the process may use.
        span_ns: processor time that it takes to record one span.
        threads: native ID -> the thread's name, and its processor time in the window.
        spans: native ID -> the thread's spans, outer ones first.
    """

    rank: int
    start: int
    stop: int
    process: int
    machine: int
    cores: int
    span_ns: float
    threads: dict[int, tuple[str, int]]
    spans: dict[int, list[Span]]

    @classmethod
    def read(cls, rank: int, found: Mapping[str, Any]) -> Rank:
        """Makes it from the JSON object that a rank wrote."""
        threads = {thread: (name, used) for thread, name, used in found["threads"]}
        spans = {int(thread): [Span(*span) for span in spans] for thread, spans in found["spans"].items()}
        return cls(rank, **{**found, "threads": threads, "spans": spans})

    @property
    def wall(self) -> int:
        """Length of the window."""
        return self.stop - self.start

    def group(self, thread: int) -> str:
        """The group of a thread: its name without a number; OTHERS for library threads, named after the program."""
        name = self.threads[thread][0]
        if thread not in self.spans and name.startswith("python"):
            return OTHERS
        return NUMBER.sub("", name) or name


class Group(NamedTuple):
    """Threads of the same kind in one rank.

    Attributes:
        threads: native IDs of the threads.
        parts: part -> its total over all these threads.
    """

    threads: list[int]
    parts: dict[str, Total]


def report(ranks: Sequence[Rank]) -> dict[str, Any]:
    """The tables, as JSON types; see the command's help for their columns."""
    groups = {rank.rank: _groups(rank) for rank in ranks}
    updates = max((group.parts[GRADIENT].calls for each in groups.values() for group in each.values()
                   if GRADIENT in group.parts), default=0)  # fmt: skip
    per = max(1, updates)
    several = len(ranks) > 1
    parts: dict[str, Any] = {}
    threads: dict[str, Any] = {}
    for rank in ranks:
        prefix = f"rank {rank.rank} " if several else ""
        for name, group in groups[rank.rank].items():
            parts |= {f"{prefix}{name}: {part}": row for part, row in _part_rows(rank, group, per).items()}
            threads[prefix + name] = _thread_row(rank, group, per)
    wall = max((rank.wall for rank in ranks), default=0)
    return {
        "updates": updates,
        "update_ms": MS * wall / per,
        "parts": parts,
        "threads": dict(sorted(threads.items(), key=lambda item: (-item[1]["processor_ms"], item[0]))),
        "ranks": [_summary(rank, groups[rank.rank], per) for rank in ranks],
    }


def _groups(rank: Rank) -> dict[str, Group]:
    """The groups of a rank's threads by name, those with spans first."""
    found: dict[str, Group] = {}
    for thread in sorted(rank.threads, key=lambda thread: (thread not in rank.spans, rank.group(thread), thread)):
        group = found.setdefault(rank.group(thread), Group([], {}))
        group.threads.append(thread)
        for part, total in self_times(rank.spans.get(thread, [])).items():
            before = group.parts.get(part, Total())
            group.parts[part] = Total(*(a + b for a, b in zip(before, total, strict=True)))
    return found


def _part_rows(rank: Rank, group: Group, per: int) -> dict[str, dict[str, Any]]:
    """A row for each part, and one for the rest of the threads' time."""
    order = [*PARTS, *sorted(group.parts.keys() - PARTS.keys())]
    totals = [(part, group.parts[part]) for part in order if part in group.parts]
    if not totals:
        return {}
    wall = rank.wall * len(group.threads)
    rows = {
        part: {
            "calls": round(total.calls / per, 3),
            "wall_ms": _ms(total.wall, per),
            "processor_ms": _ms(total.processor, per),
            "all_threads_ms": _ms(total.busy, per),
            "share": round(total.wall / wall, 4),
            "cores_busy": round(total.busy / max(1, total.wall), 3),
        }
        for part, total in totals
    }
    rest = max(0, wall - sum(total.wall for _, total in totals))
    used = max(0, _processor(rank, group) - sum(total.processor for _, total in totals))
    rest_row = {"wall_ms": _ms(rest, per), "processor_ms": _ms(used, per), "share": round(rest / wall, 4)}
    return rows | {REST: rest_row}


def _thread_row(rank: Rank, group: Group, per: int) -> dict[str, Any]:
    used = _processor(rank, group)
    return {"threads": len(group.threads), "processor_ms": _ms(used, per), "cores_busy": round(used / rank.wall, 4)}


def _processor(rank: Rank, group: Group) -> int:
    return sum(rank.threads[thread][1] for thread in group.threads)


def _summary(rank: Rank, groups: Mapping[str, Group], per: int) -> dict[str, Any]:
    spans = sum(map(len, rank.spans.values()))
    return {
        "rank": rank.rank,
        "processor_time_over_wall_time": round(rank.process / rank.wall, 3),
        "cores": rank.cores,
        "other_processes": round(max(0, rank.machine - rank.process) / rank.wall, 3),
        "largest_wait": _largest_wait(groups, per),
        "recording_share_of_a_core": round(spans * rank.span_ns / rank.wall, 5),
    }


def _largest_wait(groups: Mapping[str, Group], per: int) -> str:
    """Describes the part with the largest wait of the threads that compute gradients, or of all if none does.

    Waiting for messages does not count: these threads have no work.
    """
    learning = {name: group for name, group in groups.items() if GRADIENT in group.parts} or groups
    waits = [
        (total.wall - total.processor, f"{name}: {part}", total)
        for name, group in learning.items()
        for part, total in group.parts.items()
        if part != IDLE
    ]
    if not waits:
        return "none"
    waited, where, total = max(waits, key=lambda wait: wait[:2])
    return f"{where} {_ms(waited, per):.2f} ms with {total.busy / max(1, total.wall):.2f} cores busy"


def _ms(nanoseconds: float, per: int) -> float:
    return round(MS * nanoseconds / per, 3)


def trace(ranks: Sequence[Rank]) -> list[dict[str, Any]]:
    """Events of the Chrome trace event format: a process is a rank; microseconds since the first window began."""
    begin = min((rank.start for rank in ranks), default=0)
    events: list[dict[str, Any]] = []
    for rank in ranks:
        events.append({"ph": "M", "name": "process_name", "pid": rank.rank, "args": {"name": f"rank {rank.rank}"}})
        for thread in sorted(rank.spans):
            place = {"pid": rank.rank, "tid": thread}
            name = rank.threads[thread][0] if thread in rank.threads else "ended"
            events.append({"ph": "M", "name": "thread_name", **place, "args": {"name": name}})
            events += [{"ph": "X", **place, **_event(span, begin)} for span in rank.spans[thread]]
    return events


def _event(span: Span, begin: int) -> dict[str, Any]:
    return {
        "name": span.part,
        "ts": (span.start - begin) / 1e3,
        "dur": (span.stop - span.start) / 1e3,
        "args": {"processor_ms": round(MS * span.processor, 4), "all_threads_ms": round(MS * span.busy, 4)},
    }
