"""Ranks that go wrong by themselves: TEST_FAULT names how.

before_mpi: rank 1 dies before MPI has begun.
server: the parameter server raises at step 10.
late: worker 1 comes 15 seconds after the others.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from ddrl.launch.start import leave_note
from ddrl.roles.__main__ import main

FAULT = os.environ["TEST_FAULT"]
RANK = int(os.environ["OMPI_COMM_WORLD_RANK"])
LATE_SECONDS = 15.0


def arm() -> None:
    """Prepares this rank's fault."""
    if FAULT == "before_mpi" and RANK == 1:
        leave_note(Path(sys.argv[1]), RANK)
        os._exit(1)
    if FAULT == "server":
        from ddrl.exchange.shard import Shard

        commit = Shard._on_commit  # noqa: SLF001

        def failing(shard, header):
            if header.step == 10:
                raise ArithmeticError("the server's fault")
            return commit(shard, header)

        Shard._on_commit = failing  # noqa: SLF001
    if FAULT == "late" and RANK == 1:
        from ddrl.roles import compute

        worker = compute.ComputeRoles.worker

        def late(*arguments):
            time.sleep(LATE_SECONDS)
            return worker(*arguments)

        compute.ComputeRoles.worker = late


if __name__ == "__main__":
    arm()
    sys.exit(main())
