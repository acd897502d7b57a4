"""`python -m ddrl.bench.exchange_ranks JSON`: the ranks of `ddrl bench exchange`, under mpirun. No TensorFlow.

Ranks 0..W-1 are workers (0 the chief too), then P servers. Rounds of blocks follow one another, so that the
machine's mood is the same for all: our exchange with servers, our all-reduce among the workers, and bare loops of the
bytes of the former. The bytes of a real exchange are new in every step, so the bare loop writes them anew ("fresh");
"constant" sends the same ones again, which stay in the caches of both sides. "spinning" waits in blocking MPI calls,
the others with our waiter.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
from mpi4py import MPI

from ddrl.bench.emulated import EmulatedJob
from ddrl.bench.ranks import run_rank
from ddrl.exchange.messages import HeaderFormat
from ddrl.exchange.mpi import MpiTransport
from ddrl.exchange.sharding import shard_ranges
from ddrl.exchange.transport import Waiter
from ddrl.floating_point import flush_denormals
from ddrl.roles.job import Cast

TAG = 99  # of the bare loop
SPINNING_SHARE = 10  # ranks that spin on too few cores are so slow that a tenth of the steps must do


def bare_loop(comm: MPI.Comm, cast: Cast, parameters: int, steps: int, waiter: Waiter | None, fresh: bool) -> None:
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
    transport = MpiTransport(comm, workers)
    job = EmulatedJob(transport, comm.Get_rank(), workers, servers, parameters)
    alone = comm.Split(0 if comm.Get_rank() < workers else 1)
    reducing = MpiTransport(alone, workers)
    replicas = EmulatedJob(reducing, comm.Get_rank(), workers, 0, parameters) if comm.Get_rank() < workers else None
    kinds = ("ours", "allreduce", "bare_fresh", "bare_fresh_spinning", "bare_constant")
    blocks: dict[str, list[float]] = {kind: [] for kind in kinds}
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
                bare_loop(comm, job.cast, parameters, steps, None if spinning else Waiter(), fresh="fresh" in name)
            if round_number:
                blocks[name].append((time.perf_counter() - start) / steps)
    comm.Barrier()
    transport.close()
    reducing.close()
    if comm.Get_rank() == 0:
        print("RESULT " + json.dumps(blocks), flush=True)


if __name__ == "__main__":
    run_rank(main)
