"""`python -m ddrl.bench.emulated.rank JSON`: one rank of a job of emulated workers or actors, under mpirun.

Rank 0 prints what was measured. No TensorFlow, but with the real learner of an Ape-X.
"""

from __future__ import annotations

import json
import math
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from cluster.roles import Sizes, assign_roles
from cluster.topology import gather_seats, ranks_per_core
from ddrl.bench.emulated.workers import EmulatedJob
from ddrl.bench.ranks import run_rank
from ddrl.config import ExchangeConfig
from ddrl.errors import in_one_line
from ddrl.exchange.messages import HeaderFormat
from ddrl.exchange.mpi import MpiTransport
from ddrl.exchange.sharding import shard_ranges
from ddrl.exchange.transport import Waiter
from ddrl.floating_point import flush_denormals
from ddrl.job.layout import JobContext, JobLayout
from ddrl.job.role import run_roles
from ddrl.placement.world import settled_world
from ddrl.rundir import config_from_dict

WARM_UP_STEPS = 10
TAG = 99  # of the bare loop
SPINNING_SHARE = 10  # ranks that spin on too few cores are so slow that a tenth of the steps must do

Options = dict[str, Any]


def main() -> None:
    """Does this rank's part in a job of the kind that the options name."""
    flush_denormals()
    options = json.loads(sys.argv[1])
    kinds: dict[str, Callable[[MPI.Comm, Options], Any]] = {"blocks": blocks, "exchange": exchange, "apex": apex}
    measured = kinds[options["kind"]](settled_world(), options)
    if MPI.COMM_WORLD.Get_rank() == 0:
        print("RESULT " + json.dumps(measured), flush=True)


# blocks of steps of sleeping workers ----------------------------------------------------------------------------------


class Compute:
    """The time of each gradient: `seconds`, times `slow_factor` on slow workers, spread log-normally."""

    def __init__(self, rank: int, spread: float, slow_factor: float) -> None:
        self.seconds = 0.0
        self._random, self._spread, self._factor = random.Random(rank), spread, slow_factor

    def __call__(self) -> float:
        return self.seconds * self._factor * self._random.lognormvariate(0.0, self._spread)


def blocks(comm: MPI.Comm, options: Options) -> list[dict[str, Any]]:
    """For each compute time, how long a block of steps took, and how many gradients were computed and averaged."""
    rank, exchange = comm.Get_rank(), ExchangeConfig(**options["exchange"])
    workers = exchange.workers
    slow = workers - options["slow_workers"] <= rank < workers
    compute = Compute(rank, options["spread"], options["slow_factor"] if slow else 1.0)
    transport = MpiTransport(comm, workers)
    job = EmulatedJob(
        transport, rank, exchange, options["parameters"], compute, ranks_per_core(gather_seats(comm), rank)
    )
    measured = []
    for seconds, steps in options["blocks"]:
        compute.seconds = seconds
        job.run(WARM_UP_STEPS)  # the first steps of all ranks are slower
        comm.Barrier()
        averaged, computed, start = _averaged(job), _computed(comm, job), time.perf_counter()
        job.run(steps)
        block = {"seconds": time.perf_counter() - start, "steps": steps, "averaged": _averaged(job) - averaged}
        measured.append(block | {"computed": _computed(comm, job) - computed})
    comm.Barrier()
    transport.close()
    return measured


def _averaged(job: EmulatedJob) -> int:
    return job.chief.members if job.chief else 0


def _computed(comm: MPI.Comm, job: EmulatedJob) -> int:
    """Gradients that all workers computed so far."""
    ours, total = np.array([job.worker.computed if job.worker else 0], np.int64), np.zeros(1, np.int64)
    comm.Allreduce(ours, total)
    return int(total[0])


# one step beside bare MPI ---------------------------------------------------------------------------------------------


