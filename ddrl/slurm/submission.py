"""Runs sbatch: writes a script, submits it, and makes one line of a refusal."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ddrl.errors import UsageError
from ddrl.files import write_whole
from ddrl.slurm.site import Site

SUBMIT_SECONDS = 60.0
PREFIX = "SBATCH_"
NUMBER = re.compile(r"(?:Submitted batch job )?(\d+)(;.*)?")
"""What sbatch prints of a job: its number, and the cluster if there are several. Some sites' own drop --parsable."""
OF_A_JOB = re.compile(r"(SLURM|SLURMD|SRUN|PMI|PMIX|OMPI_COMM)_(?!MCA_)")
"""Variables of a job in which ddrl itself runs, such as that of salloc. sbatch hands on its environment, and the new
job would take those about sizes for options of its own."""


def require_sbatch() -> None:
    """Raises UsageError if sbatch is not installed here."""
    if shutil.which("sbatch") is None:
        raise UsageError("there is no sbatch here; log in where Slurm is, or run this here instead of submitting it")


def submit(script: Path, text: str, site: Site, words: Sequence[str] = ()) -> str:
    """Writes a script and submits it; returns the number of the job.

    Args:
        script: where the script is written; its directory must exist.
        text: the text of the script.
        site: the site file, whose variables sbatch gets.
        words: options of sbatch that come before those of the script and of the site.

    Raises:
        UsageError: there is no sbatch, it refuses or only tests the job, or the script cannot be written.
    """
    require_sbatch()
    try:
        write_whole(script, text.encode())  # not through a link, nor into a file, of somebody else
    except OSError as error:
        raise UsageError(f"cannot write {script}: {error.strerror}; choose another directory") from error
    try:
        done = subprocess.run(
            ["sbatch", "--parsable", *words, str(script)],
            env=_environment() | dict(site.variables),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SUBMIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"sbatch did not answer ({error}); try again") from error
    said = "; ".join(line.removeprefix("sbatch: error: ") for line in done.stderr.splitlines() if line.strip())
    if done.returncode != 0:
        raise UsageError(f"sbatch refuses the job: {said or 'it does not say why'}")
    # A site's own sbatch may print more lines.
    numbers = [match[1] for line in done.stdout.splitlines() if (match := NUMBER.fullmatch(line.strip()))]
    if not numbers:
        raise UsageError(f"sbatch gives no number of a job: {said or 'it does not say why'}")
    return numbers[-1]


def _environment() -> dict[str, str]:
    """The environment without that of a job, and without empty variables of sbatch, which it would take for names."""
    foreign = OF_A_JOB if "SLURM_JOB_ID" in os.environ else re.compile("$^")
    return {
        name: value
        for name, value in os.environ.items()
        if (value or not name.startswith(PREFIX)) and (name == "SLURM_CONF" or not foreign.match(name))
    }
