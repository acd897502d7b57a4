"""The site file: what differs from cluster to cluster, as settings of bash. `site.conf.example` explains them."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ddrl.errors import UsageError

HERE = Path(__file__).parent
EXAMPLE = HERE / "site.conf.example"
VARIABLE = "DDRL_SITE"
READ_SECONDS = 30.0
READ = """\
bash -n "$1" || exit
source "$1" >&2
for name in RUNS "${!SBATCH_@}"; do printf '%s=%s\\0' "$name" "${!name-}"; done
"""
"""A program of bash that prints the settings which are needed before a job begins. $1 is the site file, whose last
command may fail without harm."""


class Site(NamedTuple):
    """The settings of a site file, or their defaults.

    Attributes:
        path: path of the file; None without one.
        runs: directory in which run directories are made.
        variables: SBATCH_ACCOUNT and other variables that sbatch reads, without empty ones.
    """

    path: Path | None
    runs: Path
    variables: Mapping[str, str]


def home() -> Path:
    """Where the site file of this user is, or would be."""
    configuration = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(configuration, "ddrl", "site.conf")


def find(named: str = "") -> Path | None:
    """The site file: the named one, that of $DDRL_SITE, slurm/site.conf of a clone of ddrl, or that of this user.

    Returns:
        None where there is none, or where $DDRL_SITE is empty.

    Raises:
        UsageError: the file that was named is not there.
    """
    asked = named or os.environ.get(VARIABLE)
    if asked is not None:
        if asked and not Path(asked).is_file():
            option = "--site" if named else VARIABLE
            raise UsageError(f"{option} {asked}: there is no such file; `ddrl submit site {asked}` creates one")
        return Path(asked).absolute() if asked else None
    usual = (HERE.parents[1] / "slurm" / "site.conf", home())  # job.sh looks there, too
    return next((path for path in usual if path.is_file()), None)


def read(path: Path | None) -> Site:
    """What the site file says.

    Raises:
        UsageError: bash cannot read it.
    """
    if path is None:
        return Site(None, Path("runs").absolute(), {})
    # The file is an argument of bash, not a part of its program.
    command = ["bash", "-c", READ, "bash", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=READ_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{path}: bash cannot read it ({error}); fix it, or name another --site") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise UsageError(f"{path}: bash cannot read it ({said[-1] if said else 'no reason given'}); fix it")
    pairs = (entry.partition("=") for entry in os.fsdecode(done.stdout).split("\0") if entry)
    found = {name: value for name, _, value in pairs}
    runs = Path(found.pop("RUNS") or "runs").absolute()
    return Site(path, runs, {name: value for name, value in found.items() if value})


def write_example(path: Path, venv: str) -> None:
    """Writes a site file to fill in.

    Args:
        path: the file, which must not exist yet.
        venv: the virtual environment that it names (empty: none).

    Raises:
        UsageError: the file exists, or cannot be written.
    """
    lines = EXAMPLE.read_text().splitlines(keepends=True)
    settings = {"VENV": f"VENV={shlex.quote(venv) if venv else ''}", "RUNS": "RUNS=$HOME/runs"}
    for number, line in enumerate(lines):
        name = line.partition("=")[0]
        if name in settings:
            lines[number] = f"{settings[name]:<39} #{line.partition('#')[2]}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x") as file:
            file.writelines(lines)
    except FileExistsError as error:
        raise UsageError(f"{path} exists already; edit it, or name another file") from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; name a file that can be written") from error
