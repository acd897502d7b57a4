"""`ddrl logs RUN`: what jobs of Slurm have printed, as `tail` would show it."""

from __future__ import annotations

import codecs
import collections
import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import tyro

from ddrl import checks, rundir
from ddrl.commands.status import known
from ddrl.errors import UsageError
from ddrl.files import open_regular
from ddrl.options import command_line
from ddrl.slurm.queue import has_queue, queue
from ddrl.slurm.records import JobRecord, noted
from ddrl.slurm.text import as_typed
from ddrl.terminal import printable
from ddrl.wording import plural

READ_SECONDS = 0.5
QUEUE_SECONDS = 10.0  # Slurm's controller has others to answer
UNANSWERED = 30  # times in a row that a busy Slurm may fail to answer while a job is followed
CHUNK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class LogsArguments:
    """Print the output of a run's newest job, or of all tasks of a study or search."""

    directory: tyro.conf.Positional[str]
    """Directory of a run, study, or search."""
    follow: tyro.conf.FlagCreatePairsOff[bool] = False
    """Follow the output until the job has left the queue. -f is short for it."""
    lines: int | None = None
    """Print only this many of the last lines of each output (None: all)."""

    def __post_init__(self) -> None:
        if self.lines is not None:
            checks.between(self, 0, 1_000_000_000, "lines")


class Output:
    """One file that a job prints into.

    Args:
        path: path of the file.
        lines: how many of its last lines are printed at first (None: all).
    """

    def __init__(self, path: Path, lines: int | None):
        self.path, self._lines, self._offset = path, lines, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def show(self, heading: bool) -> bool:
        """Prints what has come since the last call; returns whether there was anything.

        Args:
            heading: print the name of the file above it.
        """
        shown = False
        with open_regular(self.path) as file:
            if self._lines is not None:
                self._offset, self._lines = _begin_of_last(self.path, self._lines), None
            file.seek(self._offset)
            while data := file.read(CHUNK_BYTES):
                self._offset += len(data)
                if heading and not shown:
                    print(f"==> {printable(as_typed(self.path))} <==")
                shown = True
                print(printable(self._decoder.decode(data)), end="", flush=True)
        return shown


def main(argv: Sequence[str]) -> int:
    """Runs `ddrl logs`; returns the exit status."""
    if not argv:
        raise UsageError("logs: name the directory of a run, study, or search (ddrl logs --help)")
    arguments = command_line.read(LogsArguments, ["--follow" if word == "-f" else word for word in argv], "ddrl logs")
    directory = known(arguments.directory)
    records = newest(noted(directory))
    if not records:
        return show_log(directory, arguments)
    if not arguments.follow:
        shown = [output.show(True) for output in opened(records, {}, arguments.lines)]
        if not any(shown):
            raise UsageError(nothing_yet(directory, records))
        return 0
    return follow(records, arguments.lines)


def newest(records: Sequence[JobRecord]) -> list[JobRecord]:
    """The last job of a run, or the last array of a study or search and the jobs after it."""
    arrays = [number for number, record in enumerate(records) if "%a" in record.output.name]
    return list(records[arrays[-1] :] if arrays else records[-1:])


def opened(records: Sequence[JobRecord], known: dict[Path, Output], lines: int | None) -> list[Output]:
    """The outputs of jobs that exist; those in `known` go on where they are, and new ones are added to it."""
    return [known.setdefault(path, Output(path, lines)) for record in records for path in record.outputs()]


def follow(records: Sequence[JobRecord], lines: int | None) -> int:
    """Prints until the jobs are gone from the queue; returns the exit status.

    Raises:
        UsageError: Slurm does not answer the first time, or many times in a row.
    """
    numbers = {record.number for record in records}
    outputs: dict[Path, Output] = {}
    last, asked, unanswered = None, time.monotonic() - QUEUE_SECONDS, UNANSWERED
    while True:
        gone = False
        if time.monotonic() - asked >= QUEUE_SECONDS:
            asked = time.monotonic()
            try:
                gone, unanswered = not numbers & {job.number for job in queue()}, 0
            except UsageError:
                unanswered += 1
                if unanswered > UNANSWERED:
                    raise
        for output in opened(records, outputs, lines):  # after the queue was asked, so that nothing is left
            last = output if output.show(output is not last) else last
        lines = None  # of outputs that begin from now on, every line is new
        if gone:
            jobs = f"{plural('job', len(numbers))} {' and '.join(sorted(numbers, key=int))}"
            print(f"ddrl: {jobs} {'has' if len(numbers) == 1 else 'have'} left the queue", file=sys.stderr)
            return 0
        time.sleep(READ_SECONDS)


def nothing_yet(directory: Path, records: Sequence[JobRecord]) -> str:
    """Why there is no output."""
    numbers = {record.number for record in records}
    for job in queue() if has_queue() else ():
        if job.number in numbers:
            return f"job {job.number} of {directory} is {job.state.lower()} ({job.reason}): it has printed nothing yet"
    number = records[-1].number
    return f"job {number} of {directory} has left the queue without any output; see `sacct -j {number}`"


def show_log(directory: Path, arguments: LogsArguments) -> int:
    """Prints what the ranks of a run without a job have written; returns the exit status.

    Raises:
        UsageError: they have written nothing, or --follow is given.
    """
    log = directory / rundir.LOG
    none = f"{directory}: no Slurm job has worked there"
    if not log.is_file():
        raise UsageError(f"{none}, and its ranks have written no {rundir.LOG}; name another run")
    if arguments.follow:
        raise UsageError(f"{none}; leave --follow out, or follow the output of its ranks with `tail -f {log}`")
    Output(log, arguments.lines).show(True)
    return 0


def _begin_of_last(path: Path, lines: int) -> int:
    """The byte at which the last `lines` lines of a file begin."""
    starts = collections.deque([0], maxlen=lines + 1)
    offset = 0
    with open_regular(path) as file:
        while data := file.read(CHUNK_BYTES):
            place = -1
            while (place := data.find(b"\n", place + 1)) >= 0:
                starts.append(offset + place + 1)
            offset += len(data)
    if starts[-1] < offset:
        starts.append(offset)
    return starts[0] if len(starts) > lines else 0
