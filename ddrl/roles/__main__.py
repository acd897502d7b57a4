"""`python -m ddrl.roles RUN_DIR [--evaluates-only] [--resume] [--spent SECONDS]`: one rank of a job, started by
`ddrl train` under mpirun. The seconds are those of the budget of minutes that were spent before this start."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from cluster.job import detect_job
from ddrl import programs
from ddrl.errors import UsageError

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def main() -> int:
    """Runs this rank; returns the exit status."""
    return programs.run(_rank, _refuse, needs_output=False)


def _rank() -> int:
    from ddrl.placement.start import BEGUN, leave_note

    run_dir = Path(sys.argv[1])
    leave_note(run_dir, os.environ, BEGUN)
    from ddrl.roles.main import run, write_failure
    from ddrl.rundir import load_config

    try:
        config = load_config(run_dir)  # with its plugins
    except UsageError as error:
        job = detect_job(os.environ)
        where = f"rank {job.rank} on {socket.gethostname()}: " if job is not None else ""
        write_failure(run_dir, f"{where}{error}", usage_error=True)
        raise UsageError(f"{where}{error}") from error
    flags = sys.argv[2:]
    spent = float(flags[flags.index("--spent") + 1]) if "--spent" in flags else 0.0
    alone = "--evaluates-only" in flags
    return run(config, run_dir, resume="--resume" in flags, evaluates_only=alone, spent_seconds=spent)


def _refuse(message: str) -> int:
    status = programs.say(message)
    if "OMPI_COMM_WORLD_SIZE" in os.environ:
        from ddrl.roles.main import abort

        abort(status)  # without it, the other ranks would wait in MPI_Init for ever
    return status


if __name__ == "__main__":
    sys.exit(main())
