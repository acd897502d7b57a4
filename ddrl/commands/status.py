"""`ddrl status`: jobs of Slurm with the runs, studies and searches that they work on, and those that need no job."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import tyro

from ddrl import rundir
from ddrl.board.discovery import find_runs
from ddrl.errors import UsageError
from ddrl.launch.outcome import ended_well
from ddrl.options import command_line
from ddrl.run_lock import holder, is_held
from ddrl.slurm import site as sites
from ddrl.slurm.queue import NoConfiguration, QueuedJob, has_queue, queue
from ddrl.slurm.records import JOBS, JobRecord, noted, noted_since
from ddrl.slurm.runs import RunState, read_run, why_gone, wrote_lately
from ddrl.slurm.text import as_typed
from ddrl.studies.plan import PLAN
from ddrl.studies.points import POINTS, is_name
from ddrl.terminal import printable
from ddrl.tuning.plan import FILE as SEARCH
from ddrl.tuning.plan import TRIALS
from ddrl.wording import counted

ENDED = 10
"""Number of directories in which nothing works that are listed: those in which something worked last."""
PLACES = ("runs", "studies", "tuning")
HEADINGS = ("job", "state", "time", "progress", "score", "where")


@dataclasses.dataclass(frozen=True)
class StatusArguments:
    """List the waiting and running jobs with their runs, progress, and scores, then those that ended last. Looks in the
    site's directory of runs, and here in runs, studies, and tuning. Without Slurm, lists the runs, studies, and
    searches there: those that are running, then those that ended last."""

    directories: tyro.conf.Positional[tuple[str, ...]] = ()
    """Runs, studies, and searches to list, or directories that hold some, instead of those that are found."""
    all: tyro.conf.FlagCreatePairsOff[bool] = False
    """List all that have ended, not only the last ten."""
    site: str = ""
    """Site file (default: $DDRL_SITE, slurm/site.conf of a clone, or ~/.config/ddrl/site.conf)."""


class Row(NamedTuple):
    """A line of the table, and `why` for the line below it, which says why something failed."""

    job: str
    state: str
    time: str
    progress: str
    score: str
    where: str
    why: str = ""


def main(argv: Sequence[str]) -> int:
    """Runs `ddrl status`; returns the exit status."""
    arguments = command_line.read(StatusArguments, argv, "ddrl status", StatusArguments())
    named, slurm, jobs = [path for name in arguments.directories for path in named_by(name)], has_queue(), []
    try:
        jobs = queue() if slurm else []
    except NoConfiguration:  # where Slurm's client is installed on a machine of no cluster
        slurm = False
    runs = sites.read(sites.find(arguments.site)).runs
    directories = named or (of_jobs(runs, jobs) if slurm else found_here(runs))
    working: list[tuple[Path, list[QueuedJob]]] = []
    ended: list[tuple[Path, list[QueuedJob]]] = []
    for directory in directories:
        theirs = jobs_of(directory, jobs)
        (working if theirs or at_work(directory) else ended).append((directory, theirs))
    working.sort(key=lambda each: int(each[1][0].number) if each[1] else 0)
    if not named:
        ended.sort(key=lambda each: changed(each[0]), reverse=True)
    shown = ended if named or arguments.all else ended[:ENDED]
    rows = [row for directory, theirs in [*working, *shown] for row in rows_of(directory, theirs)]
    if not rows:
        none = "there are no jobs of ddrl; `ddrl submit train` submits one"
        print(none if slurm else f"there are no runs in {as_typed(runs)}; `ddrl train` starts one")
        return 0
    show(rows)
    if len(shown) < len(ended):
        print(f"and {len(ended) - len(shown)} more that ended earlier (--all)")
    return 0


def named_by(name: str) -> list[Path]:
    """The run, study, or search of this name or, if it is another directory, those in it.

    Raises:
        UsageError: as `known`.
    """
    return list(_topmost(name)) or [known(name)]


def _topmost(place: str) -> Iterator[Path]:
    """Yields what `is_known` of a directory and of those at any level below it; what is in one is part of it."""
    for directory, inner, _ in os.walk(place):
        inner.sort()
        if is_known(Path(directory)):
            yield Path(directory)
            inner.clear()


def known(name: str) -> Path:
    """The directory of this name.

    Raises:
        UsageError: it is no run, study or search, and no job has worked there.
    """
    path = Path(name)
    if not is_known(path):
        why = "it holds no run, study, or search" if path.is_dir() else "there is no such directory"
        raise UsageError(f"{name}: {why}; `ddrl status` lists what there is")
    return path


def is_known(directory: Path) -> bool:
    """Whether a directory is that of a run, study, or search, or one in which a job has worked."""
    return any((directory / file).is_file() for file in (rundir.CONFIG, PLAN, SEARCH, JOBS))


def of_jobs(runs: Path, jobs: Sequence[QueuedJob]) -> list[Path]:
    """The directories in `runs` and PLACES in which jobs have worked, and those of jobs in the queue."""
    # A script of another project may have the name of ours; it has left no notes.
    queued = [job.directory for job in jobs if job.directory and (job.directory / JOBS).is_file()]
    return list(dict.fromkeys([*found(runs), *queued]))


def found(runs: Path) -> Iterator[Path]:
    """Yields the directories in `runs` and PLACES in which jobs have worked, also those one level deeper.

    The tasks of an array have theirs there.
    """
    for place in (runs, *map(Path, PLACES)):
        for path in _directories(place):
            if (path / JOBS).is_file():
                yield path.absolute()
            elif not (path / rundir.CONFIG).is_file():
                yield from (each.absolute() for each in _directories(path) if (each / JOBS).is_file())


def found_here(runs: Path) -> list[Path]:
    """The runs at any level below `runs` and the first of PLACES, and the studies and searches in the others."""
    first, *others = (Path(place).absolute() for place in PLACES)
    return [*find_runs([runs, first]), *(path for place in others for path in _directories(place) if is_many(path))]


def is_many(directory: Path) -> bool:
    """Whether a directory is that of a study or a search."""
    return any((directory / file).is_file() for file in (PLAN, SEARCH))


def at_work(directory: Path) -> list[Path]:
    """Those of a directory and, in a study or search, its runs, in which a process works.

    It holds the lock. A run without jobs that wrote lately counts, too: the lock of another node cannot always be seen.
    """
    inner = runs_of(directory)[0] if is_many(directory) else []
    without_job = not noted(directory)
    return [path for path in (directory, *inner) if is_held(path) or (without_job and wrote_lately(path))]


def changed(directory: Path) -> float:
    """When the newest job of a directory was noted; without jobs, when its run wrote last, or its study was begun."""
    for name in (JOBS, rundir.METRICS, rundir.CONFIG, PLAN, SEARCH):
        with contextlib.suppress(OSError):
            return os.stat(directory / name).st_mtime
    return 0.0


def _directories(place: Path) -> list[Path]:
    try:
        return sorted(Path(entry.path) for entry in os.scandir(place) if entry.is_dir())
    except OSError:
        return []


def jobs_of(directory: Path, jobs: Sequence[QueuedJob]) -> list[QueuedJob]:
    """The lines of the queue whose jobs work in a directory, by the job numbers that are noted there."""
    records = {record.job for record in noted(directory)}
    return [job for job in jobs if {job.job, job.number} & records]


def rows_of(directory: Path, jobs: Sequence[QueuedJob]) -> Iterator[Row]:
    """Yields the rows of a directory: one for each job that waits or runs, or one that says whether the run goes on, or
    how it ended."""
    if is_many(directory):
        yield from _rows_of_many(directory, jobs)
        return
    run = read_run(directory)
    for job in _merged(jobs):
        yield Row(*job, run.progress, run.score, as_typed(directory))
    if not jobs:
        yield _row_without_job(directory, run)


def _row_without_job(directory: Path, run: RunState) -> Row:
    """The row of a run for which no job waits or runs."""
    where = as_typed(directory)
    if at_work(directory):
        return Row("", _running(directory), "", run.progress, run.score, where)
    records = noted(directory)
    # A job that never began leaves the result of the one before it.
    state = "" if records and noted_since(directory, directory / rundir.RESULT) else run.status
    why = run.message if state == "failed" else ""
    if not state:
        state, why = ("gone", _why_gone(records[-1])) if records else ("interrupted", "")
    return Row(records[-1].job if records else "", state, "", run.done, run.score, where, why)


def _running(path: Path) -> str:
    """The state of a directory in which a process works, with the process if it is known."""
    who = holder(path) if is_held(path) else ""
    return f"running ({who})" if who else "running"


def _rows_of_many(directory: Path, jobs: Sequence[QueuedJob]) -> Iterator[Row]:
    """Yields the rows of a study or search: those of its jobs, and of the runs that are under way."""
    runs, total, noun = runs_of(directory)
    results = {path: rundir.read_json(path / rundir.RESULT) for path in runs}
    told = [result for result in results.values() if result is not None]
    finished, failed = sum(map(ended_well, told)), sum(result.get("status") == "failed" for result in told)
    progress = f"{finished} of {counted(total, noun)} finished" + (f", {failed} failed" if failed else "")
    where, records = as_typed(directory), noted(directory)
    working = [] if jobs else at_work(directory)
    for job in _merged(jobs):
        yield Row(*job, progress, "", where)
    if not jobs:
        state = "ended" if finished + failed == total else "gone" if records else "interrupted"
        state = "finished" if finished == total else _running(working[0]) if working else state
        yield Row(records[0].job if records else "", state, "", progress, "", where)
    for path, result in results.items():
        if result is None and (path / rundir.CONFIG).is_file() and (jobs or path in working):
            run = read_run(path)
            yield Row("", "", "", run.progress, run.score, as_typed(path))


def runs_of(directory: Path) -> tuple[list[Path], int, str]:
    """The run directories of a study or search, how many there will be, and what each is: a point or a trial."""
    points = (rundir.read_json(directory / PLAN) or {}).get("points")
    planned = [point.get("name") for point in points if isinstance(point, dict)] if isinstance(points, list) else []
    names = [name for name in planned if name is not None and is_name(name)]
    if names:
        return [directory / POINTS / name for name in names], len(names), "point"
    runs = _directories(directory / TRIALS)
    total = (rundir.read_json(directory / SEARCH) or {}).get("trials")
    return runs, total if isinstance(total, int) else len(runs), "trial"


def _merged(jobs: Sequence[QueuedJob]) -> Iterator[tuple[str, str, str]]:
    """Yields number, state and time of each job; tasks of an array, or components of a job, make one job."""
    for number in dict.fromkeys(job.number for job in jobs):
        lines = [job for job in jobs if job.number == number]
        active = [job for job in lines if job.state != "PENDING"]
        first = (active or lines)[0]
        state = first.state if active else f"{first.state} ({first.reason})"
        if len(active) > 1 and "+" not in first.job:
            state += f" ({len(active)} tasks)"
        yield number, state, f"{first.elapsed} of {first.limit}" if active else ""


def _why_gone(record: JobRecord) -> str:
    outputs = record.outputs()
    why = why_gone(outputs[-1]) if outputs else "it has left no output"
    return why or f"it has left no result; its last output is in {outputs[-1]}"


def show(rows: Sequence[Row]) -> None:
    """Prints rows in columns."""
    lines = [HEADINGS, *(tuple(printable(cell).replace("\n", " ") for cell in row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS) - 1)]
    for line in lines:
        cells = [f"{cell:{width}}" for cell, width in zip(line, widths)]
        print("  ".join([*cells, line[len(widths)]]))
        if len(line) > len(HEADINGS) and line[-1]:
            print(f"      {line[-1]}")
