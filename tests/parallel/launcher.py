"""`ddrl train` without the plot at the end: launcher.py RANK_PROGRAM_OR_EMPTY ARGUMENTS of ddrl train ...

TEST_NO_ULFM: as with an mpirun that has no ULFM. TEST_LOST_FILES: see tests/parallel/lost_files.py.
TEST_STOP_SECONDS: for the ranks to end once the run has its result. TEST_FORKS: see tests/parallel/forks.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import lost_files
import ranks_forked
from rich.console import Console

from ddrl import cli
from ddrl.launch import local as launch
from ddrl.launch import supervisor
from ddrl.options.train_options import parse
from ddrl.placement.resources import this_machine


def run() -> int:
    program, *argv = sys.argv[1:]
    launch.finish = lambda *arguments: None  # a plot costs seconds
    supervisor.UNSAID_SECONDS = 60.0  # in which the ranks of a busy machine begin to train
    ranks = (sys.executable, str(Path(__file__).with_name(program))) if program else launch.RANK_PROGRAM
    if ranks_forked.FORKS in os.environ:
        ranks = ranks_forked.command(program or ranks_forked.MODULE)
        supervisor.session_members = ranks_forked.session_members
    if "TEST_NO_ULFM" in os.environ:
        inspect = launch.inspect_mpirun
        launch.inspect_mpirun = lambda path: inspect(path)._replace(major=4)
    machine = this_machine()
    arguments = parse(argv, machine)
    if "TEST_LOST_FILES" in os.environ:
        lost_files.arm(Path(arguments.config.run.run_dir))
    resume = Path(arguments.resume) if arguments.resume else None
    if "TEST_STOP_SECONDS" in os.environ:
        supervisor.STOP_SECONDS = float(os.environ["TEST_STOP_SECONDS"])
    return launch.train(arguments.config, resume, machine, Console(soft_wrap=True), ranks)


if __name__ == "__main__":
    cli.dispatch = lambda arguments: run()  # the same handling of errors as the real command
    sys.exit(cli.main())
