"""Runs the points of a study one after the other on this machine, and goes on where an earlier call ended."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ddrl import programs, run_lock, rundir
from ddrl.errors import UsageError
from ddrl.launch.processes import Interrupts
from ddrl.reporting import machine
from ddrl.slurm.runs import read_run
from ddrl.studies.plan import Plan
from ddrl.studies.points import POINTS, Point, note_failure
from ddrl.terminal import printable
from ddrl.wording import counted

MACHINE = "machine.json"
LINE_SECONDS = 60.0  # between progress lines where there is no terminal
LOCK_SECONDS = 0.5  # between two looks at a lock
OVERDUE_SECONDS = 60.0  # how far a point may overrun its expected end before the time left is called unknown
VERBS = {"waiting": "begins", "interrupted": "goes on", "failed": "is tried again"}

Run = Callable[[Point, Path], None]


def run_points(plan: Plan, run: Run, points: Sequence[Point] | None = None) -> int:
    """Runs those points that have not finished; returns the exit status: 1 if one failed.

    A point that fails is named, and the others go on. After a request to stop, the rest is left as it is.
    """
    programs.outlast_output()
    with Interrupts() as interrupts:
        return _run_points(plan, run, list(plan.points if points is None else points), interrupts)


def _run_points(plan: Plan, run: Run, wanted: Sequence[Point], interrupts: Interrupts) -> int:
    left = [point for point in wanted if plan.state(point).status != "finished"]
    if len(left) < len(wanted):
        print(f"already finished: {len(wanted) - len(left)} of {counted(len(wanted), 'point')}", flush=True)
    (plan.directory / POINTS).mkdir(parents=True, exist_ok=True)
    times: list[float] = []
    failed = 0
    for place, point in enumerate(left):
        number = _shown(f"[{place + 1 + len(wanted) - len(left)}/{len(wanted)}] {point.name}")
        before = _status(plan, point, interrupts)
        if before in ("running", "finished"):
            text = "another process is running it" if before == "running" else "has finished in the meantime"
            print(f"{number}: {text}", flush=True)
            if interrupts.stop:
                break
            continue
        running = Running(plan.path(point))

        def line(state: str) -> str:
            all_left = time_left(times, left[place:], running.seconds, running.left())
            return f"{number}{state}; time left for all points: {all_left.text()}"

        with _progress(line, f" {VERBS[before]}", plan.path(point)):
            why = run_one(plan, run, point)
        times.append(running.seconds)
        status = plan.state(point).status
        print(_shown(f"{number}: {status} after {duration(times[-1])}{': ' + why if why else ''}"), flush=True)
        failed |= status == "failed"
        if status == "interrupted" or interrupts.stop:
            print("stopped, as requested; the same command continues from here", flush=True)
            break
    return failed


def _shown(text: str) -> str:
    """A text, in which names and messages of others may be, as one line for a terminal."""
    return printable(text).replace("\n", " ")


def _status(plan: Plan, point: Point, interrupts: Interrupts) -> str:
    """The status of a point, which a requeued Slurm job waits for if it is running: a lost node may seem to run it."""
    if (status := plan.state(point).status) == "running" and run_lock.lost_node_seconds():
        run_lock.tell_of_wait(plan.path(point))
    while status == "running" and run_lock.lost_node_seconds() and not interrupts.stop:
        time.sleep(LOCK_SECONDS)
        status = plan.state(point).status
    return status


def run_one(plan: Plan, run: Run, point: Point) -> str:
    """Runs one point and catches its errors; returns why it failed or ended early, or an empty string."""
    path = plan.path(point)
    try:
        here = machine.describe()  # before the run: its processes load the source as it is now
        with limited_to(point.cores):
            run(point, path)
        if plan.state(point).status == "finished":
            rundir.write_json(path / MACHINE, here)
    except (UsageError, RuntimeError, OSError) as error:
        message = " ".join(str(error).split())
        note_failure(path, message)
        return message
    return plan.state(point).why


class Running:
    """How long the present point has run, and how long it will still take.

    Args:
        path: its directory.
    """

    def __init__(self, path: Path):
        self._path, self._began = path, time.monotonic()
        self._told: float | None = None
        self._heard = self._began

    @property
    def seconds(self) -> float:
        """Seconds since the point was started."""
        return time.monotonic() - self._began

    def left(self) -> float | None:
        """Seconds until the point ends: the last number that it reported, less the time since that was first read here.

        The time is subtracted because a peer reports nothing while it is evaluated. None if the point reports no
        number; negative if it takes longer than it reported.
        """
        told, now = read_run(self._path).seconds_left, time.monotonic()
        if told != self._told:
            self._told, self._heard = told, now
        return None if told is None else told - (now - self._heard)


class Left(NamedTuple):
    """The time until points end.

    Attributes:
        seconds: that are left; None if unknown.
        guessed: for some points nothing but the budget is known yet. Their starts, and evaluations for which training
            waits, come on top of it.
    """

    seconds: float | None
    guessed: bool = False

    def text(self) -> str:
        """Such as 'about 12 min'."""
        if self.seconds is None:
            return "unknown"
        return f"about {duration(self.seconds)}{' (a first guess)' if self.guessed else ''}"


def time_left(times: Sequence[float], points: Sequence[Point], elapsed: float, told: float | None = None) -> Left:
    """The time until these points end, the first of which has run for `elapsed` seconds.

    Args:
        times: seconds that earlier points of this call took. Points that wait are expected to take the mean of these,
            or their budgets if there are none.
        told: seconds that the first point itself reports as left (None: it reports nothing, and is expected to take
            that mean or its budget, whichever is more).
    """
    mean = sum(times) / len(times) if times else 0.0
    budget, *budgets = [60.0 * point.config.run.minutes for point in points]
    expected, rest = max(mean, budget), [mean or seconds for seconds in budgets]
    first = expected - elapsed if told is None else told
    if (told is None and not expected) or not all(rest) or first < -OVERDUE_SECONDS:
        return Left(None)
    guessed = (told is None and budget > mean) or (bool(rest) and not times)
    return Left(max(0.0, first) + sum(rest), guessed)


def how_far(path: Path) -> str:
    """Such as ': 43% of 75.0 minutes, 42:10 left, score -20.1'; empty for a point that has written no metrics."""
    run = read_run(path)
    return ": " + ", score ".join(filter(None, (run.progress, run.score))) if run.progress else ""


def duration(seconds: float) -> str:
    """Such as 45 s, 12 min or 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def limited_to(cores: int) -> contextlib.AbstractContextManager[None]:
    """Context manager: what is started inside may use only the first `cores` cores of this process (0: all).

    Raises:
        UsageError: this process may use fewer cores than that.
    """
    here = sorted(os.sched_getaffinity(0))
    if cores > len(here):
        raise UsageError(
            f"the point needs {cores} cores, and this process may use {len(here)}: run it where it may use more"
        )
    return bound_to(here[:cores])


@contextlib.contextmanager
def bound_to(cores: Sequence[int]) -> Iterator[None]:
    """Context manager: what is started inside may use only these cores (none given: all those of this process)."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def _progress(line: Callable[[str], str], begins: str, path: Path) -> Iterator[None]:
    """Context manager that prints that the point in `path` begins, and then its progress.

    On a terminal, one line is overwritten; elsewhere there is a new line every minute.
    """
    ended, terminal = threading.Event(), sys.stdout.isatty()

    def say(state: str) -> None:
        text = _shown(line(state))
        if terminal:  # a line that wraps would not be overwritten
            text = "\r\033[K" + text[: shutil.get_terminal_size().columns - 1]
        with contextlib.suppress(OSError):  # a closed terminal must not end the run
            print(text, end="" if terminal else "\n", flush=True)

    def serve() -> None:
        while not ended.wait(1.0 if terminal else LINE_SECONDS):
            say(how_far(path) or begins)

    say(begins)
    thread = threading.Thread(target=serve, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if terminal:
            print("\r\033[K", end="", flush=True)
