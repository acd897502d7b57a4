"""`python -m ddrl.bench.emulated.rank JSON`: one rank of a job of emulated workers or actors, under mpirun.

Rank 0 prints what was measured. It loads no TensorFlow, unless it runs the real learner of Ape-X.
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
TAG = 99  # MPI tag of the bare loop's messages
SPINNING_SHARE = 10  # a spinning block has one step in so many: ranks that spin on too few cores are very slow

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
    """Draws the time that each gradient takes: log-normal around `seconds`, times `slow_factor` on slow workers."""

    def __init__(self, rank: int, spread: float, slow_factor: float) -> None:
        self.seconds = 0.0
        self._random, self._spread, self._factor = random.Random(rank), spread, slow_factor

    def __call__(self) -> float:
        return self.seconds * self._factor * self._random.lognormvariate(0.0, self._spread)


def blocks(comm: MPI.Comm, options: Options) -> list[dict[str, Any]]:
    """Runs a block of steps for each compute time; returns its duration, and the gradients computed and averaged."""
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
    """The number of gradients that all workers have computed so far."""
    ours, total = np.array([job.worker.computed if job.worker else 0], np.int64), np.zeros(1, np.int64)
    comm.Allreduce(ours, total)
    return int(total[0])


# one step beside bare MPI ---------------------------------------------------------------------------------------------


def exchange(comm: MPI.Comm, options: Options) -> dict[str, list[float]]:
    """Measures seconds per step of each kind of exchange, in every round.

    Ranks 0..W-1 are workers (0 is also the chief), followed by P servers. Every round has a block of steps of each
    kind, so that drifts of the machine's speed affect all kinds alike: our exchange with servers, our all-reduce among
    the workers, and bare MPI loops that send as many bytes as the former. The bytes of a real exchange are new in every
    step, so the bare loop writes them anew ("fresh"); "constant" sends the same bytes again, which stay in the caches
    of both sides. "spinning" waits in blocking MPI calls, the others with our waiter.
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
    """Sends the bytes of a synchronous exchange without computing: slices to servers, and as many bytes back.

    Args:
        comm: the communicator of all ranks.
        layout: which ranks are workers and servers.
        parameters: number of float32 parameters; slices and headers are as large as in the real exchange.
        steps: number of steps.
        waiter: waits for messages; None: blocking MPI calls do.
        fresh: whether the bytes are written anew in every step.
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
    """Runs this rank's role in an Ape-X job; the rank of the learner, emulated or real, returns its measurements.

    On an error, it prints a result that says why the job failed.
    """
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
        # Looks for messages only every 15 ms: real actors have a core each, while here 64 of them share a few cores.
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
