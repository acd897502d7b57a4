"""What the protocol needs from whatever carries its messages, and how a role waits.

`ddrl.exchange.mpi` is the real one; the tests have a fake one that walks through interleavings.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import random
import sys
import time
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np

from ddrl.exchange.messages import Kind, Message

PR_SET_TIMERSLACK = 29  # <sys/prctl.h>
SLEEP_SHARE = 1 / 8  # of the wait so far
CROWDED = 8.0  # ranks for each core, from which on sleeps grow in proportion,
MOST_PATIENCE = 4.0  # up to so many times: then sleeps are half of the wait


@dataclasses.dataclass(frozen=True)
class Blob:
    """Bytes of any length about `topic`, from or to `peer`."""

    peer: int
    topic: int
    data: bytes


@dataclasses.dataclass(frozen=True)
class PeerLost:
    """The process `peer` is dead; it is reported once."""

    peer: int


@dataclasses.dataclass(frozen=True)
class Channel:
    """A receive to keep posted.

    Attributes:
        peer: whom from.
        kind: of the messages.
        floats: float32 values of payload (0: the messages have none).
        into: gives the array <float32>[floats] for the next payload; called when the last one was handled.
    """

    peer: int
    kind: Kind
    floats: int = 0
    into: Callable[[], np.ndarray] | None = None


Event = Message | Blob | PeerLost


class Transport(Protocol):
    """Point-to-point messages. Nothing blocks; whoever waits polls.

    Attributes:
        rank: of this process.
        remote: messages may come from other processes at any time; else only what this process does brings some.
    """

    rank: int
    remote: bool

    def open(self, channels: Iterable[Channel]) -> None:
        """Keeps a receive posted for each channel. Blobs from every other process are received anyway."""

    def send(self, items: Iterable[Message | Blob]) -> None:
        """Starts sending; payloads are borrowed until they are gone. What goes to dead peers is dropped."""

    def poll(self) -> list[Event]:
        """What has arrived since the last call."""

    def pending(self) -> bool:
        """Whether the next poll brings something for sure: what roles of this process have said to each other."""

    def flush(self, timeout: float) -> bool:
        """Waits until everything is sent, at most `timeout` seconds; True if it is."""


IDLE_LEAST_SECONDS = 0.001  # of a sleep while nothing is due: short ones cost whoever computes beside it


class Waiter:
    """Waits between polls: yields the core at first, then sleeps a fixed share of the time that it has waited.

    Blocking MPI calls spin, which takes the core from whoever computes; so nobody blocks in MPI. A sleep that is a
    share of the wait so far adds at most that share to any delay, and costs less and less. Where many ranks share each
    core, those that wait take it from those that have work, so they sleep longer.

    Args:
        yield_seconds: how long to yield, after the last progress, while something is due. A sleep, however short,
            costs 25 microseconds of processor time in a virtual machine, a yield two.
        shortest_sleep: seconds.
        longest_sleep: seconds, while something is due.
        idle_sleep: seconds, while nothing is: a worker that computes, an evaluator between games. No such sleep is
            shorter than IDLE_LEAST_SECONDS.
        sleep: for a role that another thread may wake up.
        ranks_per_core: of this job on this host (0: as few as one).
    """

    def __init__(
        self,
        yield_seconds: float = 300e-6,
        shortest_sleep: float = 60e-6,
        longest_sleep: float = 0.004,
        idle_sleep: float = 0.02,
        sleep: Callable[[float], object] = time.sleep,
        ranks_per_core: float = 0.0,
    ):
        patience = min(MOST_PATIENCE, max(1.0, ranks_per_core / CROWDED))
        self.yield_seconds, self.shortest_sleep = yield_seconds, shortest_sleep
        self.longest_sleep, self.idle_sleep = patience * longest_sleep, max(idle_sleep, patience * longest_sleep)
        self.sleep_share = patience * SLEEP_SHARE
        self._sleep = sleep
        self._last_progress = time.monotonic()
        exact_sleep()

    def wait(self, progress: bool, due: bool, remote: bool = True) -> None:
        """Call after each poll.

        Args:
            progress: it brought something.
            due: an answer is expected soon.
            remote: it may come from another process; else another thread of this one ends the sleep.
        """
        now = time.monotonic()
        if progress:
            self._last_progress = now
            return
        if not remote:
            self._sleep(self.idle_sleep)
            return
        waited = now - self._last_progress
        if due and waited < self.yield_seconds:
            os.sched_yield()
        else:
            shortest, longest = (
                (self.shortest_sleep, self.longest_sleep) if due else (IDLE_LEAST_SECONDS, self.idle_sleep)
            )
            pause = min(longest, max(shortest, waited * self.sleep_share))
            self._sleep(pause * random.uniform(0.8, 1.2))


def exact_sleep() -> None:
    """Lets this thread's sleeps end within a microsecond of what was asked; Linux adds 50 by default."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0)
