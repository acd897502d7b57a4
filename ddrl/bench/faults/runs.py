"""Starts, resumes, follows and ends a run of `ddrl train`, and searches for what it left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster.roles import assign_roles
from ddrl import rundir
from ddrl.bench.faults import processes, records
from ddrl.bench.faults.draws import COMMON, System
from ddrl.bench.faults.processes import RANK, Process
from ddrl.bench.runs import start_train
from ddrl.checkpoint import list_checkpoints, load, version_of
from ddrl.errors import UsageError
from ddrl.exchange.central_store.file import store_path
from ddrl.json_lines import JsonLines
from ddrl.placement.ranks import sizes_of
from ddrl.replay_files import check_replays, shard_directory, worker_directory

POLL_SECONDS = 0.05
GONE_SECONDS = 2.0  # after the launcher's end, all processes of the run must be gone
ROLES = {"parameter_server": "server", "replay_shard": "shard"}


class Run:
    """One run directory, and the processes that train in it now.

    Attributes:
        path: the run directory.
        lines: all records of metrics.jsonl that were read so far.
        launcher: the running `ddrl train`, or None.
    """

    def __init__(self, system: System, directory: Path, name: str):
        self.system, self.path = system, directory / name
        self._output, self._temporary = directory / f"{name}.txt", directory / f"{name}.tmp"
        self._temporary.mkdir(exist_ok=True)
        self._records = JsonLines(self.path / rundir.METRICS)
        self.lines: list[dict[str, Any]] = []
        self.launcher: subprocess.Popen[bytes] | None = None
        self.mark, self._began, self._first = "", 0.0, 0
        self._newest = 0
        self._sessions: set[str] = set()
        self._roles: dict[int, str] = {}

    @property
    def kept(self) -> tuple[Path, ...]:
        """All files and directories of the run: the run directory, its output, and its temporary files."""
        return self.path, self._output, self._temporary

    @property
    def pid(self) -> int:
        """The process ID of the launcher, which must have been started."""
        assert self.launcher is not None
        return self.launcher.pid

    def status(self) -> int | None:
        """The exit status of the launcher; None while it runs."""
        assert self.launcher is not None
        return self.launcher.poll()

    def begin(self) -> None:
        """Starts the launcher, for a new run or to resume it."""
        resume = bool(list_checkpoints(self.path))
        what = ["--resume", str(self.path)] if resume else [*self.system.arguments, "--run-dir", str(self.path)]
        self.mark, self._began = uuid.uuid4().hex, time.time()
        own = {processes.MARK: self.mark, "TMPDIR": str(self._temporary), "TF_CPP_MIN_LOG_LEVEL": "3"}
        self.read()
        self._first, self._newest = len(self.lines), self.newest()
        self.launcher = start_train([*what, *COMMON], self._output, **own)

    def wait_until_trained(self, seconds: float) -> bool:
        """Waits until the run trains beyond the checkpoint it started from and has saved another; whether it did."""

        def trained() -> bool:
            since = self.lines[self._first :]
            return "checkpoint" in records.names(since) and records.trains(since, self._newest)

        return self.wait(seconds, trained)

    def wait(self, seconds: float, condition: Callable[[], object] = lambda: False) -> bool:
        """Reads new records until the condition is true, the launcher ends or the time is over; whether it was true."""
        end = time.monotonic() + seconds
        while True:
            ended = self.status() is not None
            self.read()
            if condition():
                return True
            if ended or time.monotonic() > end:
                return False
            time.sleep(POLL_SECONDS)

    def read(self) -> None:
        """Appends the new records of metrics.jsonl to `lines`."""
        self.lines += self._records.read()

    def newest(self) -> int:
        """The version of the newest checkpoint; 0 if there is none."""
        return max(map(version_of, list_checkpoints(self.path)), default=0)

    def living(self) -> list[Process]:
        """The living processes of the run, including the launcher."""
        living = processes.of_mark(self.mark)
        self._sessions |= _sessions(living)
        return living

    def victims(self, role: str) -> list[Process]:
        """The living processes of a role: that of a rank, "mpirun", "launcher", or "all" processes."""
        living = self.living()
        if role == "launcher":
            return [process for process in living if process.pid == self.pid]
        if role == "all":
            return living
        if role == processes.MPIRUN:
            return [process for process in living if process.what == role]
        return [process for process in living if process.what == RANK and self._role(process.rank) == role]

    def children(self, kind: str) -> list[Process]:
        """The living child processes of a kind ("actor" or "simulator")."""
        return [process for process in self.living() if process.what == kind]

    def _role(self, rank: int) -> str:
        if not self._roles:
            sizes = sizes_of(rundir.load_config(self.path))
            if self.system.single:
                return "chief"
            assignments = assign_roles(sizes)
            self._roles = {a.rank: "chief" if a.is_chief else ROLES.get(a.role, a.role) for a in assignments}
        return self._roles.get(rank, "")

    def saves_in(self, victim: Process, role: str) -> Path:
        """The directory into which a rank first writes when a checkpoint is saved."""
        if role not in self.system.replays:
            return self.path / "checkpoints"
        same = sorted(rank for rank, name in self._roles.items() if name == role)
        if role == "shard":
            return shard_directory(self.path, same.index(victim.rank))
        return worker_directory(self.path, victim.rank)

    def wait_gone(self, end: float) -> int:
        """Waits until no process is left, or until `end` of the monotonic clock; returns how many are left."""
        while (left := self.living()) and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
        return len(left)

    def ask_to_end(self) -> None:
        """Asks the run to end as a user would, by SIGTERM to the launcher."""
        processes.send(self.pid, signal.SIGTERM)

    def destroy(self) -> None:
        """Kills all processes of the run."""
        if self.mark:
            processes.kill_all(self.mark)
        if self.launcher is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.launcher.wait(timeout=10.0)
            self.launcher = None

    def unsound(self) -> list[str]:
        """For each checkpoint that cannot be resumed from, the error that says why."""
        bad = []
        for path in list_checkpoints(self.path):
            try:
                check_replays(self.path, load(path))
            except UsageError as error:
                if path.exists():  # else it was removed in favor of a newer one
                    bad.append(str(error))
        return bad

    def files_left(self) -> list[str]:
        """Files that earlier starts left behind; if the run has ended, all of its temporary files and its store.

        A killed start leaves files that the next start removes: call this after that has saved a checkpoint.
        """
        living = self.launcher is not None and self.status() is None
        before = self._began if living else time.time() + 1.0
        current = _sessions(self.living())
        candidates = [*self.path.rglob("*.tmp"), *self._temporary.iterdir()]
        left = [path for path in candidates if _older(path, before)]
        left += [Path(path) for path in self._sessions - current if os.path.exists(path)]
        if not living and store_path(self.path).exists():
            left.append(store_path(self.path))
        return sorted(str(path) for path in left)


def _sessions(living: list[Process]) -> set[str]:
    """The directories of Open MPI's files of ranks and mpirun; the launcher's may belong to another run."""
    return {process.session for process in living if process.session and process.what in (RANK, processes.MPIRUN)}


def _older(path: Path, moment: float) -> bool:
    try:
        return path.stat().st_mtime < moment
    except OSError:
        return False
