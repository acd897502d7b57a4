"""The role of an actor of Ape-X: it keeps a child process acting, and passes on its messages. No TensorFlow.

    child process --segments--> this role --MPI--> replay shards
          ^------- newest published parameters ---- parameter servers

The acting is a process of its own because MPI cannot bring back a dead rank, and a child can be started again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from ddrl.apex.child import Frame, Received
from ddrl.exchange.client import Reader
from ddrl.exchange.messages import Kind, Message
from ddrl.exchange.sharding import shard_ranges
from ddrl.exchange.transport import Blob, Channel, Event, PeerLost, Transport
from ddrl.job.layout import JobContext
from ddrl.job.role import Topic, Wait, end_of_job, essential_lost, first_word, json_blob

FIRST_PAUSE_SECONDS = 0.5  # before a child is started again; twice as long each time, until one has lived for long
LONGEST_PAUSE_SECONDS = 5.0
FAILURES = 5  # children in a row that failed by themselves in a short life, after which the actor gives up
LONG_SECONDS = 600.0  # a long life; with a shorter one, games that all end in an error would begin again for ever
RUN_BITS = 32


class ActingProcess(Protocol):
    """What `ddrl.apex.child.Child` offers."""

    def send(self, kind: Frame, number: int, data: object = b"") -> None: ...

    def flush(self) -> None: ...

    def receive(self) -> Received | None: ...

    def status(self) -> int | None: ...

    def last_words(self) -> list[Received]: ...

    def end(self) -> None: ...


@dataclasses.dataclass
class _Credit:
    """Segments that went to a living shard, and how many of these it has taken."""

    process: int
    sent: int = 0
    taken: int = 0


class ActorRole:
    """Waits for the learner's SETUP, then keeps a child acting until HALT or END.

    A segment goes to the next shard with fewer than `--segments-in-flight` of this actor's segments to acknowledge. If
    there is none, nothing is read from the child, which then waits, and nobody else does. The child is told of each
    segment that went, and acts no more than one segment of each simulator ahead.

    Args:
        index: of this actor.
        start: (run_id, agent steps of this actor so far) -> a new child, which sends segments with that id.
    """

    def __init__(
        self, context: JobContext, transport: Transport, index: int, start: Callable[[int, int], ActingProcess]
    ):
        self.context, self.transport, self.index, self._start = context, transport, index, start
        self.finished = self._halted = False
        self.child: ActingProcess | None = None
        self.restarts = 0
        self._reader: Reader | None = None
        self._fetching = self._asked = False
        self._has = -1  # the version that the child has
        self._shards = [_Credit(process) for process in context.layout.replay_shards]
        self._next_shard = index  # actors begin with different ones
        self._segment: bytes | None = None  # the segment that waits for room
        self._taken = 0  # segments of this child that have gone to a shard
        self._run_id = self._agent_steps = 0
        self._failures, self._pause, self._start_at = 0, FIRST_PAUSE_SECONDS, 0.0
        self._failure: dict[str, str] = {}  # what the child said of its end
        self._born = self._heard = 0.0  # when the child was started, and when it last said something or had to wait
        self._told_restarts = 0

    def handle(self, event: Event) -> None:
        essential_lost(event, self.context.layout)
        if isinstance(event, PeerLost):
            self._shards = [shard for shard in self._shards if shard.process != event.peer]
        elif isinstance(event, Message) and event.header.kind == Kind.PUBLISHED:
            self._on_published(event)
        elif isinstance(event, Message) and event.header.kind == Kind.ACKNOWLEDGE:
            for shard in self._shards:
                if shard.process == event.peer:
                    shard.taken = event.header.count
        elif isinstance(event, Blob) and event.topic == Topic.SETUP:
            self._begin(**json.loads(event.data))
        elif isinstance(event, Blob) and event.topic in (Topic.HALT, Topic.END):
            self._halt()
            self.finished = self.finished or event.topic == Topic.END

    def advance(self) -> None:
        if self._reader is None or self._halted:
            return
        if self.child is None:
            if time.monotonic() >= self._start_at:
                self._begin_child()
            return
        self.child.flush()
        ended = self.child.status()  # asked before its last frames are read
        self._listen()
        if self.child is None:
            return
        if ended is not None:
            self._hear_last_words(self.child)
            self._on_ended(f"signal {-ended}" if ended < 0 else f"exit status {ended}", ended >= 0)
        elif patience := self._exceeded():
            self._on_ended(f"silence of {patience:g} s", True)

    def due(self) -> bool:
        return self.child is not None

    def waits(self) -> Wait | None:
        if self._halted:
            return end_of_job(self.context)
        return first_word(self.context) if self._reader is None else None

    def _begin(self, run: int, parameters: int, agent_steps: int) -> None:
        layout = self.context.layout
        self._run_id, self._agent_steps = run << RUN_BITS, agent_steps
        self._reader = Reader(layout.servers, shard_ranges(parameters, len(layout.servers)))
        self.transport.open(self._reader.assembler.channels(layout.servers, Kind.PUBLISHED))
        self.transport.open(Channel(shard.process, Kind.ACKNOWLEDGE) for shard in self._shards)

    def _halt(self) -> None:
        self._halted = True
        if self.child is not None:
            self.child.end()
            self.child = None

    # Parameters ----------------------------------------------------------------------------------------------

    @property
    def reader(self) -> Reader:
        """The reader of published parameters, once the learner's SETUP has come.

        Raises:
            RuntimeError: a message that needs it came before SETUP.
        """
        if self._reader is None:
            raise RuntimeError(f"actor {self.index} received a message before its setup")
        return self._reader

    def _refresh(self, version: int) -> None:
        """Fetches newer parameters for the child, which has this version (-1: none).

        A new child has none. It begins with the version that is here, which may be as old as the death of the child
        before it, and gets the newest one as well.
        """
        self._asked, self._has = True, version
        if version < 0:
            self._give()
            self._asked = True
        if not self._fetching:
            self._fetching = True
            latest = self.reader.latest
            self.transport.send(self.reader.fetch(0 if latest is None else latest.version + 1))

    def _on_published(self, message: Message) -> None:
        again, snapshot = self.reader.handle(message.header, message.payload)
        self.transport.send(again)
        if snapshot is not None:
            self._fetching = False
            self._give()

    def _give(self) -> None:
        latest = self.reader.latest
        if self.child is not None and self._asked and latest is not None and latest.version > self._has:
            self._asked, self._has = False, latest.version
            self.child.send(Frame.PARAMETERS, latest.version, np.ascontiguousarray(latest.parameters))

    # Segments ------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        while self.child is not None and self._forward():
            try:
                frame = self.child.receive()
                if frame is None:
                    return
                self._heard = time.monotonic()
                self._on_frame(frame)
            except ValueError as error:
                self._on_ended(f"an unreadable message ({' '.join(str(error).split()):.100})", True)
                return

    def _hear_last_words(self, child: ActingProcess) -> None:
        """Reads what a child that has ended still said, such as why; its segments that wait for room are lost."""
        with contextlib.suppress(ValueError):  # from bytes that are no frame
            for frame in child.last_words():
                if frame.kind != Frame.SEGMENT:
                    self._on_frame(frame)

    def _on_frame(self, frame: Received) -> None:
        if frame.kind == Frame.SEGMENT:
            self._segment = frame.data
        elif frame.kind == Frame.REFRESH:
            self._refresh(frame.number)
        elif frame.kind == Frame.REPORT:
            self._report(json.loads(frame.data))
        elif frame.kind == Frame.COMPLAINT:
            self._event("segment_not_sent", f"actor {self.index}: {frame.data.decode(errors='replace')}")
        elif frame.kind == Frame.FAILURE:
            self._failure = json.loads(frame.data)

    def _forward(self) -> bool:
        """Sends the segment that waits, if there is one; returns whether another one may be read."""
        if self._segment is None:
            return True
        limit = self.context.config.apex.segments_in_flight
        for turn in range(len(self._shards)):
            shard = self._shards[(self._next_shard + turn) % len(self._shards)]
            if shard.sent - shard.taken < limit:
                self._next_shard = (self._next_shard + turn + 1) % len(self._shards)
                shard.sent += 1
                self.transport.send([Blob(shard.process, Topic.SEGMENT, self._segment)])
                self._segment = None
                self._taken += 1
                if self.child is not None:
                    self.child.send(Frame.TAKEN, self._taken)
                return True
        return False

    def _report(self, report: dict) -> None:
        self._agent_steps += int(report["counters"].get("agent_steps", 0))
        restarts = self.restarts - self._told_restarts
        if restarts:
            report["counters"]["actor_restarts"] = restarts
            self._told_restarts = self.restarts
        self.transport.send([json_blob(self.context.layout.chief, Topic.REPORT, report)])

    # Death and birth -----------------------------------------------------------------------------------------

    def _begin_child(self) -> None:
        self._run_id, self._asked, self._has, self._taken, self._failure = self._run_id + 1, False, -1, 0, {}
        self._born = self._heard = time.monotonic()
        try:
            self.child = self._start(self._run_id, self._agent_steps)
        except OSError as error:  # no memory, or too many processes
            self._on_ended(f"a start that failed: {error.strerror}", True)

    def _exceeded(self) -> float:
        """The seconds for which the child may be silent, if it has been silent for longer; otherwise 0."""
        run, now = self.context.config.run, time.monotonic()
        if self._segment is not None or (self._asked and self._has < 0):
            self._heard = now  # it waits for room, or for its first parameters
        patience = max(run.stall_seconds, run.start_seconds) if run.stall_seconds else math.inf
        return patience if now - self._heard > patience else 0.0

    def _on_ended(self, how: str, own_fault: bool) -> None:
        """Ends the child if it still runs, and plans to start another after a pause, unless too many have failed."""
        if self.child is not None:
            self.child.end()
        self.child, self._segment = None, None
        self.restarts += 1
        if time.monotonic() - self._born >= LONG_SECONDS:
            self._failures, self._pause = 0, FIRST_PAUSE_SECONDS
        else:
            self._failures += own_fault  # a signal is not its own fault
        how = ": ".join([how, *filter(None, [self._failure.get("line")])])
        if self._failures >= FAILURES:
            line = f"its process failed {FAILURES} times, each within {LONG_SECONDS / 60:g} minutes, at last by {how}"
            text = "\n".join([line, *filter(None, [self._failure.get("text")])])
            self.transport.send([json_blob(self.context.layout.chief, Topic.FAILED, {"text": text, "line": line})])
            self._halt()
            return
        self._event(
            "actor_restarted",
            f"the process of actor {self.index} ended by {how}; the next one starts in {self._pause:g} s",
        )
        self._start_at = time.monotonic() + self._pause
        self._pause = min(2.0 * self._pause, LONGEST_PAUSE_SECONDS)

    def _event(self, name: str, text: str) -> None:
        self.transport.send([json_blob(self.context.layout.chief, Topic.EVENT, {"name": name, "text": text})])