def exchange(comm: MPI.Comm, options: Options) -> dict[str, list[float]]:
    """Seconds per step of every block of all rounds.

    Ranks 0..W-1 are workers (0 the chief too), then P servers. Rounds of blocks follow one another, so that the
    machine's mood is the same for all: our exchange with servers, our all-reduce among the workers, and bare loops of
    the bytes of the former. The bytes of a real exchange are new in every step, so the bare loop writes them anew
    ("fresh"); "constant" sends the same ones again, which stay in the caches of both sides. "spinning" waits in
    blocking MPI calls, the others with our waiter.
    """
    rank, workers, parameters = comm.Get_rank(), options["workers"], options["parameters"]
    transport = MpiTransport(comm, workers)
    servers = ExchangeConfig(workers=workers, parameter_servers=options["parameter_servers"])
    job = EmulatedJob(transport, rank, servers, parameters)
    reducing = MpiTransport(comm.Split(0 if rank < workers else 1), workers)
    among = ExchangeConfig(exchange="allreduce", workers=workers)
    replicas = EmulatedJob(reducing, rank, among, parameters) if rank < workers else None
    kinds = ("ours", "allreduce", "bare_fresh", "bare_fresh_spinning", "bare_constant")
    measured: dict[str, list[float]] = {kind: [] for kind in kinds}
    for round_number in range(options["rounds"] + 1):  # round 0 warms up
        for name in kinds:
            spinning = name.endswith("spinning")
            steps = max(1, options["steps"] // SPINNING_SHARE) if spinning else options["steps"]
            _wait([comm.Ibarrier()], Waiter())  # not blocking: ranks that have no part in a block must not spin
            start = time.perf_counter()
            if name == "ours":
                job.run(steps)
            elif name == "allreduce":
                if replicas:
                    replicas.run(steps)
            else:
                bare_loop(comm, job.layout, parameters, steps, None if spinning else Waiter(), fresh="fresh" in name)
            if round_number:
                measured[name].append((time.perf_counter() - start) / steps)
    comm.Barrier()
    transport.close()
    reducing.close()
    return measured


def bare_loop(
    comm: MPI.Comm, layout: JobLayout, parameters: int, steps: int, waiter: Waiter | None, fresh: bool
) -> None:
    """Every worker sends its slices, every server answers each worker with as many bytes; nothing is computed.

    Args:
        parameters: float32 values, which the slices and headers of the real exchange are made of.
        waiter: None: blocking calls.
        fresh: the bytes are written anew in every step.
    """
    rank, header = comm.Get_rank(), HeaderFormat(len(layout.workers)).nbytes
    sizes = [header + 4 * (b - a) for a, b in shard_ranges(parameters, len(layout.servers))]
    is_server = rank in layout.servers
    peers = list(layout.workers.values()) if is_server else list(layout.servers)
    lengths = [sizes[layout.servers.index(rank)]] * len(peers) if is_server else sizes
    incoming = [np.empty(size, np.uint8) for size in lengths]
    outgoing = [np.zeros(size, np.uint8) for size in lengths]
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


# an Ape-X with sleeping actors ----------------------------------------------------------------------------------------


def apex(comm: MPI.Comm, options: Options) -> dict[str, Any] | None:
    """What the learner measured, emulated or real, or why the job failed."""
    try:
        return _apex(comm, options)
    except BaseException as error:
        traceback.print_exc()
        print("RESULT " + json.dumps({"failed": in_one_line(error)}), flush=True)
        raise


def _apex(comm: MPI.Comm, options: Options) -> dict[str, Any] | None:
    from ddrl.apex.actor import ActorRole
    from ddrl.apex.replay_shard import ReplayShardRole
    from ddrl.bench.emulated.actors import EmulatedChild, EmulatedLearner, read_segments

    config = config_from_dict(options["config"])
    assignments = assign_roles(Sizes(1, 0, actors=config.apex.actors, replay_shards=config.apex.replay_shards))
    ours = assignments[comm.Get_rank()]
    layout = JobLayout.from_assignments(assignments).with_hosted_servers(ours.rank)
    context, transport = JobContext(config, Path(options["run_dir"]), layout), MpiTransport(comm, 1)
    measured = None
    if ours.role == "actor":
        segments, seconds = read_segments(Path(options["segments"])), options["step_ms"] / 1000.0
        feed = options.get("feed_seconds", math.inf)
        # It looks every 15 milliseconds: an actor has a core of its own in reality, and here 64 of them share a few.
        patient = Waiter(yield_seconds=0.0, shortest_sleep=0.015, longest_sleep=0.015, idle_sleep=0.015)
        child = lambda run_id, agent_steps: EmulatedChild(config, ours.index, run_id, seconds, segments, feed)  # noqa: E731
        run_roles([ActorRole(context, transport, ours.index, child)], transport, patient)
    elif ours.role == "replay_shard":
        run_roles([ReplayShardRole(context, transport, ours.index)], transport, Waiter())
    elif "learner" in options:
        from ddrl.bench.emulated.learner import run_learner

        measured = run_learner(context, transport, ours._replace(cores=options["cores"]), **options["learner"])
    else:
        learner: Any = EmulatedLearner(context, transport, **options["emulated_learner"])
        run_roles([learner], transport, Waiter())
        measured = {"failed": learner.events[0]} if learner.events else learner.summary()
    transport.flush(10.0)
    comm.Barrier()
    transport.close()
    return measured


if __name__ == "__main__":
    run_rank(main)
