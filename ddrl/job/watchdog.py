"""No rank waits for ever: when what is due does not come, the job says who waits for what, and ends.

    role loop --note: what each role waits for--> Watchdog thread --after stall_seconds--> RUN/stalled
    every rank's thread sees RUN/stalled, and writes RUN/stacks-RANK.txt; the first one composes the message

The first line of a stacks file is a Report as JSON. A rank that writes none does not answer.
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

from ddrl.job.layout import JobContext
from ddrl.job.role import Role, Wait
from ddrl.rundir import RESULT, STALLED, write_json

LOOK_SECONDS = 0.5
LOOP_SECONDS = 60.0  # a round of the role loop: an evaluator compiles in it
ABSENT_SECONDS = 5.0  # this thread did not run for so long: the process was stopped, and its own clock says nothing
ANSWER_SECONDS = 4.0  # for the other ranks to write their stacks
FILES_SECONDS = 20.0  # after which a file system that does not answer is given up
LEAVE_SECONDS = 30.0  # for all ranks to meet at the end


class Report(NamedTuple):
    """What a rank says of itself when the job stands still.

    Attributes:
        rank, name: of the rank, such as 'worker 1 (rank 1)'.
        waits: for what; empty when it waits for nothing.
        peers: ranks that it waits for; none when it waits for itself.
        seconds: for how long.
    """

    rank: int
    name: str
    waits: str
    peers: tuple[int, ...]
    seconds: float


class Waits:
    """Since when this rank has been waiting for what. Pure bookkeeping; times are time.monotonic()."""

    def __init__(self, limit: float, start: float, now: float):
        self._limit = limit
        self._since: dict[Wait, float] = {}
        self._loop = Wait("its own start", (), start)
        self._noted = self._looked = now

    def note(self, waits: Iterable[Wait], now: float) -> None:
        """What the roles wait for now; whatever is not among it any more has come."""
        self._since = {wait: self._since.get(wait, now) for wait in waits}
        self._loop = Wait("its own loop", (), LOOP_SECONDS)
        self._noted = now

    def working(self, now: float) -> None:
        """The loop is in a round that takes long, and does not hang; what it waits for cannot come meanwhile."""
        spent = now - self._noted
        self._since = {wait: since + spent for wait, since in self._since.items()}
        self._noted = now

    def longest(self, now: float) -> tuple[Wait, float, float]:
        """The wait that is nearest to the end of its patience, its seconds, and how far it is beyond.

        Waits age as long as the loop tells of them: what a loop that hangs was waiting for may have come since. Call it
        regularly: the time of a process that was stopped does not count.
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

    It is one that is waited for and says nothing; else one that waits for itself; else one that waits for nobody.
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
    """The one message about a job that stands still: who is to blame, and who waits for it."""
    rank, silent = culprit(reports)
    waiting = [report for report in reports if rank in report.peers]
    witness = min(waiting, key=lambda report: (len(report.peers), report.rank), default=None)
    own = next((report for report in reports if report.rank == rank and report.waits), None)
    parts = [f"{name(rank)} does not answer"] if silent else []
    if own is not None:
        parts.append(f"{own.name} has waited {own.seconds:.0f} s for {_what(own, name)}")
    if witness is not None:
        parts.append(f"{witness.name} has waited {witness.seconds:.0f} s for {_what(witness, name)}")
    return "no progress: " + "; ".join(parts)


def _what(report: Report, name: Callable[[int], str]) -> str:
    return report.waits + (f" from {', '.join(map(name, report.peers))}" if report.peers else "")


class Watchdog:
    """The thread of a rank that sees the job stand still. Only the role loop calls `note`, `working` and
    `leaving`.

    It touches no file itself, as a file system that is lost may not answer: a second thread listens for the others.

    Args:
        rank: of this process.
        end: ends every rank of the job with an exit status; called in this thread.
        go: ends this process alone, where the others can do without it, unless it waits for what they need, too.
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
        """Starts the thread, which ends with the process."""
        self._stacks(self.rank).unlink(missing_ok=True)
        if self._limit:
            threading.Thread(target=self._run, name="watchdog", daemon=True).start()
            threading.Thread(target=self._listen, name="watchdog's files", daemon=True).start()

    def note(self, roles: Iterable[Role]) -> None:
        """The role loop is alive; call it in each round."""
        now = time.monotonic()
        if now < self._next_note:
            return
        self._next_note = now + LOOK_SECONDS
        waits = [wait for role in roles if (wait := role.waits()) is not None]
        with self._lock:
            self._waits.note(waits, now)

    def working(self) -> None:
        """The role loop is alive, in a round that takes long; call it again and again."""
        with self._lock:
            self._waits.working(time.monotonic())

    def leaving(self) -> None:
        """This rank is done; all that it waits for is that the others are, too."""
        self._leaving_since = time.monotonic()

    def left(self) -> None:
        """All ranks have met at the end: nothing is waited for any more."""
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
        """Whether another rank asks for stacks."""
        while self._request() in (None, self._stale):
            time.sleep(LOOK_SECONDS)
        self._called = True

    def _stalled(self, wait: Wait, seconds: float) -> None:
        """Writes this rank's stacks; the first one writes the message, and ends the job."""
        report = Report(self.rank, self.name, wait.what, wait.peers, seconds)
        if seconds < max(self._limit, wait.patience_seconds) / 2:
            report = report._replace(waits="", peers=())  # it works, and another rank stands still
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
        """Leaves the job, which goes on without this rank."""
        report = Report(self.rank, self.name, wait.what, wait.peers, seconds)
        files = threading.Thread(target=self._write_stacks, args=(report,), daemon=True)
        files.start()
        files.join(timeout=FILES_SECONDS)
        text = (
            f"{self.name} has waited {seconds:.0f} s for {_what(report, self.context.layout.name)}, and is leaving "
            "the job"
        )
        print(f"ddrl: {text} (stacks in {self._stacks(self.rank)})", file=sys.stderr, flush=True)
        go()

    def _write_stacks(self, report: Report) -> None:
        with contextlib.suppress(OSError), self._stacks(self.rank).open("w") as file:
            file.write(json.dumps(report._asdict()) + "\n")
            file.flush()
            faulthandler.dump_traceback(file=file, all_threads=True)

    def _report(self, report: Report) -> None:
        first = self._claim()
        self._write_stacks(report)
        time.sleep(ANSWER_SECONDS if first else 2 * ANSWER_SECONDS)  # the first one ends all
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
        """Asks all ranks for their stacks, unless another one has asked already."""
        try:
            os.close(os.open(self.context.run_dir / STALLED, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except OSError:
            return False
        return True

    def _request(self) -> tuple[int, int] | None:
        """Which request for stacks is there; one that was there at the start is none of this job's."""
        try:
            stat = (self.context.run_dir / STALLED).stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns

    def _stacks(self, rank: int) -> Path:
        return self.context.run_dir / f"stacks-{rank}.txt"


def read_reports(run_dir: Path, ranks: int) -> Iterable[Report]:
    """The reports of all ranks that wrote one. Those that a job of more ranks has left are of nobody in this one."""
    for path in sorted(run_dir.glob("stacks-*.txt")):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            content = json.loads(path.read_text().partition("\n")[0])
            report = Report(**content | {"peers": tuple(content["peers"])})
            if report.rank < ranks:
                yield report
