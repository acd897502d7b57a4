"""Provides MPI's communicator of all ranks, once all of them are ready for messages."""

from __future__ import annotations

import functools
import time
from typing import Any

SETTLING_SECONDS = 0.25


@functools.cache
def settled_world() -> Any:
    """Initializes MPI, and returns MPI.COMM_WORLD, after a short pause in a job of several ranks.

    In Open MPI 5, a rank that gets a message while it is still in MPI_Init dies of a segmentation fault: the last thing
    that MPI_Init does is to wait for the other ranks, and a rank is ready for messages only after that (Open MPI's pull
    request 13559). So the rank that leaves MPI_Init first must not send a message at once.

    Returns:
        an mpi4py.MPI.Intracomm; mpi4py.MPI is imported in this function, because its import initializes MPI.

    Raises:
        ImportError, RuntimeError: MPI cannot be loaded.
    """
    from mpi4py import MPI

    if MPI.COMM_WORLD.Get_size() > 1:
        time.sleep(SETTLING_SECONDS)
    return MPI.COMM_WORLD
