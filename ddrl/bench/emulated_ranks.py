"""`python -m ddrl.bench.emulated_ranks JSON`: one rank of a job of emulated workers, under mpirun. No TensorFlow.

Rank 0 prints, for every block of steps, how long it took, and how many gradients were computed and averaged.
"""

from __future__ import annotations

import json
import random
import sys
import time

import numpy as np
from mpi4py import MPI

from cluster.topology import gather, ranks_per_core
from ddrl.bench.emulated import EmulatedJob
from ddrl.bench.ranks import run_rank
from ddrl.exchange.coordinator import Quorum
from ddrl.exchange.mpi import MpiTransport
from ddrl.floating_point import flush_denormals

WARM_UP_STEPS = 10


class Compute:
    """The time of each gradient: `seconds`, times `slow_factor` on slow workers, spread log-normally."""

    def __init__(self, rank: int, spread: float, slow_factor: float) -> None:
        self.seconds = 0.0
        self._random, self._spread, self._factor = random.Random(rank), spread, slow_factor

    def __call__(self) -> float:
        return self.seconds * self._factor * self._random.lognormvariate(0.0, self._spread)


def main() -> None:
    """Runs a block of steps for each compute time."""
    flush_denormals()
    options = json.loads(sys.argv[1])
    comm, workers = MPI.COMM_WORLD, options["workers"]
    rank = comm.Get_rank()
    slow = workers - options["slow_workers"] <= rank < workers
    compute = Compute(rank, options["spread"], options["slow_factor"] if slow else 1.0)
    quorum = Quorum(options["quorum"], options["deadline_seconds"])
    transport = MpiTransport(comm, workers)
    job = EmulatedJob(
        transport,
        rank,
        workers,
        options["servers"],
        options["parameters"],
        compute,
        quorum,
        ranks_per_core(gather(comm), rank),
    )
    blocks = []
    for seconds, steps in options["blocks"]:
        compute.seconds = seconds
        job.run(WARM_UP_STEPS)  # the first steps of all ranks are slower
        comm.Barrier()
        averaged, computed, start = _averaged(job), _computed(comm, job), time.perf_counter()
        job.run(steps)
        elapsed = time.perf_counter() - start
        blocks.append(
            {
                "seconds": elapsed,
                "steps": steps,
                "averaged": _averaged(job) - averaged,
                "computed": _computed(comm, job) - computed,
            }
        )
    comm.Barrier()
    transport.close()
    if rank == 0:
        print("RESULT " + json.dumps(blocks), flush=True)


def _averaged(job: EmulatedJob) -> int:
    return job.chief.members if job.chief else 0


def _computed(comm: MPI.Comm, job: EmulatedJob) -> int:
    """Gradients that all workers computed so far."""
    mine, total = np.array([job.worker.computed if job.worker else 0], np.int64), np.zeros(1, np.int64)
    comm.Allreduce(mine, total)
    return int(total[0])


if __name__ == "__main__":
    run_rank(main)
