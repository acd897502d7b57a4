"""`python -m ddrl.roles RUN_DIR [--resume] [--minutes M]`: one rank of a job, started by `ddrl train` under mpirun."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def main() -> int:
    """Runs this rank; returns the exit status."""
    from ddrl.launch.start import BEGUN, leave_note

    run_dir = Path(sys.argv[1])
    leave_note(run_dir, os.environ, BEGUN)
    from ddrl.errors import UsageError
    from ddrl.roles.main import abort, run
    from ddrl.rundir import load_config

    try:
        config = load_config(run_dir)
        if "--minutes" in sys.argv[2:]:
            minutes = float(sys.argv[sys.argv.index("--minutes") + 1])
            config = dataclasses.replace(config, run=dataclasses.replace(config.run, minutes=minutes))
        return run(config, run_dir, resume="--resume" in sys.argv[2:])
    except UsageError as error:
        print(f"ddrl: {error}", file=sys.stderr, flush=True)
        if "OMPI_COMM_WORLD_SIZE" in os.environ:
            abort(2)  # a rank that leaves before MPI_Init would be waited for by the others for ever
        return 2


if __name__ == "__main__":
    sys.exit(main())
