"""Under mpirun: real servers or replicas, clients and coordinator around a small linear model in NumPy.

ranks_exchange.py DIRECTORY JSON: scenarios by name, each on the first ranks of the world; DIRECTORY/NAME-RANK.npz holds
what each rank saw. A scenario in which a worker dies is the last one. It dies at a step, once it has sent so many parts
of its gradient to servers; a replica is its worker's only server, and sends the gradient on. No TensorFlow.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

from cluster.roles import Sizes, assign_roles
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import EvaluationConfig, ExchangeConfig, RunConfig, TrainConfig
from ddrl.exchange.client import WorkerClient
from ddrl.exchange.messages import Kind, Message
from ddrl.exchange.mpi import MpiTransport, leave
from ddrl.exchange.optimizers import make_optimizer
from ddrl.exchange.sharding import shard_ranges
from ddrl.exchange.transport import Blob, PeerLost, Waiter
from ddrl.job.layout import JobContext, JobLayout
from ddrl.job.role import Topic, json_blob, run_roles
from ddrl.placement.world import settled_world
from ddrl.roles.exchanges import make_coordinator
from ddrl.roles.server import ServerRole
from ddrl.types import Snapshot
from tests.parallel.linear_model import DEFAULTS, OPTIMIZER, SIZE, gradient, start
from tests.parallel.meeting import meet


class Worker:
    """Sends the gradient of its share, after a while."""

    def __init__(self, transport, worker: int, layout: JobLayout, scenario: dict):
        self.transport, self.worker, self.scenario = transport, worker, scenario
        self.client = WorkerClient(worker, layout.servers, shard_ranges(SIZE, len(layout.servers)))
        self.calls, self._due_at, self._random = 0, None, np.random.default_rng()
        self._snapshot: Snapshot | None = None
        self._dying = False
        transport.open(self.client.assembler.channels(layout.servers, Kind.PARAMETERS))

    @property
    def finished(self) -> bool:
        return self.client.snapshot is not None and self.client.snapshot.step >= self.scenario["steps"]

    def handle(self, event) -> None:
        if isinstance(event, Message) and event.header.kind == Kind.PARAMETERS:
            self.client.handle(event.header, event.payload)

    def advance(self) -> None:
        if self._dying:  # a replica in this process has passed on what it got
            os.kill(os.getpid(), signal.SIGKILL)
        if self._due_at is None and self.client.snapshot not in (None, self._snapshot) and not self.finished:
            self._snapshot = self.client.snapshot
            slow = self.scenario["slow"].get(str(self.worker), 0.0)
            self._due_at = time.monotonic() + slow + self._random.uniform(0.0, self.scenario["jitter"])
        if self._due_at is not None and time.monotonic() >= self._due_at:
            self._due_at, snapshot = None, self._snapshot
            parameters = gradient(snapshot.parameters, self.worker, self.scenario["workers"])
            self.calls += 1
            messages = self.client.submit(parameters, snapshot.step, snapshot.version, 1, True)
            dies = self.scenario["dies"] or {}
            self._dying = dies.get("worker") == self.worker and dies["step"] == snapshot.step
            self.transport.send(messages[: dies["sends"]] if self._dying else messages)

    def due(self) -> bool:
        return False

    def seen(self) -> dict:
        return {"calls": self.calls, "dropped": self.client.dropped, "theta": self.client.snapshot.parameters}


class Chief:
    """The coordinator, and nothing else."""

    def __init__(self, transport, context: JobContext, scenario: dict):
        self.transport, self.layout, self.steps = transport, context.layout, scenario["steps"]
        self.coordinator = make_coordinator(context, step=0, version=0)
        self.closed, self.finished = [], False
        slots = make_optimizer(context.config.optimizer, SIZE).slots
        transport.open(self.coordinator.channels(SIZE, len(slots)))
        if not self.layout.hosts_servers:
            transport.send(json_blob(p, Topic.SETUP, {"parameters": SIZE, "tensors": []}) for p in self.layout.servers)
        transport.send(self.coordinator.begin(start(), list(slots.values()), 0))

    def handle(self, event) -> None:
        if isinstance(event, Message) and event.header.kind in (Kind.READY, Kind.NORM):
            self.closed += self.coordinator.handle(event.header, time.monotonic())
        elif isinstance(event, PeerLost):
            self.transport.send(self.coordinator.worker_lost(event.peer))

    def advance(self) -> None:
        if self.finished:
            return
        messages, closed = self.coordinator.poll(time.monotonic())
        self.transport.send(messages)
        self.closed += [closed] if closed else []
        if self.coordinator.step >= self.steps:
            self.finished = True
            # Late gradients are to arrive, so that they are counted.
            time.sleep(0.1)
            others = set(range(self.layout.size)) | set(self.layout.servers)
            self.transport.send(Blob(p, Topic.END, b"{}") for p in others)

    def due(self) -> bool:
        return False

    def seen(self) -> dict:
        members = [sum(1 << w for w in closed.members) for closed in self.closed]
        return {"members": members, "norms": [closed.norm for closed in self.closed]}


def config_of(scenario: dict) -> TrainConfig:
    """The settings of a scenario, without an evaluator or lines of metrics."""
    return TrainConfig(
        algorithm=BA3CConfig(),
        exchange=ExchangeConfig(
            workers=scenario["workers"],
            parameter_servers=scenario["servers"],
            exchange=scenario["exchange"],
            quorum=scenario["quorum"],
            quorum_deadline_seconds=scenario["deadline"],
        ),
        optimizer=dataclasses.replace(OPTIMIZER, clip_global_norm=scenario["clip"]),
        evaluation=EvaluationConfig(evaluator=False),
        run=RunConfig(log_every_seconds=1e8),
    )


def play(comm: MPI.Comm, scenario: dict) -> dict:
    """One scenario; what this rank saw."""
    workers, servers = scenario["workers"], scenario["servers"]
    rank = comm.Get_rank()
    assignments = assign_roles(Sizes(workers, servers))
    layout = JobLayout.from_assignments(assignments)
    layout = layout if servers else layout.with_hosted_servers(rank)
    transport = MpiTransport(comm, workers, survive=bool(scenario["dies"]))
    context = JobContext(config_of(scenario), Path("."), layout)
    roles: list = []
    if rank in layout.workers:
        roles.append(Worker(transport, rank, layout, scenario))
        roles += [] if servers else [ServerRole(context, transport, rank, SIZE)]
    else:
        roles.append(ServerRole(context, transport, layout.servers.index(rank)))
    if rank == 0:
        roles.insert(0, Chief(transport, context, scenario))
    run_roles(roles, transport, Waiter())
    transport.flush(10.0)
    if not scenario["dies"]:
        meet(comm)
    transport.close()
    seen = {"tensorflow": "tensorflow" in sys.modules}
    for role in roles:
        if isinstance(role, (Worker, Chief)):
            seen |= role.seen()
        elif isinstance(role, ServerRole) and servers:
            seen |= {"dropped": role.server.dropped}
    return seen


def main() -> None:
    directory, scenarios = Path(sys.argv[1]), json.loads(sys.argv[2])
    world = settled_world()
    for name, options in scenarios.items():
        scenario = DEFAULTS | options
        plays = world.Get_rank() < scenario["workers"] + scenario["servers"]
        comm = world.Split(0 if plays else 1)
        if plays:
            np.savez(directory / f"{name}-{world.Get_rank()}.npz", **play(comm, scenario))
        if scenario["dies"]:
            leave(comm, 0, survive=True)
        meet(world)


if __name__ == "__main__":
    main()
