"""The `ddrl` command: finds the subcommand, and turns bad input into one line and exit status 2.

Nothing here imports TensorFlow, MPI or an emulator; each subcommand imports what it needs when it runs.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Sequence

from cluster.job import detect_job
from ddrl import programs
from ddrl.checks import did_you_mean
from ddrl.errors import UsageError
from ddrl.options import other_libraries

ABOUT = "Distributed deep reinforcement learning with TensorFlow and MPI parameter servers."
COMMANDS = {
    "train": (
        "ALGORITHM",
        "Train an agent, alone on this machine or as one rank of a job. --resume RUN continues a run.",
    ),
    "evaluate": ("RUN", "Play games with a checkpoint of a run, and print the scores."),
    "play": ("RUN", "Record a video of a game with a checkpoint of a run."),
    "export": ("RUN", "Write the policy of a checkpoint as a TensorFlow SavedModel or as ONNX."),
    "plan": ("", "Show where each rank would run and what it would do. Starts nothing."),
    "doctor": ("", "Check that everything that training needs is here, on every rank of a job or on this machine."),
    "tune": (
        "ALGORITHM",
        "Search for good settings with Optuna: one run after another, several at once, or as a Slurm array.",
    ),
    "study": ("NAME", "Repeat an experiment of a paper: many runs, one report. `ddrl study --help` lists them."),
    "compare": (
        "RUN...",
        "Put the curves, scores, and rates of runs on one page, grouped by the settings that differ.",
    ),
    "diff": ("RUN RUN", "Print the settings in which two runs differ."),
    "board": ("[RUNS]", "Watch and compare runs on a web page, on this machine alone or as one file."),
    "submit": ("COMMAND", "Submit train, study, or tune as Slurm jobs, with the same options."),
    "status": ("[RUN...]", "List Slurm jobs, or without Slurm the runs here, with their progress and scores."),
    "logs": ("RUN", "Print what the jobs of a run have printed; -f follows it."),
    "plugins": ("", "List algorithms, networks, environments, and more, and where they come from."),
    "bench": ("NAME", "Measure one of"),
}
"""Name -> what follows it, and what it does; `bench` names the benchmarks behind that."""
OPTIONS = (
    ("-h, --help", "This text; `ddrl COMMAND --help` explains every option."),
    ("--version", "Print the version and a mark of the source, which is the same where all modules are."),
)
EXAMPLES = """
  ddrl train ba3c --preset laptop --game pong --minutes 20
  ddrl train ppo --game CartPole-v1
  ddrl train apex-dqn --preset laptop --game pong
  ddrl evaluate RUN --games 50
  ddrl plan --preset ba3c-paper --nodes 16 --cpus-per-node 32"""
SECOND_RANK_PATIENCE_SECONDS = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line; returns its exit status: 0, 1 failed, 2 bad input, 130 interrupted, 141 output closed."""
    arguments = [_with_dashes(word) for word in (sys.argv[1:] if argv is None else argv)]
    _end_modestly()
    try:
        return programs.run(lambda: dispatch(arguments), _refuse)
    except KeyboardInterrupt:
        print("ddrl: interrupted", file=sys.stderr)
        return 130
    finally:
        _outlast_other_ranks()


def _with_dashes(word: str) -> str:
    """An option that is spelled with underscores, as in Python, with dashes instead; any other word as it is."""
    option = re.fullmatch(r"(--[\w-]+)(=.*)?", word, re.DOTALL)
    return word if option is None else option[1].replace("_", "-") + (option[2] or "")


def dispatch(arguments: list[str]) -> int:
    """Imports and runs the subcommand."""
    if arguments[0:1] == ["help"] and arguments[1:]:
        arguments = [*arguments[1:], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(help_text(), end="")
        return 0
    if arguments[0] == "--version":
        from ddrl.reporting.machine import ddrl_version

        print(f"ddrl {ddrl_version()}")
        return 0
    command, rest = arguments[0], arguments[1:]
    if command not in COMMANDS:
        raise UsageError(f"{command}: no such command{_meant_by(command)} (see ddrl --help)")
    try:
        status = importlib.import_module(f"ddrl.commands.{command}").main(rest)
    except UsageError as error:
        if told := _how_to_give_plugins(error.word, rest):
            raise UsageError(f"{error}{told}") from error
        raise
    return int(status or 0)


def _how_to_give_plugins(refused: str, words: Sequence[str]) -> str:
    """The end of a refusal of a word that stands behind a plugin and may be meant as one; empty for any other."""
    split = [part for word in words for part in (word.split("=", 1) if word.startswith("--plugin=") else [word])]
    for option, plugin, word in zip(split, split[1:], split[2:]):
        if option == "--plugin" and word == refused and word[:1] not in ("", "-"):
            one_each = shlex.join(["--plugin", plugin, "--plugin", word])
            return f"; if it is a plugin, too, give --plugin once for each: {one_each}"
    return ""


def _meant_by(command: str) -> str:
    """The end of a refusal of an unknown command."""
    if command in other_libraries.COMMANDS:
        return f"; use `{other_libraries.COMMANDS[command]}`"
    return did_you_mean(command, [*COMMANDS, "--help", "--version"]) or f"; use one of {', '.join(COMMANDS)}"


def help_text() -> str:
    """All commands, every benchmark among them."""
    from ddrl.commands.bench import BENCHMARKS
    from ddrl.options.help_page import Entry, Section, page

    commands = [Entry(f"{name} {words}".rstrip(), text) for name, (words, text) in COMMANDS.items()]
    measured = f"{commands[-1].text} {', '.join(BENCHMARKS)}. `ddrl bench --help` says what each one measures."
    commands[-1] = commands[-1]._replace(text=measured)
    sections = [Section("commands", commands), Section("options", [Entry(*option) for option in OPTIONS])]
    return page("ddrl COMMAND [OPTIONS]", [ABOUT], sections, ["Examples:", EXAMPLES.strip("\n")])


def _end_modestly() -> None:
    """Until a run has its own handler, SIGTERM ends a rank with status 1.

    srun ends all ranks when one fails, and returns their highest status: 143, what the signal itself would leave,
    would hide the 2 of a rank that refuses, and a job's script would start it again.
    """
    if detect_job(os.environ) is not None:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(1))


def _outlast_other_ranks() -> None:
    """A rank that knows its status keeps it, although srun sends SIGTERM to all when one fails.

    Python gives SIGTERM its default back at its own end, which takes a while on a busy machine; an ignored one stays.
    """
    if detect_job(os.environ) is not None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _refuse(message: str) -> int:
    job = detect_job(os.environ)
    if job is not None and job.rank > 0:
        # All ranks see the same mistake, and a launcher ends all when one fails: rank 0 speaks first, and all end
        # with the same status.
        _outlast_other_ranks()
        time.sleep(SECOND_RANK_PATIENCE_SECONDS)
        return 2
    return programs.say(message)


if __name__ == "__main__":
    sys.exit(main())
