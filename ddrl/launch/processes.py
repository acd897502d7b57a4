"""Ending what a launcher started, also processes that are grouped, reparented, or in sessions of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple


def session_members(session: int) -> list[int]:
    """Living processes of a session, and what they have started in sessions of their own (zombies are dead).

    The mpirun of Open MPI gives its ranks groups, but no sessions; that of MPICH gives each a session.
    """
    return list(_members(session, {}))


def _members(session: int, known: Mapping[int, int]) -> dict[int, int]:
    """Process -> start of the members of a session that live, and of those `known` to have been some: a member with a
    session of its own is seen no more once its parent is dead."""
    living = dict(_living())
    members = {
        pid: stat.started for pid, stat in living.items() if stat.session == session or known.get(pid) == stat.started
    }
    newest = set(members)
    while newest:
        newest = {pid for pid, stat in living.items() if stat.parent in newest and pid not in members}
        members |= {pid: living[pid].started for pid in newest}
    return members


def children(parent: int) -> list[int]:
    """Living processes that it started itself."""
    return [pid for pid, stat in _living() if stat.parent == parent]


class Stat(NamedTuple):
    """State (a letter), parent and session of a process, and when it started, in ticks of the system's clock."""

    state: str
    parent: int
    session: int
    started: int


def stat_of(pid: int | str) -> Stat | None:
    """What /proc says of a process; None where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # "pid (name) state parent group session ...", where the name may hold anything, brackets and half a letter included
    state, parent, _, session, *others = stat[stat.rfind(")") + 2 :].split()
    return Stat(state, int(parent), int(session), int(others[15]))


def _living() -> Iterator[tuple[int, Stat]]:
    """All processes that /proc has, but for zombies."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (stat := stat_of(entry)) is not None and stat.state not in "ZX":
            yield int(entry), stat


def end_session(session: int, grace_seconds: float = 5.0) -> None:
    """SIGTERM to every process of a session, SIGKILL after the grace; see `session_members`."""
    members = _signal(session, {}, signal.SIGTERM)
    end = time.monotonic() + grace_seconds
    while members and time.monotonic() < end:
        time.sleep(0.05)
        members = _members(session, members)
    for _ in range(50):  # a member may fork between the listing and the kill
        if not members:
            return
        members = _signal(session, members, signal.SIGKILL)
        time.sleep(0.1)


def _signal(session: int, known: Mapping[int, int], number: int) -> dict[int, int]:
    """Sends a signal to all `_members`; returns them."""
    members = _members(session, known)
    for pid in members:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return members


class Interrupts:
    """Counts requests to end while it is open: the first signal asks to stop, a later Ctrl-C to kill.

    SIGTERM and SIGHUP only ever ask: batch systems send them more than once. A SIGHUP that is ignored, as under nohup,
    stays so. Python gives signals to its main thread alone: a run that another thread started hears none. Of several
    that are open, all count: what runs several runs learns that one of them was asked to stop.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.stop: signal.Signals | None = None
        self.kill = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            heard = [number for number in self.SIGNALS if number != signal.SIGHUP or not nohup]
            self._before = {number: signal.signal(number, self._handle) for number in heard}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: object) -> None:
        self.kill = self.kill or (self.stop is not None and number == signal.SIGINT)
        self.stop = self.stop or signal.Signals(number)
        before = self._before[number]
        if isinstance(getattr(before, "__self__", None), Interrupts):
            before(number, frame)
