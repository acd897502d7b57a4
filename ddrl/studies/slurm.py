"""Submits runs as one Slurm array: a task for each unfinished point of a study, or for each trial of a search."""

from __future__ import annotations

import contextlib
import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ddrl import rundir
from ddrl.errors import UsageError
from ddrl.slurm import site as sites
from ddrl.slurm.records import JobRecord, note
from ddrl.slurm.script import (
    REPORT_SCRIPT,
    SCRIPT,
    common,
    ddrl_command,
    has_memory,
    minutes_for,
    output_in,
    script_of,
    warning_seconds,
    words_of,
)
from ddrl.slurm.submission import submit
from ddrl.slurm.text import as_typed
from ddrl.studies.plan import Plan
from ddrl.studies.points import Point
from ddrl.wording import counted

CORE_MEGABYTES = 2000
TRANSITION_BYTES = 7500  # of an Atari game in a replay
REPORT_MINUTES = 30
HOLD = ("-H", "--hold")


class Asked(NamedTuple):
    """What the user's command line says about the jobs.

    Attributes:
        options: options of sbatch, as they are written on its command line; they override those that ddrl gives.
        site: path of the site file; empty for the usual one.
        dry_run: print the scripts, and submit nothing.
        command: the command as it was typed, for a comment in the script.
    """

    options: str
    site: str
    dry_run: bool
    command: str


def submit_study(plan: Plan, asked: Asked, plugins: Sequence[str] = ()) -> None:
    """Submits an array with a task for each point that has not finished, and a job after it that reports.

    Args:
        plan: the study.
        asked: what the user asked for.
        plugins: plugins that the tasks have to load, in the form in which a run records them; those of study.json
            are loaded anyway.

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
    with contextlib.nullcontext() if asked.dry_run else _without_failures(plan, numbers):
        number = submit_array(name, plan.directory, array, plan.points, [*task, "--point"], asked)
    try:
        report = submit_report(name, plan.directory, number, [*task, "--collect"], asked)
    except UsageError as error:
        by_hand = shlex.join(["ddrl", "study", plan.study, "--dir", str(plan.directory), *named, "--collect"])
        raise UsageError(
            f"job {number} was submitted and runs the points, but the job that reports them was refused ({error}): "
            f"report them with `{by_hand}`"
        ) from error
    if not asked.dry_run:
        points = counted(len(numbers), "point")
        print(f"job {number}: an array with {points} of {as_typed(plan.directory)}")
        print(f"job {report}: the report, when all of them have ended")


@contextlib.contextmanager
def _without_failures(plan: Plan, numbers: Sequence[int]) -> Iterator[None]:
    """A context without the results of failed attempts, which would otherwise be reported for tasks that never begin.
    They come back if it raises, as where sbatch refuses. A task may fail meanwhile: its result stays."""
    failed = [plan.path(plan.points[i]) for i in numbers if plan.state(plan.points[i]).status == "failed"]
    results = {path / rundir.RESULT: rundir.read_json(path / rundir.RESULT) for path in failed}
    for file in results:
        with contextlib.suppress(OSError):  # then the old failure is reported
            file.unlink()
    try:
        yield
    except BaseException:
        for file, result in results.items():
            with contextlib.suppress(OSError):
                rundir.write_json(file, result or {}, new=True)
        raise


def submit_array(
    name: str, directory: Path, array: str, points: Sequence[Point], task: Sequence[str], asked: Asked
) -> str:
    """Submits runs as an array, or prints its script; returns the number of the job.

    Args:
        name: name of the job.
        directory: where the script and the output of the tasks go.
        array: numbers of the tasks, as sbatch's --array has them.
        points: what the tasks run; each task asks for what the largest of them needs.
        task: words of the `ddrl` command of a task, after which the number of the task follows.
        asked: what the user asked for.

    Raises:
        UsageError: there is no sbatch, or it refuses.
    """
    site, words = sites.read(sites.find(asked.site)), words_of(asked.options)
    options = [f"--job-name={name}", "--nodes=1", "--ntasks=1", f"--cpus-per-task={max(map(cores_of, points))}"]
    if not has_memory(words, site):
        options.append(f"--mem-per-cpu={max(map(core_megabytes, points))}M")
    minutes = [point.config.run.minutes for point in points]
    warning = max(warning_seconds(point.config) for point in points)
    if all(minutes):
        options.append(minutes_for(max(minutes), warning))
    body = [f'task {ddrl_command(*task)} "$SLURM_ARRAY_TASK_ID"']
    options += [f"--array={array}", *common(warning)]
    return _submit(directory, SCRIPT, "slurm-%A-%a.out", options, body, site, asked, words)


def submit_report(name: str, directory: Path, array: str, command: Sequence[str], asked: Asked) -> str:
    """Submits a job that reports when an array has ended, or prints its script; returns the number of the job.

    Args:
        name: name of the array.
        directory: where the script and the output of the job go.
        array: number of the array.
        command: words of the `ddrl` command that reports.
        asked: what the user asked for.

    Raises:
        UsageError: as `submit_array`.
    """
    site = sites.read(sites.find(asked.site))
    words = [word for word in words_of(asked.options) if word not in HOLD]  # it waits for the array anyway
    options = [f"--job-name={name}-report", "--nodes=1", "--ntasks=1", f"--time={REPORT_MINUTES}"]
    if not has_memory(words, site):
        options.append(f"--mem-per-cpu={CORE_MEGABYTES}M")
    dependency = [f"--dependency=afterany:{array}"]  # failed or not: what has finished is reported
    body = [f"task {ddrl_command(*command)}"]
    options += common()
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
    """Submits a job and returns its number; a dry run prints the script and returns what stands for a number."""
    directory = directory.absolute()
    text = script_of([*options, output_in(directory, output)], body, site, asked.command, words)
    if asked.dry_run:
        print(text)
        return "ARRAY"
    number = submit(directory / script, text, site, words)
    note(directory, JobRecord(number, directory / output.replace("%A", number).replace("%j", number)))
    return number


def cores_of(point: Point) -> int:
    """Cores that a point can use: its `cores`, else its label `cores`, else one for each rank, or two with a replay,
    since Q-learning acts and learns at once."""
    at_once = 2 if point.config.has_replay else 1
    return point.cores or point.labels.get("cores") or at_once * point.config.ranks


def core_megabytes(point: Point) -> int:
    """Megabytes of memory that a point needs for each core: those of the ranks, and a share of the replays."""
    if not point.config.has_replay:
        return CORE_MEGABYTES
    replays = point.config.replay.replay_capacity * point.config.exchange.workers * TRANSITION_BYTES
    return CORE_MEGABYTES + math.ceil(replays / 1e6 / cores_of(point))
