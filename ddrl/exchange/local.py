"""The transport of a single process: the same roles and protocol, without MPI.

One role (process 0) drives; the others are hosted here and run whenever it polls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

import numpy as np

from ddrl.exchange.messages import Message
from ddrl.exchange.transport import Blob, Channel, Event


class Hosted(Protocol):
    """What a hosted role offers: it takes events, and does a bit of its own work when asked."""

    def handle(self, event: Event) -> None: ...

    def advance(self) -> None: ...

    def busy(self) -> bool:
        """Whether it has work to go on with at the next poll, though no message comes."""
        ...


def _lasting(payload: np.ndarray | None) -> np.ndarray | None:
    """A payload that stays as it is: itself where nobody may write to it, else a copy."""
    return payload if payload is None or not payload.flags.writeable else payload.copy()


class LocalTransport:
    """Process `rank`'s end of a set of in-process mailboxes; see `ddrl.exchange.transport.Transport`."""

    remote = False

    def __init__(self, rank: int = 0, mailboxes: dict[int, deque[Event]] | None = None):
        self.rank = rank
        self._mailboxes = {} if mailboxes is None else mailboxes
        self._mailboxes[rank] = deque()
        self._hosted: dict[int, tuple[LocalTransport, Hosted]] = {}

    def port(self, rank: int) -> LocalTransport:
        """The end of another process that will be hosted here."""
        return LocalTransport(rank, self._mailboxes)

    def host(self, port: LocalTransport, role: Hosted) -> None:
        """Runs `role`, whose messages leave from `port`, whenever this end polls."""
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
        """Empties this end's mailbox."""
        events = list(self._mailboxes[self.rank])
        self._mailboxes[self.rank].clear()
        return events

    def flush(self, timeout: float) -> bool:
        return True
