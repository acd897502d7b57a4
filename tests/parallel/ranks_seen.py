"""`python -m ddrl.roles` whose workers note what they see for the running statistics, in RUN/seen-RANK-NAME.npy."""

from __future__ import annotations

import os
import sys

import light
import numpy as np

from ddrl.roles import __main__ as ranks


def note(run_dir: str) -> None:
    """Appends rows of observations to one file; rewards, valid and ends of each step to another."""
    from ddrl.sampling.normalization import RunningReturns, Seen

    def appended(name, array):
        with open(f"{run_dir}/seen-{os.environ['OMPI_COMM_WORLD_RANK']}-{name}.npy", "ab") as file:
            np.save(file, array)

    count, run = Seen._of, RunningReturns.of

    def counted(self, observations, counts):
        appended("observations", observations[counts])
        return count(self, observations, counts)

    def ran(self, step):
        appended("steps", np.stack([step.reward, step.valid, step.terminated | step.truncated], axis=1))
        return run(self, step)

    Seen._of, RunningReturns.of = counted, ran


if __name__ == "__main__":
    light.install()
    note(sys.argv[1])
    sys.exit(ranks.main())
