"""The watchdog, which ends a job that makes no progress, with a message that says which rank waits for what.

    role loop --note: what each role waits for--> Watchdog thread --after stall_seconds--> RUN/stalled
    every rank's thread sees RUN/stalled, and writes RUN/stacks-RANK.txt; the first one composes the message

The first line of a stacks file is a Report as JSON. A rank that writes no such file does not answer.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ddrl.files import new_file, read_regular
from ddrl.job.layout import JobContext
from ddrl.job.role import Role, Wait
from ddrl.rundir import RESULT, STALLED, write_json

LOOK_SECONDS = 0.5  # between two checks
LOOP_SECONDS = 60.0  # patience with one round of the role loop, in which an evaluator compiles
ABSENT_SECONDS = 5.0  # if this thread has not run for so long, the process was stopped, and that time does not count
ANSWER_SECONDS = 4.0  # time for the other ranks to write their stacks
FILES_SECONDS = 20.0  # how long to wait for a file system that does not answer
LEAVE_SECONDS = 30.0  # time for all ranks to meet at the end


class Report(NamedTuple):
    """What a rank reports about itself when the job stands still.

    Attributes:
        rank: the rank.
        name: its name, such as 'worker 1 (rank 1)'.
        waits: what it waits for; empty if it waits for nothing.
        peers: the ranks that it waits for; empty if it waits for itself.
        seconds: how long it has waited.
    """

    rank: int
    name: str
    waits: str
    peers: tuple[int, ...]
    seconds: float


class Waits:
    """Keeps account of what this rank waits for, and since when. All times are time.monotonic().

    Args:
        limit: seconds after which a wait is too long, unless it has more patience of its own.
        start: the same for the rank's own start.
        now: the time now.
    """

    def __init__(self, limit: float, start: float, now: float):
        self._limit = limit
        self._since: dict[Wait, float] = {}
        self._loop = Wait("its own start", (), start)
        self._noted = self._looked = now

    def note(self, waits: Iterable[Wait], now: float) -> None:
        """Takes what the roles wait for now; a wait that is no longer among them is over."""
        self._since = {wait: self._since.get(wait, now) for wait in waits}
        self._loop = Wait("its own loop", (), LOOP_SECONDS)
        self._noted = now

    def working(self, now: float) -> None:
        """Notes that the loop is in a long round and does not hang. Waits do not age in it, as nothing can arrive."""
        spent = now - self._noted
        self._since = {wait: since + spent for wait, since in self._since.items()}
        self._noted = now

    def longest(self, now: float) -> tuple[Wait, float, float]:
        """The wait that is nearest to the end of its patience, or furthest beyond.

        A wait ages only up to the loop's last note of it, since what a hanging loop was waiting for may have come
        meanwhile. This has to be called regularly: a long pause between two calls is taken for a process that was
        stopped, and does not count.

        Returns:
            the wait, its age in seconds, and by how many seconds that is more than its patience.
        """
        absent = now - self._looked
        self._looked = now
        if absent > ABSENT_SECONDS:
            self._since = {wait: since + absent for wait, since in self._since.items()}
            self._noted += absent
        ages = [(wait, self._noted - since) for wait, since in self._since.items()] + [(self._loop, now - self._noted)]
        return max(
            ((wait, age, age - max(self._limit, wait.patience_seconds)) for wait, age in ages), key=lambda item: item[2]
        )


def culprit(reports: Sequence[Report]) -> tuple[int, bool]:
    """The rank that holds the others up, and whether it is silent.

    It is a rank that others wait for and that has sent no report; else one that waits for itself; else one that others
    wait for and that waits for nothing; else any that others wait for.
    """
    by_rank = {report.rank: report for report in reports}
    waited = sorted({peer for report in reports for peer in report.peers})
    silent = [rank for rank in waited if rank not in by_rank]
    if silent:
        return silent[0], True
    alone = [report.rank for report in reports if report.waits and not report.peers]
    idle = [rank for rank in waited if not by_rank[rank].waits]
    return (alone + idle + waited)[0], False


def explain(reports: Sequence[Report], name: Callable[[int], str]) -> str:
    """The message about a job that stands still: which rank holds it up, and which rank waits for that one."""
    rank, silent = culprit(reports)
    waiting = [report for report in reports if rank in report.peers]
    witness = min(waiting, key=lambda report: (len(report.peers), report.rank), default=None)
    own = next((report for report in reports if report.rank == rank and report.waits), None)
    parts = [f"{name(rank)} does not answer"] if silent else []
    if own is not None:
        parts.append(f"{own.name} has waited {own.seconds:.0f} s for {_what(own, name)}")
    if witness is not None:
        parts.append(f"{witness.name} has waited {witness.seconds:.0f} s for {_what(witness, name)}")
    if own is None and not silent:
        parts.append(f"{name(rank)} went on meanwhile: if it is only slow, raise --stall-seconds")
    return "no progress: " + "; ".join(parts)


def _what(report: Report, name: Callable[[int], str]) -> str:
    return report.waits + (f" from {', '.join(map(name, report.peers))}" if report.peers else "")


class Watchdog:
    """A thread of each rank that notices when the job stands still.

    Only the role loop calls `note`, `working` and `leaving`. The thread accesses no file itself, because a lost file
    system may not answer: a second thread watches for RUN/stalled.

    Args:
        rank: rank of this process.
        end: ends every rank of the job with an exit status; called in the watchdog's thread.
        go: ends only this process, if the job can do without it; None if it cannot. It is not called for an essential
            wait, which the others cannot do without, either.
    """

    def __init__(
        self, context: JobContext, rank: int, end: Callable[[int], object], go: Callable[[], object] | None = None
    ):
        self.context, self.rank = context, rank
        self.name = context.layout.name(rank)
        self._end, self._go, self._limit = end, go, context.config.run.stall_seconds
        self._waits = Waits(self._limit, context.config.run.start_seconds, time.monotonic())
        self._lock = threading.Lock()
        self._next_note = 0.0
        self._leaving_since: float | None = None
        self._stale, self._called = self._request(), False

    def start(self) -> None:
        """Starts the threads, which end with the process."""
        self._stacks().unlink(missing_ok=True)
        if self._limit:
            threading.Thread(target=self._run, name="watchdog", daemon=True).start()
            threading.Thread(target=self._listen, name="watchdog's files", daemon=True).start()

    def note(self, roles: Iterable[Role]) -> None:
        """Notes that the role loop is alive, and what its roles wait for; to be called in each round."""
        now = time.monotonic()
        if now < self._next_note:
            return
        self._next_note = now + LOOK_SECONDS
        waits = [wait for role in roles if (wait := role.waits()) is not None]
        with self._lock:
            self._waits.note(waits, now)

    def working(self) -> None:
        """Notes that the role loop is alive in a long round; to be called repeatedly during it."""
        with self._lock:
            self._waits.working(time.monotonic())

    def leaving(self) -> None:
        """Notes that this rank is done, and only waits for the others to be done, too."""
        self._leaving_since = time.monotonic()

    def left(self) -> None:
        """Notes that all ranks have met at the end, so that this rank waits for nothing any more."""
        self._leaving_since = math.inf

    def _run(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            now = time.monotonic()
            if self._leaving_since is not None:
                if now - self._leaving_since > LEAVE_SECONDS:
                    print(f"{self.name}: not all ranks left within {LEAVE_SECONDS:g} s", file=sys.stderr, flush=True)
                    self._end(1)
                continue
            with self._lock:
                wait, seconds, beyond = self._waits.longest(now)
            if beyond > 0 and self._go is not None and not self._called and not wait.essential:
                self._withdraw(self._go, wait, seconds)
            elif beyond > 0 or self._called:
                self._stalled(wait, seconds)

    def _listen(self) -> None:
        """Waits until a rank asks for stacks, and notes that; runs in the second thread."""
        while self._request() in (None, self._stale):
            time.sleep(LOOK_SECONDS)
        self._called = True

    def _stalled(self, wait: Wait, seconds: float) -> None:
        """Writes this rank's stacks, and ends the job. The first rank to do so also writes the message."""
        report = Report(self.rank, self.name, wait.what, wait.peers, seconds)
        if seconds < max(self._limit, wait.patience_seconds) / 2:
            report = report._replace(waits="", peers=())  # this rank works, and another one stands still
        files = threading.Thread(target=self._report, args=(report,), daemon=True)
        files.start()
        files.join(timeout=FILES_SECONDS)
        if files.is_alive():
            text = (
                f"no progress: {report.name} has waited {seconds:.0f} s for {_what(report, self.context.layout.name)}"
            )
            print(f"{text}, and the run directory does not answer either", file=sys.stderr, flush=True)
        self._end(1)

    def _withdraw(self, go: Callable[[], object], wait: Wait, seconds: float) -> None:
        """Writes this rank's stacks, and leaves the job, which continues without this rank."""
        report = Report(self.rank, self.name, wait.what, wait.peers, seconds)
        files = threading.Thread(target=self._write_stacks, args=(report,), daemon=True)
        files.start()
        files.join(timeout=FILES_SECONDS)
        text = (
            f"{self.name} has waited {seconds:.0f} s for {_what(report, self.context.layout.name)}, and is leaving "
            "the job"
        )
        print(f"ddrl: {text} (stacks in {self._stacks()})", file=sys.stderr, flush=True)
        go()

    def _write_stacks(self, report: Report) -> None:
        with contextlib.suppress(OSError), open(new_file(self._stacks()), "w") as file:
            file.write(json.dumps(report._asdict()) + "\n")
            file.flush()
            faulthandler.dump_traceback(file=file, all_threads=True)

    def _report(self, report: Report) -> None:
        first = self._claim()
        self._write_stacks(report)
        time.sleep(ANSWER_SECONDS if first else 2 * ANSWER_SECONDS)  # the first rank has to end the job
        if first:
            self._say([*read_reports(self.context.run_dir, self.context.layout.size)] or [report])

    def _say(self, reports: Sequence[Report]) -> None:
        message = f"{explain(reports, self.context.layout.name)} (stacks in {self.context.run_dir}/stacks-*.txt)"
        path = self.context.run_dir
        with contextlib.suppress(OSError):
            if not (path / RESULT).exists():
                write_json(path / RESULT, {"status": "failed", "message": message})
        with contextlib.suppress(OSError):
            (path / STALLED).unlink(missing_ok=True)
        print(f"ddrl: {message}", file=sys.stderr, flush=True)

    def _claim(self) -> bool:
        """Asks all ranks for their stacks; returns False if another rank has asked already."""
        try:
            os.close(os.open(self.context.run_dir / STALLED, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except OSError:
            return False
        return True

    def _request(self) -> tuple[int, int] | None:
        """Identifies the request for stacks, the file RUN/stalled, if there is one.

        So a request that was there at the start, which is not of this job, can be told from a new one.
        """
        try:
            stat = (self.context.run_dir / STALLED).stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns

    def _stacks(self) -> Path:
        return self.context.run_dir / f"stacks-{self.rank}.txt"


def read_reports(run_dir: Path, ranks: int) -> Iterable[Report]:
    """The reports of all ranks that wrote one, without those that an earlier job of more ranks has left there."""
    for path in sorted(run_dir.glob("stacks-*.txt")):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            content = json.loads(read_regular(path).partition(b"\n")[0])
            report = Report(**content | {"peers": tuple(content["peers"])})
            if report.rank < ranks:
                yield report
