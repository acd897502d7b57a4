"""Runs as one Slurm array: a task for each point of a study that has not finished, or for each trial of a search."""

from __future__ import annotations

import contextlib
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ddrl import rundir
from ddrl.errors import UsageError
from ddrl.reporting.texts import counted
from ddrl.slurm import site as sites
from ddrl.slurm.records import JobRecord, note
from ddrl.slurm.script import (
    COMMON,
    REPORT_SCRIPT,
    SCRIPT,
    ddrl_command,
    has_memory,
    minutes_for,
    output_in,
    script_of,
    words_of,
)
from ddrl.slurm.submission import require_sbatch, submit
from ddrl.slurm.text import as_typed
from ddrl.studies.plan import Plan
from ddrl.studies.points import Point

CORE_MEGABYTES = 2000
TRANSITION_BYTES = 7500  # of an Atari game in a replay
REPORT_MINUTES = 30
HOLD = ("-H", "--hold")


class Asked(NamedTuple):
    """What a command line says of the jobs.

    Attributes:
        options: of sbatch, as one would write them on its command line; they win over our own.
        site: the site file, or empty for the usual one.
        dry_run: scripts are printed, and nothing is submitted.
        command: what was typed, for a comment.
    """

    options: str
    site: str
    dry_run: bool
    command: str


def submit_study(plan: Plan, asked: Asked, plugins: Sequence[str] = ()) -> None:
    """Submits an array with a task for each point that has not finished, and a job after it that reports.

    Args:
        plan: what was begun.
        asked: by the user.
        plugins: that the tasks are to load, as they are recorded; those of study.json they load by themselves.

    Raises:
        UsageError: there is no sbatch, it refuses, or there is nothing to run.
    """
    numbers = [i for i, point in enumerate(plan.points) if plan.state(point).status not in ("finished", "running")]
    if not numbers:
        raise UsageError(
            f"--submit: every point of {plan.directory} has finished or is running; --collect reports them"
        )
    named = [word for plugin in plugins for word in ("--plugin", plugin)]
    task = ["study", plan.study, "--dir", str(plan.directory.absolute()), *named]
    name, array = f"study-{plan.study}", ",".join(map(str, numbers))
    number = submit_array(name, plan.directory, array, plan.points, [*task, "--point"], asked)
    if not asked.dry_run:
        _forget_failures(plan, numbers)
    try:
        report = submit_report(name, plan.directory, number, [*task, "--collect"], asked)
    except UsageError as error:
        by_hand = shlex.join(["ddrl", "study", plan.study, "--dir", str(plan.directory), *named, "--collect"])
        raise UsageError(
            f"job {number} was submitted and runs the points, but no job will report them ({error}): do that with "
            f"`{by_hand}`"
        ) from error
    if not asked.dry_run:
        points = counted(len(numbers), "point")
        print(f"job {number}: an array with {points} of {as_typed(plan.directory)}")
        print(f"job {report}: the report, when all of them have ended")


def _forget_failures(plan: Plan, numbers: Sequence[int]) -> None:
    """Removes how earlier attempts at points failed, which else is told of tasks that never begin."""
    for point in (plan.points[number] for number in numbers):
        if plan.state(point).status == "failed":
            with contextlib.suppress(OSError):  # then the old failure is told
                (plan.path(point) / rundir.RESULT).unlink()


def submit_array(
    name: str, directory: Path, array: str, points: Sequence[Point], task: Sequence[str], asked: Asked
) -> str:
    """Submits runs as an array, or prints its script; returns its number.

    Args:
        name: of the job.
        directory: of the script, and of what the tasks print.
        array: numbers of the tasks.
        points: what they run: the largest of them says what a task needs.
        task: words of `ddrl`, which the number of the task follows.
        asked: by the user.

    Raises:
        UsageError: there is no sbatch, or it refuses.
    """
    site, words = sites.read(sites.find(asked.site)), words_of(asked.options)
    options = [f"--job-name={name}", "--nodes=1", "--ntasks=1", f"--cpus-per-task={max(map(cores_of, points))}"]
    if not has_memory(words, site):
        options.append(f"--mem-per-cpu={max(map(core_megabytes, points))}M")
    minutes = [point.config.run.minutes for point in points]
    if all(minutes):
        options.append(minutes_for(max(minutes)))
    body = [f'task {ddrl_command(*task)} "$SLURM_ARRAY_TASK_ID"']
    options += [f"--array={array}", *COMMON]
    return _submit(directory, SCRIPT, "slurm-%A-%a.out", options, body, site, asked, words)


def submit_report(name: str, directory: Path, array: str, command: Sequence[str], asked: Asked) -> str:
    """Submits the job that reports when an array has ended, or prints its script; returns its number.

    Args:
        name: of the array.
        directory: of the script, and of what the job prints.
        array: its number.
        command: words of `ddrl`.
        asked: by the user.

    Raises:
        UsageError: as `submit_array`.
    """
    site = sites.read(sites.find(asked.site))
    words = [word for word in words_of(asked.options) if word not in HOLD]  # it waits for the array as it is
    options = [f"--job-name={name}-report", "--nodes=1", "--ntasks=1", f"--time={REPORT_MINUTES}"]
    if not has_memory(words, site):
        options.append(f"--mem-per-cpu={CORE_MEGABYTES}M")
    dependency = [f"--dependency=afterany:{array}"]  # failed or not: what has finished is reported
    body = [f"task {ddrl_command(*command)}"]
    options += COMMON
    return _submit(directory, REPORT_SCRIPT, "report-%j.out", options, body, site, asked, [*words, *dependency])


def _submit(
    directory: Path,
    script: str,
    output: str,
    options: Sequence[str],
    body: Sequence[str],
    site: sites.Site,
    asked: Asked,
    words: Sequence[str],
) -> str:
    """The number of the job; of a dry run what stands for it in the text of another job."""
    directory = directory.absolute()
    text = script_of([*options, output_in(directory, output)], body, site, asked.command, words)
    if asked.dry_run:
        print(text)
        return "ARRAY"
    require_sbatch()
    number = submit(directory / script, text, site, words)
    note(directory, JobRecord(number, directory / output.replace("%A", number).replace("%j", number)))
    return number


def cores_of(point: Point) -> int:
    """Cores that a point has work for: its own number, or its label's, or one for each rank; Q-learning acts and learns
    at once."""
    at_once = 2 if point.config.has_replay else 1
    return point.cores or point.labels.get("cores") or at_once * point.config.ranks


def core_megabytes(point: Point) -> int:
    """Memory for each core: of its ranks, and a share of the replays."""
    if not point.config.has_replay:
        return CORE_MEGABYTES
    replays = point.config.replay.replay_capacity * point.config.exchange.workers * TRANSITION_BYTES
    return CORE_MEGABYTES + math.ceil(replays / 1e6 / cores_of(point))
