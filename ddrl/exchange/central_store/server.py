"""The server through which one worker uses the central store, as a state machine.

Every worker's process hosts such a server. It takes whole gradients from its worker and answers with whole vectors, and
sees the other workers' updates only in the shared memory. It reports each gradient to the chief (READY). The main
server, in the chief's process, creates the store, and sends SNAPSHOT and PUBLISHED for the whole of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ddrl.errors import UsageError
from ddrl.exchange.asynchronous import refuses, report
from ddrl.exchange.central_store.learner import CentralLearner, make_learner
from ddrl.exchange.central_store.memory import CentralStore
from ddrl.exchange.interface import Server, Setup, everything, load
from ddrl.exchange.messages import TO_WORKER, Flag, Header, Kind, Message, Payload
from ddrl.exchange.optimizers import make_optimizer
from ddrl.exchange.published import Published
from ddrl.exchange.transport import Channel

PULL_SECONDS = 0.05  # between two reads of the central parameters, if acting takes newer ones between gradients


class StoreServer(Server):
    """The server of one worker on the central store; see the module.

    A version counts the gradients applied to the central parameters. The name of the store's file is removed as soon as
    the servers of all workers have opened the file, so that no file is left, however the job ends. Nobody can open it
    after that.

    Args:
        setup: the job's setup.
        worker: id of the worker that this server is for; the server in the chief's process is the main one.
        size: number of parameters.
        path: path of the store's file.
        patience_seconds: how long to wait for a lock, and for the store to be created.

    Attributes:
        dropped: number of gradients that were too old or not finite.
    """

    role = "central_store"
    activities = {Kind.GRADIENT: "receive", Kind.COMMIT: "apply", Kind.FETCH: "receive", Kind.LOAD: "receive"}

    def __init__(self, setup: Setup, worker: int, size: int, path: Path, patience_seconds: float = 60.0):
        self._setup, self.size, self.path, self.patience_seconds = setup, size, path, patience_seconds
        self.process, self.chief = setup.workers[worker], setup.chief
        self.main = self.process == self.chief
        self.others = tuple(process for process in setup.workers.values() if process != self.chief)
        self.dropped = 0
        self.learning_rate = float("nan")
        self.learner: CentralLearner  # set when the LOAD comes
        self._named = False  # whether this server still has to remove the name of the store's file
        self._next_pull = 0.0
        self._published = Published(0)

    @property
    def torn(self) -> int:
        """The number of updates of a chunk during which a process died, over all processes."""
        return self.learner.store.torn if self.loaded else 0

    def channels(self, readers: Sequence[int]) -> list[Channel]:
        """The server's channels. LOAD needs no payload here: the only one that has it stays in the chief's process."""
        channels = [Channel(self.chief, Kind.COMMIT), Channel(self.chief, Kind.LOAD)]
        return channels + ([Channel(process, Kind.FETCH) for process in readers] if self.main else [])

    def handle(self, peer: int, header: Header, payload: Payload) -> list[Message]:
        if header.kind == Kind.FETCH:
            return self._published.fetch(peer, header.version)
        if self.stopped:
            return []
        if header.kind == Kind.GRADIENT:
            return self._on_gradient(header, payload)
        return self._on_command(header) if header.kind == Kind.COMMIT else self._on_load(header, payload)

    def advance(self, now: float) -> list[Message]:
        if not self._setup.refreshes or now < self._next_pull:
            return []
        self._next_pull = now + PULL_SECONDS
        return self.pull()

    def pull(self) -> list[Message]:
        """Sends the worker the newest central parameters to act with between gradients; its step stays the same."""
        if not self.loaded or self.stopped:
            return []
        self.learner.pull()
        return [self._to_worker(Flag.REFRESH)]

    def counts(self) -> dict[str, int]:
        """Counts torn updates in the main server only, because the store has those of all processes."""
        return {"gradients_dropped": self.dropped} | ({"torn_updates": self.torn} if self.main else {})

    def close(self) -> None:
        """Closes the store in this process; the main server also removes the file's name, if that is still there."""
        if self.loaded:
            if self._named:
                self.learner.store.unlink()
            self.learner.store.close()

    def _on_load(self, header: Header, payload: Payload) -> list[Message]:
        """Creates the store and then tells the other servers to open it (main server), or opens it (the others)."""
        store = self._open() if payload is None else self._create(header, payload)
        setup = self._setup
        local_steps = setup.config.local_steps
        self.learner = make_learner(store, setup.optimizer, local_steps, setup.groups, setup.statistics)
        self.step, self.loaded = header.step, True
        if math.isnan(self.learning_rate):  # else a COMMIT that overtook the LOAD has brought a newer rate
            self.learning_rate = header.value
        self._named = self.main
        self._remove_name()
        others = [Message(process, header) for process in self.others] if self.main else []
        return [self._to_worker(Flag.NONE), *others]

    def _create(self, header: Header, payload: np.ndarray) -> CentralStore:
        optimizer = make_optimizer(self._setup.optimizer, self.size)
        return CentralStore.create(
            self.path,
            load(payload, header, optimizer),
            optimizer.slots,
            version=header.version,
            count=header.count,
            chunks=min(self._setup.config.store_chunks, self.size),
            patience_seconds=self.patience_seconds,
        )

    def _open(self) -> CentralStore:
        store = CentralStore.open(self.path, patience_seconds=self.patience_seconds)
        if store.size != self.size:
            raise UsageError(
                f"{self.path} holds {store.size} parameters, this worker's network has {self.size}: "
                "start all ranks with the same options"
            )
        return store

    def _on_gradient(self, header: Header, gradient: np.ndarray) -> list[Message]:
        self.step = header.step + 1
        staleness, flags = self.learner.newest_version - header.version, Flag.NONE
        if refuses(header, self.learner.newest_version, self._setup.config.max_staleness):
            self.learner.pull()  # else the next gradient would be just as old
            self.dropped += 1
            flags = Flag.SKIP
        else:
            self.learner.submit(gradient, self.learning_rate)
            self._remove_name()
        told = report(header, self.learner.version, staleness, flags)
        return [self._to_worker(flags), Message(self.chief, told)]

    def _remove_name(self) -> None:
        if self._named and self.learner.store.opened >= len(self.others):
            self.learner.store.unlink()
            self._named = False

    def _on_command(self, header: Header) -> list[Message]:
        self.learning_rate = header.value
        messages = []
        if header.flags & Flag.STOP:
            self.stopped = True
            if self.loaded:
                self.learner.synchronize()
            messages = [self._to_worker(header.flags)]
        if self.main and self.loaded and header.flags & (Flag.CHECKPOINT | Flag.PUBLISH):
            messages += self._tell(header)
        return messages

    def _tell(self, header: Header) -> list[Message]:
        """Carries out the chief's CHECKPOINT and PUBLISH for the whole store; only the main server does so."""
        optimizer, parameters = make_optimizer(self._setup.optimizer, self.size), np.empty(self.size, np.float32)
        store, messages = self.learner.store, []
        version = int(store.read(parameters, optimizer.slots).min())
        if header.flags & Flag.CHECKPOINT:
            snapshot = Header(Kind.SNAPSHOT, step=self.step, version=version, count=store.count)
            messages.append(Message(self.chief, snapshot, everything(parameters, optimizer)))
        if header.flags & Flag.PUBLISH:
            messages += self._published.add(header.version, version, parameters)
        return messages

    def _to_worker(self, flags: Flag) -> Message:
        """A message to the worker with the learner's parameters, or with zeros if the run ends before the LOAD."""
        if not self.loaded:
            parameters, version = np.zeros(self.size, np.float32), 0
        else:
            parameters, version = self.learner.parameters, self.learner.version
        header = Header(Kind.PARAMETERS, step=self.step, version=version, flags=flags & (TO_WORKER | Flag.REFRESH))
        return Message(self.process, header, parameters, newest_only=True)
