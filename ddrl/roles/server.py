"""The role of a server, which connects an exchange's `Server` with workers, chief and readers.

This module imports no TensorFlow.
"""

from __future__ import annotations

import json
import time

from ddrl.exchange.interface import Server
from ddrl.exchange.messages import Kind, Message
from ddrl.exchange.transport import Blob, Event, PeerLost, Transport
from ddrl.job.layout import JobContext
from ddrl.job.role import Topic, Wait, end_of_job, essential_lost, first_word, json_blob
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.roles.exchanges import Tensors, make_server, setup_of


class ServerRole:
    """The role of a server, in a rank of its own or beside a worker. It lasts until END.

    Args:
        index: index of the server, or id of the worker in this process if every worker's process hosts a server.
        size: float32 values in the parameter vector, if this process knows the network; with 0, the role waits for the
            chief's SETUP.
        tensors: name and shape of each tensor of the network, if this process knows it.

    Attributes:
        server: the exchange's server; None before the SETUP.
    """

    def __init__(self, context: JobContext, transport: Transport, index: int, size: int = 0, tensors: Tensors = ()):
        self.context, self.transport, self.index = context, transport, index
        self.finished = False
        self._hears_others = set(context.layout.workers.values()) != {transport.rank}
        self.server: Server | None = None
        self._metrics: RankMetrics  # made with the server, which has the name under which they are filed
        self._first_step = -1  # the first step of this part of the run
        self._counted: dict[str, int] = {}
        self._next_report = 0.0
        self._lost: list[int] = []  # dead workers of which the server does not know yet
        if size:
            self._set_up(size, tensors)

    def handle(self, event: Event) -> None:
        layout, server = self.context.layout, self.server
        essential_lost(event, layout)
        if isinstance(event, Blob):
            if event.topic == Topic.SETUP and server is None:
                setup = json.loads(event.data)
                self._set_up(setup["parameters"], [(name, tuple(shape)) for name, shape in setup["tensors"]])
            elif event.topic == Topic.END:
                self._end()
        elif isinstance(event, PeerLost):
            self._lost += [worker for worker, process in layout.workers.items() if process == event.peer]
            self._tell_of_lost()
        elif server is not None and event.header.kind in server.activities:  # others are for other roles of the process
            self._answer(server, event)

    def advance(self) -> None:
        now = time.monotonic()
        if self.server is None or self.finished:
            return
        if self.transport.remote:  # in a single process, the chief's COMMIT comes at once: nothing to compute ahead
            self.transport.send(self.server.advance(now))
        if now >= self._next_report:
            self._next_report = now + self.context.config.run.log_every_seconds
            self._report(self.server)

    def busy(self) -> bool:
        """False, because it works only when messages come; see `ddrl.exchange.local.Hosted`."""
        return False

    def due(self) -> bool:
        return self._hears_others and self.server is not None and self.server.due()

    def waits(self) -> Wait | None:
        server = self.server
        if server is None or not server.loaded:
            return first_word(self.context)
        if server.stopped:
            return end_of_job(self.context)
        due = server.waits()
        if due is None or self.context.layout.actors:
            return None  # a gradient may wait for the learner's replay, and the learner reports that wait itself
        slow = due.may_compile or server.step == self._first_step
        return Wait(due.what, due.peers, self.context.config.run.start_seconds if slow else 0.0)

    def _answer(self, server: Server, event: Message) -> None:
        with self._metrics.timer(server.activities[event.header.kind]):
            answers = server.handle(event.peer, event.header, event.payload)
        if event.header.kind == Kind.LOAD:
            self._first_step = server.step
        with self._metrics.timer("send"):
            self.transport.send(answers)

    def _set_up(self, parameters: int, tensors: Tensors) -> None:
        self.server = make_server(self.context, self.index, parameters, tensors)
        self._metrics = RankMetrics(self.server.role, self.index)
        self.transport.open(self.server.channels(setup_of(self.context).readers))
        self._tell_of_lost()

    def _tell_of_lost(self) -> None:
        """Tells the server which workers are dead, once there is a server: a worker may die while the job begins."""
        if self.server is None:
            return
        lost, self._lost = self._lost, []
        for worker in lost:
            self.transport.send(self.server.worker_lost(worker))

    def _end(self) -> None:
        self.finished = True
        if self.server is not None:
            self.server.close()

    def _report(self, server: Server) -> None:
        for name, count in server.counts().items():
            self._metrics.count(name, count - self._counted.get(name, 0))
            self._counted[name] = count
        self.transport.send([json_blob(self.context.layout.chief, Topic.REPORT, self._metrics.report())])
