"""A job of any exchange of the registry in one process: its servers, its coordinator and its workers' clients."""

from __future__ import annotations

from collections import deque

import numpy as np

from ddrl.exchange.interface import Setup
from ddrl.exchange.messages import Flag, Kind, Message
from ddrl.exchange.optimizers import make_optimizer

CHIEF = 0


class Job:
    """Workers are processes 0, 1, ...; servers come after them, or are in the workers' processes.

    Messages arrive in the order in which they were sent, and every worker hands in its next gradient at once.

    Args:
        gradient: (worker, step, parameters) -> gradient.
        rate: of every update.
        groups: ranges of the parameters whose learning rate has a factor.
        statistics: at the end of the parameters.
    """

    def __init__(self, config, optimizer, theta, run_dir, gradient, *, rate=0.1, groups=(), statistics=None):
        self.gradient, self.last = gradient, 0
        workers = {w: w for w in range(config.workers)}
        ranks = tuple(range(config.workers, config.workers + config.servers))
        setup = lambda own: Setup(
            config,
            optimizer,
            lambda version: rate,
            run_dir,
            CHIEF,
            workers,
            ranks or (own,),
            groups=groups,
            statistics=statistics,
        )
        make = lambda own, index: config.kind.server(setup(own), index, theta.size)
        places = enumerate(ranks or workers.values())
        self.servers = {process: make(process, index) for index, process in places}
        self.clients = {w: setup(w).client(w, theta.size) for w in workers}
        self.coordinator = config.kind.coordinator(setup(CHIEF), step=0, version=0)
        self.queue: deque[tuple[int, Message]] = deque()
        self.closed, self.snapshots = [], {}
        slots = list(make_optimizer(optimizer, theta.size).slots.values())
        self._send(CHIEF, self.coordinator.begin(theta, slots, 0))

    def run(self, steps):
        """Until every worker has the parameters of step `steps`; returns those of worker 0."""
        self.last = steps
        for worker in self.clients:
            self._submit(worker)
        while self.queue or self._poll():
            sender, message = self.queue.popleft()
            self._deliver(sender, message)
        return self.clients[0].snapshot.parameters

    def stop(self):
        """Ends the run; returns the whole state <float32>[1 + slots, N] of its checkpoint."""
        self.coordinator.request(Flag.STOP | Flag.CHECKPOINT)
        self._send(CHIEF, self.coordinator.command()[0])
        self.run(self.last)
        rows = [self.snapshots[process] for process in sorted(self.snapshots)]
        return np.concatenate([payload.reshape(self.rows, -1) for payload in rows], axis=1)

    @property
    def rows(self):
        """Vectors in a checkpoint."""
        return sum(payload.size for payload in self.snapshots.values()) // self.clients[0].snapshot.parameters.size

    def close(self):
        """Frees what the servers have of this host."""
        for server in self.servers.values():
            server.close()

    def _poll(self):
        messages, closed = self.coordinator.poll(0.0)
        self.closed += [closed] if closed else []
        self._send(CHIEF, messages)
        return bool(messages)

    def _send(self, sender, messages):
        self.queue.extend((sender, message) for message in messages)

    def _deliver(self, sender, message):
        process, header = message.peer, message.header
        if header.kind == Kind.SNAPSHOT:
            self.snapshots[sender] = np.array(message.payload)
        elif header.kind in (Kind.READY, Kind.NORM):
            self.closed += self.coordinator.handle(header, 0.0)
        elif header.kind == Kind.PARAMETERS:
            if self.clients[process].handle(header, message.payload) is not None:
                self._submit(process)
        else:
            self._send(process, self.servers[process].handle(sender, header, message.payload))

    def _submit(self, worker):
        snapshot, client = self.clients[worker].snapshot, self.clients[worker]
        if snapshot is not None and snapshot.step < self.last and not client.flags & Flag.STOP:
            gradient = self.gradient(worker, snapshot.step, snapshot.parameters)
            finite = bool(np.isfinite(gradient).all())
            self._send(worker, client.submit(gradient, snapshot.step, snapshot.version, 1, finite))
