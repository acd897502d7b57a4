"""`ddrl train`: reads the settings, then launches."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from cluster.job import detect_job
from ddrl import programs
from ddrl.options.named_settings import as_yaml
from ddrl.options.train_options import parse
from ddrl.options.wanted import checked
from ddrl.placement.resources import this_machine
from ddrl.types import Machine

PRINT = "--print-config"


def main(argv: Sequence[str]) -> int:
    """Runs `ddrl train`; returns the exit status."""
    machine = this_machine()
    job = detect_job(os.environ)
    if PRINT in argv:
        return print_config(argv, machine, job is None or job.rank == 0)
    if job is not None:
        from ddrl.launch.job import train_in_job

        return train_in_job(lambda: checked(argv, machine, job.rank == 0), job)
    wanted = checked(argv, machine)
    from ddrl.launch import local as launch
    from ddrl.reporting.progress import plain_console

    programs.outlast_output()
    return launch.train(
        wanted.config,
        wanted.resume,
        machine,
        plain_console(),
        trains_more=wanted.trains_more,
        minutes_of_run=wanted.minutes_of_run,
    )


def print_config(argv: Sequence[str], machine: Machine, first: bool) -> int:
    """Prints the settings of a command line as a file for --config; returns the exit status.

    Args:
        first: whether this rank is the one that prints.
    """
    from importlib.metadata import version

    arguments = parse(argv, machine)
    command = shlex.join(["ddrl", "train", *(word for word in argv if word != PRINT)])
    heading = [
        f"Every setting of `{command}`, as ddrl {version('ddrl')} has it.",
        "ddrl train --config THIS_FILE starts such a run; options on the command line override this file.",
    ]
    if first:
        # A resumed run has a directory, which a new one cannot have.
        print(as_yaml(arguments.config, arguments.algorithm, arguments.preset, heading, not arguments.resume), end="")
    return 0
