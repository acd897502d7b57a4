"""The role of a worker's door to the central store, in the worker's process beside the worker. No TensorFlow."""

from __future__ import annotations

import time

from ddrl.exchange.central_store.file import store_path
from ddrl.exchange.central_store.server import StoreShard
from ddrl.exchange.messages import Kind, Message
from ddrl.exchange.transport import Blob, Channel, Event, Transport
from ddrl.roles.job import Setting, Topic, Wait, end_of_job, first_word
from ddrl.roles.server import ServerRole

PULL_SECONDS = 0.05  # between two looks at the central parameters while acting wants newer ones
HANDLED = (Kind.GRADIENT, Kind.COMMIT, Kind.EXPECT, Kind.LOAD, Kind.FETCH)


class StoreRole(ServerRole):
    """Applies its worker's gradients to the memory that the processes of this host share, until END.

    The chief's process creates the store, and then has the others open it.

    Args:
        worker: id of the worker in this process.
        size: float32 values in the parameter vector.
    """

    name = "central_store"

    def __init__(self, setting: Setting, transport: Transport, worker: int, size: int):
        super().__init__(setting, transport, worker)
        config, cast = setting.config, setting.cast
        self._main = cast.workers[worker] == cast.chief
        self._others = [process for process in cast.workers.values() if process != cast.chief]
        self.shard = StoreShard(
            size,
            config.optimizer,
            {worker: cast.workers[worker]},
            cast.chief,
            store_path(setting.run_dir),
            len(self._others),
            main=self._main,
            synchronize_every=config.exchange.local_steps,
            chunks=config.exchange.store_chunks,
            max_staleness=config.exchange.max_staleness,
        )
        self._pulls = config.sampling.refresh_every_steps > 0
        self._next_pull = 0.0
        channels = [Channel(cast.chief, Kind.COMMIT), Channel(cast.chief, Kind.LOAD)]
        if self._main and cast.evaluator is not None:
            channels.append(Channel(cast.evaluator, Kind.FETCH))
        transport.open(channels)

    def handle(self, event: Event) -> None:
        if isinstance(event, Message) and event.header.kind not in HANDLED:
            return
        if isinstance(event, Blob):  # what else the chief says is for the worker
            if event.topic == Topic.END:
                self.finished = True
                self.shard.close()
            return
        super().handle(event)

    def advance(self) -> None:
        super().advance()
        now = time.monotonic()
        if self._pulls and now >= self._next_pull:
            self._next_pull = now + PULL_SECONDS
            self.transport.send(self.shard.pull())

    def due(self) -> bool:
        return False  # the worker says when it waits for an answer; the chief can wait

    def waits(self) -> Wait | None:
        if not self.shard.loaded:
            return first_word(self.setting)
        return end_of_job(self.setting) if self.shard.stopped else None

    def _answer(self, event: Message) -> None:
        super()._answer(event)
        if event.header.kind == Kind.LOAD and self._main:
            self.transport.send(Message(process, event.header) for process in self._others)

    def _count(self) -> None:
        self.metrics.count("gradients_dropped", self.shard.dropped - self._dropped)
        self._dropped = self.shard.dropped
        self.metrics.gauge("torn_updates", self.shard.torn)
