"""The transport of a single process: the same roles and protocol, without MPI.

The loop of process 0 polls its own transport; the other roles have process numbers of their own, but are hosted here,
and run whenever process 0 polls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

import numpy as np

from ddrl.exchange.messages import Message
from ddrl.exchange.transport import Blob, Channel, Event


class Hosted(Protocol):
    """The methods of a hosted role: it takes events, and does some of its own work at each poll."""

    def handle(self, event: Event) -> None: ...

    def advance(self) -> None: ...

    def busy(self) -> bool:
        """Whether it has work to do at the next poll even if no message comes."""
        ...


def _lasting(payload: np.ndarray | None) -> np.ndarray | None:
    """Returns a payload that cannot change later: the given one if it is read-only, else a copy."""
    return payload if payload is None or not payload.flags.writeable else payload.copy()


class LocalTransport:
    """A transport over mailboxes in memory; this object sends and receives for process `rank`.

    The interface is `ddrl.exchange.transport.Transport`.
    """

    remote = False

    def __init__(self, rank: int = 0, mailboxes: dict[int, deque[Event]] | None = None):
        self.rank = rank
        self._mailboxes = {} if mailboxes is None else mailboxes
        self._mailboxes[rank] = deque()
        self._hosted: dict[int, tuple[LocalTransport, Hosted]] = {}

    def port(self, rank: int) -> LocalTransport:
        """Makes the transport of process `rank`, whose role will be hosted here."""
        return LocalTransport(rank, self._mailboxes)

    def host(self, port: LocalTransport, role: Hosted) -> None:
        """Runs `role`, whose transport is `port`, whenever this transport is polled."""
        self._hosted[port.rank] = (port, role)

    def open(self, channels: Iterable[Channel]) -> None:
        """Nothing to do: a mailbox takes everything."""

    def send(self, items: Iterable[Message | Blob]) -> None:
        for item in items:
            if isinstance(item, Blob):
                event: Event = Blob(self.rank, item.topic, item.data)
            else:
                event = Message(self.rank, item.header, _lasting(item.payload))
            self._mailboxes[item.peer].append(event)

    def poll(self) -> list[Event]:
        for port, role in self._hosted.values():
            for event in port.take():
                role.handle(event)
            role.advance()
        return self.take()

    def pending(self) -> bool:
        return any(self._mailboxes.values()) or any(role.busy() for _, role in self._hosted.values())

    def take(self) -> list[Event]:
        """Empties this process' mailbox, and returns what was in it."""
        events = list(self._mailboxes[self.rank])
        self._mailboxes[self.rank].clear()
        return events

    def flush(self, timeout: float) -> bool:
        return True
