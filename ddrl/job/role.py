"""The messages between roles that are not of the exchange, and the loop in which every role runs."""

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

from ddrl.errors import UsageError, in_one_line, raised_at
from ddrl.exchange.transport import Blob, Event, PeerLost, Transport, Waiter
from ddrl.files import leave_mark
from ddrl.job.layout import JobContext, JobLayout
from ddrl.rundir import RESULT, STOP

LAST_SECONDS = 300.0  # time for the last checkpoint and the end of the job, beyond that of the last games


class Topic(enum.IntEnum):
    """The topic of a blob."""

    SETUP = 1  # chief -> servers and workers, learner -> replay shards and actors: sizes or saved state; begin
    REPORT = 2  # everyone -> chief: metrics since the last report (JSON)
    STATE = 3  # worker -> chief: its state at a checkpoint (arrays)
    EVALUATE = 4  # chief -> evaluator: play with this version (JSON)
    RESULT = 5  # evaluator -> chief: the scores (JSON)
    FAILED = 6  # everyone -> chief: this rank cannot go on, and why (JSON)
    END = 7  # chief -> everyone: the job is over
    EVENT = 8  # everyone -> chief: an event for the metrics (JSON)
    SEGMENT = 9  # actor -> replay shard: transitions (see ddrl.apex.segment)
    SAVE = 10  # learner -> replay shard: save the replay (JSON)
    SAVED = 11  # replay shard -> learner: its manifest (arrays)
    HALT = 12  # learner -> actors and replay shards: learning is over, act no more
    STATE_DUE = 13  # chief -> workers: send the state of this number; asynchronous updates, quorums, deadlines (JSON)


class RoleLost(Exception):
    """A process that the job cannot do without has died: the chief or a parameter server."""


class Wait(NamedTuple):
    """Something that a role waits for.

    Attributes:
        what: a description, such as 'gradients of step 12'.
        peers: processes from which it has to come; empty if it has to come from this process itself.
        patience_seconds: it may take this long, however short --stall-seconds is.
        essential: whether no rank can go on without it, so that it does not help if this process alone leaves.
        progress: a count that grows while what has to come is on its way.

    A wait that differs in any of these is a new one, which has lasted for no time yet.
    """

    what: str
    peers: tuple[int, ...]
    patience_seconds: float = 0.0
    essential: bool = False
    progress: int = 0


class Role(Protocol):
    """One role of a process. Its methods never block for long: what a role waits for is polled."""

    finished: bool

    def handle(self, event: Event) -> None:
        """Takes one message or blob, or the death of a process."""

    def advance(self) -> None:
        """Does the work that no message asks for; called after every poll."""

    def due(self) -> bool:
        """Whether the process must poll often, because a message that matters to this role may come at any moment."""

    def waits(self) -> Wait | None:
        """What this role waits for, or None. The watchdog asks twice a second."""


def stop_on_signals(run_dir: Path) -> None:
    """From now on SIGTERM, SIGINT and SIGUSR1 ask the whole job, on any rank, to checkpoint and end.

    The request is the file `stop` in the run directory. Signals are ignored once a job has its result: it is ending
    anyway, and SIGTERM then comes from what ends its ranks, such as mpirun.
    """

    def ask(number: int, frame: object) -> None:
        with contextlib.suppress(OSError):  # if the file system is lost, the chief reports it
            if not (run_dir / RESULT).exists():
                leave_mark(run_dir / STOP)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, ask)


def run_roles(
    roles: list[Role], transport: Transport, waiter: Waiter, note: Callable[[list[Role]], None] = lambda roles: None
) -> None:
    """Runs the roles of this process until all of them are finished; calls `note` with them in every round."""
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
    """Makes a waiter, and a function with which another thread can end the waiter's sleep."""
    alarm = threading.Event()

    def sleep(seconds: float) -> None:
        alarm.wait(seconds)
        alarm.clear()

    return Waiter(sleep=sleep, ranks_per_core=ranks_per_core), alarm.set


def json_blob(peer: int, topic: Topic, content: Any) -> Blob:
    """A blob that carries JSON."""
    return Blob(peer, topic, json.dumps(content).encode())


def failure_of(error: BaseException) -> dict[str, str]:
    """The content of FAILED for an exception that is being handled: its traceback, and the error in one line."""
    place = "" if isinstance(error, UsageError) else raised_at(error)
    return {"text": traceback.format_exc(), "line": in_one_line(error) + place}


def essential_lost(event: Event, layout: JobLayout) -> None:
    """Raises RoleLost if the event is the death of a process that the job cannot do without."""
    if isinstance(event, PeerLost) and (event.peer == layout.chief or event.peer in layout.servers):
        raise RoleLost(f"{layout.name(event.peer)} died")


def first_word(context: JobContext) -> Wait:
    """The wait for SETUP, which may take long, since the chief may still be loading TensorFlow."""
    return Wait("the chief's first word", (context.layout.chief,), context.config.run.start_seconds)


def end_of_job(context: JobContext) -> Wait:
    """The wait for END after the last update, which may take as long as the final evaluation."""
    trained_seconds = 60.0 * context.config.run.minutes or math.inf
    patience = LAST_SECONDS + context.config.evaluation.longest_final_seconds(trained_seconds)
    return Wait("the end of the job", (context.layout.chief,), patience)
