"""`python -m ddrl.bench.exchange_ranks JSON`: the ranks of `ddrl bench exchange`, under mpirun. No TensorFlow.

Ranks 0..W-1 are workers (0 the chief too), then P servers. Rounds of blocks follow one another, so that the
machine's mood is the same for all: our exchange, and bare loops of the same bytes. The bytes of a real exchange
are new in every step, so the bare loop writes them anew ("fresh"); "constant" sends the same ones again, which stay
in the caches of both sides. "spinning" waits in blocking MPI calls, the others with our waiter.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

from cluster.roles import assign_roles
from ddrl.config import EvaluationConfig, ExchangeConfig, OptimizerConfig, RunConfig, TrainConfig
from ddrl.exchange.client import WorkerClient
from ddrl.exchange.coordinator import Coordinator, Quorum
from ddrl.exchange.messages import Header, HeaderFormat, Kind, Message
from ddrl.exchange.mpi import MpiTransport
from ddrl.exchange.sharding import shard_ranges
from ddrl.exchange.transport import Channel, Event, Transport, Waiter
from ddrl.floating_point import flush_denormals
from ddrl.roles.job import Cast, Role, Setting, Topic, json_blob, run_roles
from ddrl.roles.server import ServerRole
from ddrl.types import Snapshot

TAG = 99  # of the bare loop
SPINNING_SHARE = 10  # ranks that spin on too few cores are so slow that a tenth of the steps must do


class UntilStep:
    """A limit that a role of the benchmark runs to, block after block."""

    def __init__(self) -> None:
        self.limit = 0


class EmulatedWorker(UntilStep):
    """Exchanges a constant gradient as soon as it has parameters, or after `compute_seconds`."""

    def __init__(self, transport: Transport, worker: int, cast: Cast, parameters: int, compute_seconds: float = 0.0):
        super().__init__()
        ranges = shard_ranges(parameters, len(cast.servers))
        self.transport, self.compute_seconds = transport, compute_seconds
        self.client = WorkerClient(worker, cast.servers, ranges)
        self._gradient = np.full(parameters, 1e-3, np.float32)
        self._ready_at: float | None = None
        transport.open(self.client.assembler.channels(cast.servers, Kind.PARAMETERS))

    @property
    def finished(self) -> bool:
        return self.client.snapshot is not None and self.client.snapshot.step >= self.limit

    def handle(self, event: Event) -> None:
        if isinstance(event, Message) and event.header.kind == Kind.PARAMETERS:
            if self.client.handle(event.header, event.payload) is not None:
                self.begin()

    def begin(self) -> None:
        """Starts computing the next gradient."""
        self._ready_at = time.monotonic() + self.compute_seconds

    def advance(self) -> None:
        if self._ready_at is None or self.finished or time.monotonic() < self._ready_at:
            return
        self._ready_at = None
        snapshot: Snapshot = self.client.snapshot
        self.transport.send(self.client.submit(self._gradient, snapshot.step, snapshot.version, 1, True))

    def due(self) -> bool:
        return self._ready_at is None


class EmulatedChief(UntilStep):
    """The coordinator alone: no metrics, no checkpoints."""

    def __init__(self, transport: Transport, cast: Cast, parameters: int, slots: int):
        super().__init__()
        self.transport = transport
        self.coordinator = Coordinator(cast.servers, cast.workers, Quorum(), lambda version: 1e-3)
        transport.open(Channel(process, Kind.HAVE) for process in cast.servers)
        transport.send(json_blob(process, Topic.SETUP, {"parameters": parameters}) for process in cast.servers)
        for process, (a, b) in zip(cast.servers, shard_ranges(parameters, len(cast.servers)), strict=True):
            payload = np.zeros((1 + slots) * (b - a), np.float32)
            transport.send([Message(process, Header(Kind.LOAD, value=1e-3), payload)])
        transport.send(self.coordinator.expect())

    @property
    def finished(self) -> bool:
        return self.coordinator.step >= self.limit

    def handle(self, event: Event) -> None:
        if isinstance(event, Message) and event.header.kind == Kind.HAVE:
            self.coordinator.handle(event.header, 0.0)

    def advance(self) -> None:
        messages, _ = self.coordinator.poll(0.0)
        self.transport.send(messages)

    def due(self) -> bool:
        return self.coordinator.waiting


class BenchServer(ServerRole):
    """The real server role, which pauses at the end of a block."""

    limit = 0

    @property
    def finished(self) -> bool:
        return self.shard is not None and self.shard.loaded and self.shard.step >= self.limit

    @finished.setter
    def finished(self, value: bool) -> None:
        pass


def bare_loop(
    comm: MPI.Comm, cast: Cast, parameters: int, steps: int, waiter: Waiter | None, fresh: bool
) -> None:
    """Every worker sends its slices, every server answers each worker with as many bytes; nothing is computed."""
    rank, header = comm.Get_rank(), HeaderFormat(len(cast.workers)).nbytes
    sizes = [header + 4 * (b - a) for a, b in shard_ranges(parameters, len(cast.servers))]
    is_server = rank in cast.servers
    peers = list(cast.workers.values()) if is_server else list(cast.servers)
    mine = [sizes[cast.servers.index(rank)]] * len(peers) if is_server else sizes
    incoming = [np.empty(size, np.uint8) for size in mine]
    outgoing = [np.zeros(size, np.uint8) for size in mine]
    for _ in range(steps):
        receives = [comm.Irecv([b, MPI.BYTE], p, TAG) for p, b in zip(peers, incoming, strict=True)]
        if is_server:
            _wait(receives, waiter)
        if fresh:
            for buffer in outgoing:
                buffer.fill(1)
        sends = [comm.Isend([b, MPI.BYTE], p, TAG) for p, b in zip(peers, outgoing, strict=True)]
        _wait(sends if is_server else sends + receives, waiter)


def _wait(requests: list[MPI.Request], waiter: Waiter | None) -> None:
    if waiter is None:
        MPI.Request.Waitall(requests)
        return
    while requests:
        open_requests = [request for request in requests if not request.Test()]
        waiter.wait(len(open_requests) < len(requests), due=True)
        requests = open_requests


def main() -> None:
    """Runs all rounds; rank 0 prints one JSON object with the seconds per step of every block."""
    flush_denormals()
    options = json.loads(sys.argv[1])
    comm = MPI.COMM_WORLD
    workers, servers, parameters = options["workers"], options["servers"], options["parameters"]
    cast = Cast.from_assignments(assign_roles(workers, servers))
    config = TrainConfig(
        exchange=ExchangeConfig(workers=workers, parameter_servers=servers),
        optimizer=OptimizerConfig(),
        evaluation=EvaluationConfig(evaluator=False),
        run=RunConfig(log_every_seconds=1e9),
    )
    transport = MpiTransport(comm, workers)
    rank = comm.Get_rank()
    roles: list[Role] = []
    if rank in cast.servers:
        roles.append(BenchServer(Setting(config, Path("."), cast), transport, cast.servers.index(rank)))
    else:
        roles.append(EmulatedWorker(transport, rank, cast, parameters, options.get("compute_ms", 0.0) / 1000))
    if rank == 0:
        roles.insert(0, EmulatedChief(transport, cast, parameters, slots=2))
    kinds = ("ours", "bare_fresh", "bare_fresh_spinning", "bare_constant")
    blocks: dict[str, list[float]] = {kind: [] for kind in kinds}
    steps = options["steps"]
    for round_number in range(options["rounds"] + 1):  # round 0 warms up
        for name in blocks:
            comm.Barrier()
            start = time.perf_counter()
            if name == "ours":
                for role in roles:
                    role.limit += steps
                    if isinstance(role, EmulatedWorker) and role.client.snapshot is not None:
                        role.begin()
                run_roles(roles, transport, Waiter())
                transport.flush(1.0)
            else:
                spinning = name.endswith("spinning")
                count = max(1, steps // SPINNING_SHARE) if spinning else steps
                bare_loop(comm, cast, parameters, count, None if spinning else Waiter(), fresh="fresh" in name)
            if round_number:
                blocks[name].append((time.perf_counter() - start) / (count if name != "ours" else steps))
    comm.Barrier()
    transport.close()
    if rank == 0:
        print("RESULT " + json.dumps(blocks), flush=True)


if __name__ == "__main__":
    main()
