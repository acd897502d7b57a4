"""The `ddrl` command: finds the subcommand, and turns bad input into one line and exit status 2.

Nothing here imports TensorFlow, MPI or an emulator; each subcommand imports what it needs when it runs.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections.abc import Sequence

from cluster.job import detect_job
from ddrl import programs
from ddrl.checks import did_you_mean
from ddrl.errors import UsageError

HELP = """usage: ddrl COMMAND [OPTIONS]

Distributed deep reinforcement learning with TensorFlow and MPI parameter servers.

commands:
  train ALGORITHM    train an agent; alone on this machine, or as one rank of a job (`ddrl train --help` names
                     the algorithms)
  train --resume RUN go on with a run
  evaluate RUN       play games with the newest checkpoint of a run and print the scores
  play RUN           record a video of the newest checkpoint of a run
  export RUN         write its policy as a TensorFlow SavedModel or as ONNX
  plan               which rank would be where and do what; starts nothing
  plugins            algorithms, networks, environments and more that there are, and where they are from
  doctor             is everything here that training needs? On every rank of a job, or on this machine
{benchmarks}
  study NAME         an experiment of a paper: many runs, one table, one figure; `ddrl study --help` lists them
  tune ALGORITHM     look for good settings with Optuna, in runs one after the other, at once, or as a Slurm array
  compare RUN...     one page with the curves, scores and rates of runs, grouped by the settings that differ
  diff RUN RUN       the settings that differ
  submit COMMAND     train, study or tune as jobs of Slurm, with the same options
  status [RUN...]    jobs of Slurm with their runs, progress and scores
  logs RUN           what the jobs of a run have printed; -f follows it

options:
  -h, --help         this text; `ddrl COMMAND --help` explains every option
  --version          print the version

examples:
  ddrl train ba3c --preset laptop --game pong --minutes 20
  ddrl train ppo --game CartPole-v1
  ddrl train apex-dqn --actors 8 --replay-shards 1 --game pong
  ddrl train ba3c --preset ba3c-paper --game breakout
"""
COMMANDS = (
    "train", "evaluate", "play", "export", "plan", "plugins", "doctor", "bench", "study", "tune", "compare", "diff",
    "submit", "status", "logs",
)  # fmt: skip
SECOND_RANK_PATIENCE_SECONDS = 2.0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line; returns its exit status: 0, 1 failed, 2 bad input, 130 interrupted, 141 output closed."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _end_modestly()
    try:
        return programs.run(lambda: dispatch(arguments), _refuse)
    except KeyboardInterrupt:
        print("ddrl: interrupted", file=sys.stderr)
        return 130


def dispatch(arguments: list[str]) -> int:
    """Imports and runs the subcommand."""
    if arguments[0:1] == ["help"] and arguments[1:]:
        arguments = [*arguments[1:], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(help_text(), end="")
        return 0
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(f"ddrl {version('ddrl')}")
        return 0
    command, rest = arguments[0], arguments[1:]
    if command not in COMMANDS:
        meant = did_you_mean(command, [*COMMANDS, "--help", "--version"]) or f"; use one of {', '.join(COMMANDS)}"
        raise UsageError(f"{command}: no such command{meant} (see ddrl --help)")
    status = importlib.import_module(f"ddrl.commands.{command}").main(rest)
    return int(status or 0)


def help_text() -> str:
    """All commands, every benchmark among them."""
    from ddrl.commands.bench import BENCHMARKS

    lines = [f"  {f'bench {name}':<18} {entry.about}" for name, entry in BENCHMARKS.items()]
    return HELP.format(benchmarks="\n".join(lines))


def _end_modestly() -> None:
    """Until a run has its own handler, SIGTERM ends a rank with status 1.

    srun ends all ranks when one fails, and returns their highest status: 143, what the signal itself would leave,
    would hide the 2 of a rank that refuses, and a job's script would start it again.
    """
    if detect_job(os.environ) is not None:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(1))


def _refuse(message: str) -> int:
    job = detect_job(os.environ)
    if job is not None and job.rank > 0:
        # All ranks see the same mistake, and a launcher ends all when one fails: rank 0 speaks first, and all end
        # with the same status.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(SECOND_RANK_PATIENCE_SECONDS)
        return 2
    return programs.say(message)


if __name__ == "__main__":
    sys.exit(main())
