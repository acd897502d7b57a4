"""Scripts of jobs: options of sbatch as #SBATCH lines, then what job.sh does. Words of users are quoted everywhere."""

from __future__ import annotations

import math
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from ddrl.checkpoint import REPLAY_SECONDS
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.programs import python_command
from ddrl.slurm.site import HERE, VARIABLE, Site

SCRIPT, REPORT_SCRIPT = "job.sbatch", "report.sbatch"
"""Names of the scripts, which are written into the directory of the run, study or search."""
WARNING_SECONDS = 120
"""Seconds before its end at which the job of a run without a replay is warned, so that it saves a checkpoint."""
START_AND_END_MINUTES = 15
NAMES = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_PARTITION": "partition",
    "SBATCH_QOS": "qos",
    "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_RESERVATION": "reservation",
}
"""Variables that sbatch reads -> the options that they stand for. A script has these options, so that it says all."""
_PLAIN = re.compile(r"[A-Za-z0-9_./=,:@%+-]+")


def words_of(options: str) -> list[str]:
    """The words of --sbatch-options.

    Raises:
        UsageError: a quote is not closed.
    """
    try:
        return shlex.split(options)
    except ValueError as error:
        raise UsageError(f"--sbatch-options {options}: {error}") from error


def warning_seconds(config: TrainConfig) -> int:
    """Seconds before its end at which the job of a run is warned: longer if replays are saved, too."""
    return WARNING_SECONDS + (round(REPLAY_SECONDS) if config.has_replay else 0)


def common(warning: int = WARNING_SECONDS) -> list[str]:
    """Options of all jobs, which are warned so many seconds before their end.

    A job that was requeued appends to the same output file.
    """
    return ["--open-mode=append", "--requeue", f"--signal=B:USR1@{warning}"]


def minutes_for(minutes: float, warning: int, trained: float = 0.0) -> str:
    """The option for the time limit of a run of so many minutes, with time for its start, last evaluation and end.

    Args:
        minutes: of training.
        warning: seconds before its end at which the job is warned.
        trained: minutes that the run has trained before.
    """
    earlier = math.ceil((warning - WARNING_SECONDS) / 60)
    return f"--time={round(1.2 * minutes - min(trained, minutes)) + START_AND_END_MINUTES + earlier}"


def has_memory(words: Sequence[str], site: Site) -> bool:
    """Whether a user or the site asks for memory, so that ddrl must not: sbatch takes only one kind of such options."""
    return any(word.startswith("--mem") for word in words) or any(
        name.startswith("SBATCH_MEM") for name in site.variables
    )


def output_in(directory: Path, name: str) -> str:
    """The option for a job's output.

    Args:
        directory: absolute path of its directory.
        name: name of the file, with Slurm's marks such as %j.

    Raises:
        UsageError: the directory's name has a backslash, so that Slurm would write elsewhere.
    """
    if "\\" in str(directory):
        raise UsageError(f"{directory}: Slurm cannot write its output there; choose a name without \\")
    return f"--output={str(directory).replace('%', '%%')}/{name}"


def script_of(options: Sequence[str], body: Sequence[str], site: Site, command: str, words: Sequence[str] = ()) -> str:
    """The text of a script.

    Args:
        options: options of sbatch.
        body: lines of bash, which may use what job.sh defines.
        site: the site file, whose options come after `options`.
        command: the command that asked for the job, for a comment.
        words: more options of sbatch, which come last.

    Raises:
        UsageError: an option has line ends or other control characters.
    """
    of_site = [f"--{NAMES[name]}={value}" for name, value in site.variables.items() if name in NAMES]
    directives = [*options, f"--chdir={Path.cwd()}", *of_site]
    lines = [
        "#!/usr/bin/env bash",
        f"# Written by: {_shown(command)}",
        *(f"#SBATCH {_directive(option)}" for option in directives),
        *(["#SBATCH " + " ".join(map(_directive, words))] if words else []),
        "",
        f"{VARIABLE}={shlex.quote(str(site.path or ''))}",
        *([f"VENV={shlex.quote(own_venv())}"] if own_venv() else []),
        f"source {shlex.quote(str(HERE / 'job.sh'))}",
        *body,
    ]
    return "\n".join(lines) + "\n"


def own_venv() -> str:
    """The directory of this Python's environment if it has the program `ddrl`; else empty."""
    program = Path(sys.executable).with_name("ddrl")
    return str(program.parents[1]) if program.parent.name == "bin" and os.access(program, os.X_OK) else ""


def ddrl_command(*words: str) -> str:
    """A line that runs ddrl with these words: the program of the job's environment, or else this Python's module."""
    return shlex.join([*(["ddrl"] if own_venv() else python_command("ddrl.cli")), *words])


def _shown(text: str) -> str:
    """The text in one line, with ? for what cannot be printed."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _directive(word: str) -> str:
    """A word quoted as sbatch reads it in a script: quotes protect blanks and #, a backslash the next character."""
    if not word.isprintable():
        raise UsageError(f"{word!r:.200}: sbatch takes no control characters; choose another name")
    if _PLAIN.fullmatch(word):
        return word
    name, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}{equals}"{quoted}"'
