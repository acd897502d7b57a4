"""`ddrl train`: reads the settings, then launches."""

from __future__ import annotations

import os
from collections.abc import Sequence

from cluster.job import detect_job
from ddrl import programs
from ddrl.options import checked
from ddrl.placement.resources import this_machine


def main(argv: Sequence[str]) -> int:
    """Runs `ddrl train`; returns the exit status."""
    machine = this_machine()
    job = detect_job(os.environ)
    if job is not None:
        from ddrl.launch.job import Wanted, train_in_job

        return train_in_job(lambda: Wanted(*checked(argv, machine, job.rank == 0)), job)
    from ddrl.launch import local as launch
    from ddrl.reporting.progress import plain_console

    config, resume = checked(argv, machine)
    programs.outlast_output()
    return launch.train(config, resume, machine, plain_console())
