"""`ddrl train` without the plot at the end: launcher.py RANK_PROGRAM_OR_EMPTY ARGUMENTS of ddrl train ..."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from ddrl import cli
from ddrl.commands.train import parse
from ddrl.launch import local as launch
from ddrl.launch.resources import this_machine


def run() -> int:
    program, *argv = sys.argv[1:]
    launch.finish = lambda path, console: None  # a plot costs seconds
    ranks = (sys.executable, str(Path(__file__).with_name(program))) if program else launch.RANK_PROGRAM
    machine = this_machine()
    arguments = parse(argv, machine)
    resume = Path(arguments.resume) if arguments.resume else None
    return launch.train(arguments.config, resume, machine, Console(soft_wrap=True), ranks)


if __name__ == "__main__":
    cli.dispatch = lambda arguments: run()  # the same handling of errors as the real command
    sys.exit(cli.main())
