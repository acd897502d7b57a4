"""The chief's word: where updates are asynchronous nobody needs the chief to train, and one that is silent would not be
missed: no checkpoint, no line of metrics, and no end when one is asked for. So it speaks, and the others wait for that.
"""

from __future__ import annotations

import time

from ddrl.exchange.messages import Header, Kind, Message
from ddrl.exchange.transport import Blob, Channel, Event, Transport
from ddrl.job.layout import JobContext
from ddrl.job.role import Topic, Wait

WORD_SECONDS = 1.0  # between two words


class WordRole:
    """Beside the other roles of a worker's or a server's process: speaks where that is the chief's, else listens."""

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
