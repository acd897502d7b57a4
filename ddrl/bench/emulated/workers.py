"""Ranks that exchange without computing: workers that sleep, a chief that only closes steps, real servers or replicas.

They do not load TensorFlow, so that many of them fit on a small machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cluster.roles import Sizes, assign_roles
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import EvaluationConfig, ExchangeConfig, RunConfig, TrainConfig
from ddrl.exchange.client import WorkerClient
from ddrl.exchange.messages import Kind, Message
from ddrl.exchange.sharding import shard_ranges
from ddrl.exchange.transport import Event, Transport, Waiter
from ddrl.job.layout import JobContext, JobLayout
from ddrl.job.role import Topic, json_blob, run_roles
from ddrl.roles.exchanges import make_coordinator
from ddrl.roles.server import ServerRole
from ddrl.types import Snapshot


class EmulatedWorker:
    """A worker that submits a constant gradient some time after it has received parameters.

    Args:
        transport: carries its messages.
        worker: the worker's number.
        layout: which ranks are servers.
        parameters: number of float32 parameters.
        compute_seconds: returns the time that the next gradient takes.

    Attributes:
        limit: the step up to which it runs.
        computed: number of gradients so far, including those that came too late.
    """

    limit = 0

    def __init__(
        self,
        transport: Transport,
        worker: int,
        layout: JobLayout,
        parameters: int,
        compute_seconds: Callable[[], float],
    ):
        ranges = shard_ranges(parameters, len(layout.servers))
        self.transport, self._compute_seconds = transport, compute_seconds
        self.client = WorkerClient(worker, layout.servers, ranges)
        self.computed = 0
        self._gradient = np.full(parameters, 1e-3, np.float32)
        self.ready_at: float | None = None
        self._at: Snapshot | None = None
        transport.open(self.client.assembler.channels(layout.servers, Kind.PARAMETERS))

    @property
    def finished(self) -> bool:
        return self.client.snapshot is not None and self.client.snapshot.step >= self.limit

    def handle(self, event: Event) -> None:
        if not isinstance(event, Message) or event.header.kind != Kind.PARAMETERS:
            return
        if self.client.handle(event.header, event.payload) is not None and self.ready_at is None:
            self.begin()

    def begin(self) -> None:
        """Starts computing a gradient at the newest parameters."""
        self._at = self.client.snapshot
        self.ready_at = time.monotonic() + self._compute_seconds()

    def advance(self) -> None:
        if self.ready_at is None or self.finished or time.monotonic() < self.ready_at:
            return
        self.ready_at = None
        self.computed += 1
        assert self._at is not None  # `begin` has set it
        messages = self.client.submit(self._gradient, self._at.step, self._at.version, 1, True)
        self.transport.send(messages)
        if not messages:  # the gradient is too late: its step is closed, and newer parameters are here
            self.begin()

    def due(self) -> bool:
        return self.ready_at is None


class EmulatedChief:
    """A chief that is only the coordinator, without metrics and checkpoints."""

    limit = 0

    def __init__(self, context: JobContext, transport: Transport, parameters: int, slots: int):
        self.transport = transport
        self.members = 0  # gradients averaged so far
        self.coordinator = make_coordinator(context, step=0, version=0)
        ranks = set(context.layout.servers) - set(context.layout.workers.values())
        transport.send(json_blob(process, Topic.SETUP, {"parameters": parameters, "tensors": []}) for process in ranks)
        transport.open(self.coordinator.channels(parameters, slots))
        zeros = np.zeros(parameters, np.float32)
        transport.send(self.coordinator.begin(zeros, [zeros] * slots, 0))

    @property
    def finished(self) -> bool:
        return self.coordinator.step >= self.limit

    def handle(self, event: Event) -> None:
        if isinstance(event, Message) and event.header.kind == Kind.READY:
            for closed in self.coordinator.handle(event.header, time.monotonic()):
                self.members += len(closed.members)

    def advance(self) -> None:
        messages, closed = self.coordinator.poll(time.monotonic())
        self.transport.send(messages)
        self.members += len(closed.members) if closed else 0

    def due(self) -> bool:
        return True


class BenchServer(ServerRole):
    """The real role of a server, which pauses at the end of a block."""

    limit = 0

    @property
    def finished(self) -> bool:
        return self.server is not None and self.server.loaded and self.server.step >= self.limit

    @finished.setter
    def finished(self, value: bool) -> None:
        pass


class EmulatedJob:
    """This rank's roles in a job of emulated workers, which runs some number of steps at a time.

    Args:
        transport: carries the messages.
        rank: the rank of this process; workers come first (0 is also the chief), then the servers.
        exchange: the settings: how many workers, and servers or the all-reduce.
        parameters: number of float32 parameters.
        compute_seconds: returns the time that this rank's next gradient takes, if it is a worker.
        ranks_per_core: number of ranks per core on this host.
    """

    def __init__(
        self,
        transport: Transport,
        rank: int,
        exchange: ExchangeConfig,
        parameters: int,
        compute_seconds: Callable[[], float] = lambda: 0.0,
        ranks_per_core: float = 0.0,
    ):
        self.transport, self._ranks_per_core = transport, ranks_per_core
        layout = JobLayout.from_assignments(assign_roles(Sizes(exchange.workers, exchange.servers)))
        self.layout = layout if exchange.servers else layout.with_hosted_servers(rank)
        config = TrainConfig(
            algorithm=BA3CConfig(),
            exchange=exchange,
            evaluation=EvaluationConfig(evaluator=False),
            run=RunConfig(log_every_seconds=1e8),
        )
        context = JobContext(config, Path("."), self.layout)
        self.chief: EmulatedChief | None = None
        self.worker: EmulatedWorker | None = None
        if rank not in self.layout.workers:
            self._roles: list[Any] = [BenchServer(context, transport, self.layout.servers.index(rank))]
            return
        self.worker = EmulatedWorker(transport, rank, self.layout, parameters, compute_seconds)
        self._roles = [self.worker]
        if rank == 0:
            self.chief = EmulatedChief(context, transport, parameters, slots=2)
            self._roles.insert(0, self.chief)
        if not exchange.servers:
            self._roles.append(BenchServer(context, transport, rank, parameters))

    def run(self, steps: int) -> None:
        """Runs `steps` further synchronous steps; all ranks must call it together."""
        for role in self._roles:
            role.limit += steps
            if isinstance(role, EmulatedWorker) and role.client.snapshot is not None:
                role.begin()
        run_roles(self._roles, self.transport, Waiter(sleep=self._sleep, ranks_per_core=self._ranks_per_core))
        self.transport.flush(1.0)

    def _sleep(self, seconds: float) -> None:
        """Sleeps for `seconds`, but not beyond the end of the gradient, which would wake a real worker."""
        end = self.worker.ready_at if self.worker else None
        time.sleep(seconds if end is None else max(0.0, min(seconds, end - time.monotonic())))
