"""Who is who in a job, what they say to each other besides the exchange, and the loop that every role runs in."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import signal
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from cluster.roles import Assignment
from ddrl.config import TrainConfig
from ddrl.errors import in_one_line
from ddrl.exchange.transport import Blob, Event, PeerLost, Transport, Waiter
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
    SEGMENT = 9  # actor -> replay shard: transitions (see ddrl.replay.segment)
    SAVE = 10  # learner -> replay shard: save the replay (JSON)
    SAVED = 11  # replay shard -> learner: its manifest (arrays)
    HALT = 12  # learner -> actors: learning is over, act no more
    WORD = 13  # chief -> workers, servers: it is there


@dataclasses.dataclass(frozen=True)
class JobLayout:
    """Processes by role. A process is its MPI rank at the start.

    Attributes:
        chief: process of the chief, which is worker 0's unless the chief is dedicated.
        workers: worker id -> process.
        servers: process of each parameter server, by shard index; where every worker's process hosts a server of its
            own, the one that this process turns to.
        evaluator: process of the evaluator, or None.
        size: number of processes.
        actors: process of each actor of Ape-X, by its index.
        replay_shards: process of each replay shard of Ape-X, by its index.
    """

    chief: int
    workers: dict[int, int]
    servers: tuple[int, ...]
    evaluator: int | None
    size: int
    actors: tuple[int, ...] = ()
    replay_shards: tuple[int, ...] = ()

    @classmethod
    def from_assignments(cls, assignments: tuple[Assignment, ...]) -> JobLayout:
        """The layout of a job whose ranks are assigned like this."""
        return cls(
            chief=next(a.rank for a in assignments if a.is_chief),
            workers={a.index: a.rank for a in assignments if a.role == "worker"},
            servers=tuple(a.rank for a in assignments if a.role == "parameter_server"),
            evaluator=next((a.rank for a in assignments if a.role == "evaluator"), None),
            size=len(assignments),
            actors=tuple(a.rank for a in assignments if a.role == "actor"),
            replay_shards=tuple(a.rank for a in assignments if a.role == "replay_shard"),
        )

    @classmethod
    def single_process(cls, evaluator: bool) -> JobLayout:
        """One process that hosts a server and an evaluator beside its worker."""
        return cls(chief=0, workers={0: 0}, servers=(1,), evaluator=2 if evaluator else None, size=1)

    def with_hosted_servers(self, process: int) -> JobLayout:
        """As `process` sees it where every worker's process hosts its server: its own, or else the chief's."""
        own = process if process in self.workers.values() else self.chief
        return dataclasses.replace(self, servers=(own,))

    @property
    def hosts_servers(self) -> bool:
        """Whether workers' processes host the servers."""
        return not set(self.servers).isdisjoint(self.workers.values())

    def name(self, process: int) -> str:
        """What to call a process in a message: 'worker 2 (rank 3)'."""
        worker = "the learner" if self.actors else "worker {}"
        names = [worker.format(w) for w, p in self.workers.items() if p == process]
        names += [f"parameter server {s}" for s, p in enumerate(self.servers) if p == process and not names]
        names += [f"actor {i}" for i, p in enumerate(self.actors) if p == process]
        names += [f"replay shard {i}" for i, p in enumerate(self.replay_shards) if p == process]
        names += ["the evaluator"] if process == self.evaluator else []
        names = ["the chief"] if process == self.chief and not names else names
        chief = ", the chief" if process == self.chief and names != ["the chief"] else ""
        return f"{names[0]}{chief} (rank {process})"


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


@dataclasses.dataclass(frozen=True)
class JobContext:
    """What every role is given: the configuration, the run directory and the layout."""

    config: TrainConfig
    run_dir: Path
    layout: JobLayout


def first_word(context: JobContext) -> Wait:
    """The wait for SETUP: the chief may still be loading TensorFlow."""
    return Wait("the chief's first word", (context.layout.chief,), context.config.run.start_seconds)


def end_of_job(context: JobContext) -> Wait:
    """The wait for END after the last update: the last evaluation takes its time."""
    patience = LAST_SECONDS + context.config.evaluation.longest_seconds
    return Wait("the end of the job", (context.layout.chief,), patience)
