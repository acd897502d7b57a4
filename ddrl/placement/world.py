"""MPI's communicator of all ranks, given out only when all of them are ready for messages."""

from __future__ import annotations

import functools
import time
from typing import Any

SETTLING_SECONDS = 0.25


@functools.cache
def settled_world() -> Any:
    """MPI.COMM_WORLD, after a short pause in a job of several ranks; initializes MPI.

    A rank of Open MPI 5 that gets a message while it is still in MPI_Init dies of a segmentation fault: its last step
    there is to wait for the others, and only then is it ready for messages (Open MPI's pull request 13559). So the
    rank that leaves MPI_Init first must not send a message at once.

    Returns:
        An mpi4py.MPI.Intracomm; it is imported here, as that is what initializes MPI.

    Raises:
        ImportError, RuntimeError: MPI cannot be loaded.
    """
    from mpi4py import MPI

    if MPI.COMM_WORLD.Get_size() > 1:
        time.sleep(SETTLING_SECONDS)
    return MPI.COMM_WORLD
