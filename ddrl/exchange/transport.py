"""The interface of a transport, which carries the messages of the exchange, and how a role waits between polls.

`ddrl.exchange.mpi` has the transport of jobs, and `ddrl.exchange.local` that of a single process; the tests have a fake
one, which goes through the possible orders of arrival.
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
SLEEP_SHARE = 1 / 8  # length of a sleep, as a share of the wait so far
CROWDED = 8.0  # ranks per core above which sleeps grow in proportion
MOST_PATIENCE = 4.0  # largest factor by which they grow: a sleep is then half of the wait so far


@dataclasses.dataclass(frozen=True)
class Blob:
    """A message of any number of bytes about `topic`, to or from the process `peer`."""

    peer: int
    topic: int
    data: bytes


@dataclasses.dataclass(frozen=True)
class PeerLost:
    """The process `peer` is dead; it is reported once."""

    peer: int


@dataclasses.dataclass(frozen=True)
class Channel:
    """One kind of message from one process, for which a receive is always posted.

    Attributes:
        peer: process that sends.
        kind: kind of the messages.
        floats: most float32 values in a payload (0: the messages have no payload).
        into: returns the array <float32>[floats] that takes the next payload; called once the previous one has been
            handled. By default the transport has buffers of its own.
    """

    peer: int
    kind: Kind
    floats: int = 0
    into: Callable[[], np.ndarray] | None = None


Event = Message | Blob | PeerLost


class Transport(Protocol):
    """Point-to-point messages between processes. No call blocks, except `flush`: a process that waits polls.

    Attributes:
        rank: rank of this process.
        remote: whether messages may come from other processes at any time; else they come only from this process.
    """

    rank: int
    remote: bool

    def open(self, channels: Iterable[Channel]) -> None:
        """Receives on these channels from now on. Blobs from every other process are received anyway."""

    def send(self, items: Iterable[Message | Blob]) -> None:
        """Starts to send; payloads are borrowed until they are sent. Messages to dead peers are dropped."""

    def poll(self) -> list[Event]:
        """Returns what has arrived since the last call."""

    def pending(self) -> bool:
        """Whether the next poll is certain to return something, since roles of this process have sent it."""

    def flush(self, timeout: float) -> bool:
        """Waits until everything is sent, but at most `timeout` seconds; returns whether everything is sent."""


IDLE_LEAST_SECONDS = 0.001  # shortest sleep while nothing is due: shorter ones take time from threads that compute


class Waiter:
    """Waits between polls: yields the core at first, then sleeps a fixed share of the time that it has waited.

    Blocking MPI calls spin, which takes the core from threads that compute; so nothing blocks in MPI. A sleep that is a
    share of the wait so far adds at most that share to any delay, and costs less and less. If many ranks share each
    core, those that wait take it from those that have work, so they sleep longer.

    Args:
        yield_seconds: how long to yield, after the last progress, while something is due. A sleep, however short,
            costs 25 microseconds of processor time in a virtual machine; a yield costs two.
        shortest_sleep: shortest sleep in seconds while something is due.
        longest_sleep: longest sleep in seconds while something is due.
        idle_sleep: longest sleep in seconds while nothing is due, as in a worker that computes or an evaluator between
            games. No such sleep is shorter than IDLE_LEAST_SECONDS.
        sleep: function that sleeps, given for a role that another thread may wake up.
        ranks_per_core: ranks of this job per core of this host (0: not known, and taken for few).
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
        """Yields or sleeps; to be called after each poll.

        Args:
            progress: whether the poll returned something; then this does not wait.
            due: whether a message is expected soon.
            remote: whether it may come from another process; else another thread of this process ends the sleep.
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
    """Lets this thread's sleeps end at most a microsecond late; by default Linux may add 50 microseconds."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0)
