"""Runs the tests of mutants on copies of a working tree. The tree itself is only read."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.mutants.mutant import Applied, Mutant

PARTS = ("ddrl", "cluster", "slurm", "tests", "setup.cfg")
PYTEST = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--color=no")
PASSED, FAILED, BROKEN = 0, 1, 2  # exit statuses of pytest; broken: also where a file cannot be imported
POLL_SECONDS = 0.1

_FINDING = re.compile(r"^(?:FAILED|ERROR) (\S+?)(?:\[.*)?(?: - .*)?$", re.MULTILINE)


class Outcome(NamedTuple):
    """What became of a mutant.

    Attributes:
        name: of the mutant.
        caught: whether a test noticed it.
        words: which test did, or what else happened.
        seconds: that its tests took.
    """

    name: str
    caught: bool
    words: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.name:<44} {self.words} ({self.seconds:.1f} s)"


class Stopped(Exception):
    """The runner was told to end."""


class Runner:
    """Copies of a tree, one for each job, and the processes that test in them.

    They are made when it is entered as a context; leaving that ends the processes and removes the copies.

    Args:
        root: of the tree.
        parts: files and folders to copy, from the root.
        jobs: copies, and so tests at once.
        limit_seconds: for the tests of one mutant; longer counts as caught.
    """

    def __init__(self, root: Path, parts: Sequence[str] = PARTS, *, jobs: int = 1, limit_seconds: float = 300.0):
        self.limit_seconds, self._jobs = limit_seconds, jobs
        self._stopped, self._lock = threading.Event(), threading.Lock()
        self._running: set[subprocess.Popen] = set()
        self._root, self._parts = root, parts

    def __enter__(self) -> Runner:
        self._directory = Path(tempfile.mkdtemp(prefix="ddrl-mutants-"))
        self._first = self._directory / "0"
        try:
            self._first.mkdir()
            for part in self._parts:
                _copy(self._root / part, self._first / part)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def stop(self) -> None:
        """Ends all processes; whoever waits for one gets `Stopped`."""
        self._stopped.set()
        with self._lock:
            for process in self._running:
                _kill(process)

    def unchanged(self, mutants: Sequence[Mutant]) -> str:
        """Runs the tests of all mutants once without any; what pytest said where they do not pass, else nothing.

        There is no limit of time: whoever starts it sees how long it takes.
        """
        tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
        whole = {test for test in tests if "::" not in test}
        tests = [test for test in tests if test in whole or test.partition("::")[0] not in whole]
        missing = [test for test in tests if not (self._first / test.partition("::")[0]).exists()]
        if missing:
            return f"there is no {', '.join(missing)}"
        status, output = self._pytest(self._first, tests, None, compiled=True)
        return "" if status == PASSED else output

    def run(self, mutants: Sequence[Mutant], tell: Callable[[Outcome], None] = lambda outcome: None) -> list[Outcome]:
        """Tests each mutant.

        Args:
            tell: is called with each outcome as soon as it is there.

        Returns:
            the outcomes in the order of the mutants.
        """
        copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for copy in self._copies():
            copies.put(copy)

        def one(mutant: Mutant) -> Outcome:
            copy = copies.get()
            try:
                outcome = self._test(mutant, copy)
            finally:
                copies.put(copy)
            with self._lock:
                tell(outcome)
            return outcome

        with ThreadPoolExecutor(self._jobs) as pool:
            try:
                return list(pool.map(one, mutants))
            except BaseException:
                self.stop()
                pool.shutdown(cancel_futures=True)
                raise

    def _copies(self) -> Iterator[Path]:
        """The first copy, and copies of it with what Python has compiled there."""
        yield self._first
        for number in range(1, self._jobs):
            _copy(self._first, self._directory / str(number), ignore=())
            yield self._directory / str(number)

    def _test(self, mutant: Mutant, copy: Path) -> Outcome:
        begin = time.monotonic()
        with Applied(mutant, copy):
            status, output = self._pytest(copy, mutant.tests, self.limit_seconds, compiled=False)
        return Outcome(mutant.name, *_verdict(status, output), time.monotonic() - begin)

    def _pytest(self, copy: Path, tests: Sequence[str], limit: float | None, compiled: bool) -> tuple[int | None, str]:
        """Exit status, None where it took too long, and output.

        Args:
            compiled: whether Python keeps what it compiles. It must not do so of a mutant: it knows a file by its
                size and by the second of its change, which the next mutant may have in common with this one.
        """
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV_"))}
        environment |= {"PYTHONPATH": str(copy)} | ({} if compiled else {"PYTHONDONTWRITEBYTECODE": "1"})
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            with self._lock:
                if self._stopped.is_set():
                    raise Stopped
                process = subprocess.Popen(
                    [sys.executable, *PYTEST, *tests],
                    cwd=copy,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                self._running.add(process)
            try:
                status = self._wait(process, limit)
            finally:
                with self._lock:
                    _kill(process)
                    self._running.discard(process)
            output.seek(0)
            return status, output.read()

    def _wait(self, process: subprocess.Popen, limit: float | None) -> int | None:
        """Waits in pieces, so that the thread that Ctrl-C interrupts is told soon."""
        end = None if limit is None else time.monotonic() + limit
        while end is None or time.monotonic() < end:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(POLL_SECONDS)
                if self._stopped.is_set():
                    raise Stopped
                return status
        return None


def _verdict(status: int | None, output: str) -> tuple[bool, str]:
    """Whether a mutant was caught, and the words for it."""
    if status is None:
        return True, "caught: the tests did not end in time"
    found = _FINDING.findall(output)  # pytest's summary comes last
    if status in (FAILED, BROKEN) and found:
        return True, f"caught by {found[-1]}"
    if status < 0:
        return True, f"caught: the tests died of {signal.Signals(-status).name}"
    return (
        False,
        "SURVIVED" if status == PASSED else f"SURVIVED: pytest could not run the tests (its status is {status})",
    )


def _kill(process: subprocess.Popen) -> None:
    """Ends a process that is not over and all that it started; it leads a session of its own."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _copy(source: Path, target: Path, ignore: Sequence[str] = ("__pycache__", "*.pyc")) -> None:
    """A file or a folder, with the times of their changes."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(*ignore))
    else:
        shutil.copy2(source, target)
