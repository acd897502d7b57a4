"""The chief's sign of life, a WORD once a second, in jobs with asynchronous updates.

In such a job, workers and servers can train without the chief. They would not notice if it hung, though the run would
have no more checkpoints and metrics, and would not end when asked to. So they wait for its WORD, and the watchdog ends
a job in which it does not come.
"""

from __future__ import annotations

import time

from ddrl.exchange.messages import Header, Kind, Message
from ddrl.exchange.transport import Blob, Channel, Event, Transport
from ddrl.job.layout import JobContext
from ddrl.job.role import Topic, Wait

WORD_SECONDS = 1.0  # between two words


class WordRole:
    """A role beside the others of a process: in the chief's process, it sends the WORD; elsewhere, it waits for it."""

    def __init__(self, context: JobContext, transport: Transport):
        layout = context.layout
        self._context, self._transport = context, transport
        self._mine = transport.rank == layout.chief
        self._others = sorted({*layout.workers.values(), *layout.servers} - {layout.chief})
        self._words, self._next = 0, 0.0
        self.finished = False
        if not self._mine:
            transport.open([Channel(layout.chief, Kind.WORD)])

    def handle(self, event: Event) -> None:
        if isinstance(event, Message):
            self._words += event.header.kind == Kind.WORD
        elif isinstance(event, Blob):
            self.finished = self.finished or event.topic == Topic.END

    def advance(self) -> None:
        now = time.monotonic()
        if self._mine and not self.finished and now >= self._next:
            self._next = now + WORD_SECONDS
            self._transport.send(Message(process, Header(Kind.WORD), newest_only=True) for process in self._others)

    def due(self) -> bool:
        return False

    def waits(self) -> Wait | None:
        if self._mine or self.finished:
            return None
        patience = 0.0 if self._words else self._context.config.run.start_seconds
        return Wait(f"word {self._words + 1} of the chief", (self._context.layout.chief,), patience)
