"""A barrier for programs under mpirun that leaves the cores to others: MPI's own spins."""

from __future__ import annotations

import time

from mpi4py import MPI


def meet(comm: MPI.Comm) -> None:
    """Returns when all ranks have come here."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.001)
