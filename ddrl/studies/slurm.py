"""Runs as one Slurm array: a task for each point of a study that has not finished, or for each trial of a search."""

from __future__ import annotations

import math
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ddrl.errors import UsageError
from ddrl.programs import python_command
from ddrl.studies.plan import Plan
from ddrl.studies.points import Point

SCRIPT = Path(__file__).with_name("study.sbatch")
SUBMIT_SECONDS = 60.0
CORE_MEGABYTES = 2000
TRANSITION_BYTES = 7500  # of an Atari game in a replay


def submit(plan: Plan, options: str) -> str:
    """Submits the array; returns its number.

    Args:
        options: of sbatch, as one would write them on its command line.

    Raises:
        UsageError: there is no sbatch, it refuses, or there is nothing to run.
    """
    require_sbatch()
    numbers = [i for i, point in enumerate(plan.points) if plan.state(point).status not in ("finished", "running")]
    if not numbers:
        raise UsageError(f"--submit: every point of {plan.directory} has finished or runs; --collect reports them")
    return submit_array(sbatch_command(plan, numbers, options))


def require_sbatch() -> None:
    """Raises UsageError where there is none."""
    if shutil.which("sbatch") is None:
        raise UsageError("--submit: there is no sbatch here; log in where Slurm is, or leave --submit out to run here")


def submit_array(command: Sequence[str]) -> str:
    """Submits an array; returns its number.

    Raises:
        UsageError: there is no sbatch, or it refuses.
    """
    require_sbatch()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SUBMIT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"--submit: sbatch did not answer ({error}); try again") from error
    if done.returncode != 0:
        raise UsageError(f"--submit: {' '.join(done.stderr.split()) or 'sbatch failed'}")
    return done.stdout.strip().split(";")[0]


def sbatch_command(plan: Plan, numbers: Sequence[int], options: str) -> list[str]:
    """The command; options given by the user come last, so that they win.

    Raises:
        UsageError: options that are no words.
    """
    directory = plan.directory.resolve()
    task = ["study", plan.study, "--dir", str(directory), "--point"]
    array = ",".join(map(str, numbers))
    return array_command(f"study-{plan.study}", directory, array, plan.points, task, options)


def array_command(
    name: str, directory: Path, array: str, points: Sequence[Point], task: Sequence[str], options: str
) -> list[str]:
    """The command that submits runs as an array.

    Args:
        name: of the job.
        directory: of what the tasks print.
        array: numbers of the tasks.
        points: what they run: the largest of them says what a task needs.
        task: words of `ddrl`, which the number of the task follows.
        options: of sbatch, given by the user; they come last, so that they win.

    Raises:
        UsageError: options that are no words.
    """
    try:
        words = shlex.split(options)
    except ValueError as error:
        raise UsageError(f"--sbatch-options {options}: {error}") from error
    own = [
        f"--job-name={name}", f"--array={array}", f"--cpus-per-task={max(map(cores_of, points))}",
        f"--output={directory}/slurm-%A-%a.out",
    ]  # fmt: skip
    has_replay = any(point.config.has_replay for point in points)
    if has_replay and not any(word.startswith("--mem") for word in words):  # sbatch takes one of its kinds alone
        own.append(f"--mem-per-cpu={max(map(core_megabytes, points))}M")
    minutes = [point.config.run.minutes for point in points]
    if all(minutes):
        own.append(f"--time={round(1.2 * max(minutes)) + 15}")  # start, last evaluation and end
    return ["sbatch", "--parsable", *own, *words, str(SCRIPT), *python_command("ddrl.cli"), *task]


def cores_of(point: Point) -> int:
    """Cores that a point has work for: its own number, or its label's, or one for each rank; Q-learning acts and learns
    at once."""
    at_once = 2 if point.config.has_replay else 1
    return point.cores or point.labels.get("cores") or at_once * point.config.ranks


def core_megabytes(point: Point) -> int:
    """Memory for each core: that of the script, and a share of the replays."""
    replays = point.config.replay.replay_capacity * point.config.exchange.workers * TRANSITION_BYTES
    return CORE_MEGABYTES + math.ceil(replays / 1e6 / cores_of(point))
