"""`ddrl doctor` on one rank with a fault: ranks_faulty.py FAULT ARGUMENTS. Each rank claims a node of its own."""

from __future__ import annotations

import os
import sys
import time

from ddrl import cli
from ddrl.doctor import examination, facts

RANK = int(os.environ["OMPI_COMM_WORLD_RANK"])


def break_last_rank(fault: str) -> None:
    if fault == "other":
        facts.package_versions = lambda packages: dict.fromkeys(packages, "9.9")
        facts.wall_clock = lambda: time.time() + 7.0
    elif fault == "absent":
        time.sleep(90.0)
    elif fault == "frozen":
        facts.gather_facts = lambda *arguments: time.sleep(90.0)
    elif fault == "no MPI":
        os.environ["MPI4PY_LIBMPI"] = "/nothing/libmpi.so"
        sys.modules["mpi4py.MPI"] = None  # type: ignore[assignment]


def run() -> int:
    this_seat = facts.this_seat
    facts.this_seat = lambda environ: this_seat(environ)._replace(host=f"fake{RANK}")
    facts.unresolved = lambda names, seconds: []
    examination.GATHER_SECONDS, examination.SPARE_SECONDS = 1.0, 10.0  # in which a busy machine prints a table, too
    fault, *argv = sys.argv[1:]
    if RANK == 2:
        break_last_rank(fault)
    elif RANK == 0 and fault == "no MPI":
        time.sleep(3.0)  # by then the last rank has failed
    return cli.main(["doctor", *argv])


if __name__ == "__main__":
    sys.exit(run())
