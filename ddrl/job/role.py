"""What the roles of a job say to each other besides the exchange, and the loop that every role runs in."""

from __future__ import annotations

import contextlib
import enum
import json
import math
import signal
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ddrl.errors import in_one_line
from ddrl.exchange.transport import Blob, Event, PeerLost, Transport, Waiter
from ddrl.job.layout import JobContext, JobLayout
from ddrl.rundir import RESULT, STOP

LAST_SECONDS = 300.0  # for the last checkpoint and the end, beyond the time of the last games


class Topic(enum.IntEnum):
    """What a blob is about."""

    SETUP = 1  # chief -> everyone: sizes, and a worker's saved state; the job begins
    REPORT = 2  # everyone -> chief: metrics since the last report (JSON)
    STATE = 3  # worker -> chief: its state at a checkpoint (arrays)
    EVALUATE = 4  # chief -> evaluator: play with this version (JSON)
    RESULT = 5  # evaluator -> chief: the scores (JSON)
    FAILED = 6  # everyone -> chief: this rank cannot go on, and why (JSON)
    END = 7  # chief -> everyone: the job is over
    EVENT = 8  # everyone -> chief: something to be noted (JSON)
    SEGMENT = 9  # actor -> replay shard: transitions (see ddrl.apex.segment)
    SAVE = 10  # learner -> replay shard: save the replay (JSON)
    SAVED = 11  # replay shard -> learner: its manifest (arrays)
    HALT = 12  # learner -> actors: learning is over, act no more
    STATE_DUE = 13  # chief -> workers: asynchronous updates have a checkpoint, whose parts are named so (JSON)


class RoleLost(Exception):
    """A process died without which the job cannot go on: the chief or a parameter server."""


class Wait(NamedTuple):
    """Something that is due.

    Attributes:
        what: such as 'gradients of step 12'; another text is another wait.
        peers: processes that it is to come from; none where it is to come from this process itself.
        patience_seconds: it may take this long, however short --stall-seconds is.
        essential: nobody can go on without it, not even where this process could leave by itself.
    """

    what: str
    peers: tuple[int, ...]
    patience_seconds: float = 0.0
    essential: bool = False


class Role(Protocol):
    """One role of a process. It never blocks for long: everything that waits is polled."""

    finished: bool

    def handle(self, event: Event) -> None:
        """Takes one message, blob or death."""

    def advance(self) -> None:
        """Does what is due by itself; called after every poll."""

    def due(self) -> bool:
        """Whether a message may come that others wait for the answer to, so that this role must not sleep long."""

    def waits(self) -> Wait | None:
        """What is due to this role, or None. The watchdog asks twice a second."""


class StopSignal:
    """SIGTERM, SIGINT or SIGUSR1 to any rank asks the whole job to checkpoint and end, through the file `stop`.

    A job that has its result is ending, and whoever ends it sends SIGTERM: that asks for nothing.
    """

    def __init__(self, run_dir: Path):
        self._path, self._result = run_dir / STOP, run_dir / RESULT
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        with contextlib.suppress(OSError):  # a file system that is lost is for the chief to tell of
            if not self._result.exists():
                self._path.touch()


def run_roles(
    roles: list[Role], transport: Transport, waiter: Waiter, note: Callable[[list[Role]], None] = lambda roles: None
) -> None:
    """Runs the roles of this process until all of them are finished; `note` is told of every round."""
    while not all(role.finished for role in roles):
        events = transport.poll()
        for event in events:
            for role in roles:
                role.handle(event)
        for role in roles:
            role.advance()
        note(roles)
        progress = bool(events) or transport.pending()
        waiter.wait(progress, any(role.due() for role in roles), transport.remote)


def waiter_with_alarm(ranks_per_core: float = 0.0) -> tuple[Waiter, Callable[[], None]]:
    """A waiter whose sleep another thread can end by calling the second value."""
    alarm = threading.Event()

    def sleep(seconds: float) -> None:
        alarm.wait(seconds)
        alarm.clear()

    return Waiter(sleep=sleep, ranks_per_core=ranks_per_core), alarm.set


def json_blob(peer: int, topic: Topic, content: Any) -> Blob:
    """A blob that carries JSON."""
    return Blob(peer, topic, json.dumps(content).encode())


def failure_of(error: BaseException) -> dict[str, str]:
    """What FAILED says of an exception that is being handled: its traceback, and the error in one line."""
    return {"text": traceback.format_exc(), "line": in_one_line(error)}


def essential_lost(event: Event, layout: JobLayout) -> None:
    """Raises RoleLost if the event is the death of a process that the job cannot do without."""
    if isinstance(event, PeerLost) and (event.peer == layout.chief or event.peer in layout.servers):
        raise RoleLost(f"{layout.name(event.peer)} died")


def first_word(context: JobContext) -> Wait:
    """The wait for SETUP: the chief may still be loading TensorFlow."""
    return Wait("the chief's first word", (context.layout.chief,), context.config.run.start_seconds)


def end_of_job(context: JobContext) -> Wait:
    """The wait for END after the last update: the last evaluation takes its time."""
    trained_seconds = 60.0 * context.config.run.minutes or math.inf
    patience = LAST_SECONDS + context.config.evaluation.longest_final_seconds(trained_seconds)
    return Wait("the end of the job", (context.layout.chief,), patience)
