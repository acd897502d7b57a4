"""A run under `ddrl train`: begun, resumed, followed, ended, and searched for what it left behind."""

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
from ddrl.placement.ranks import sizes_of
from ddrl.replay_files import check_replays, shard_directory, worker_directory

POLL_SECONDS = 0.05
GONE_SECONDS = 2.0  # after its launcher, nothing of a run is there any more
ROLES = {"parameter_server": "server", "replay_shard": "shard"}


class Run:
    """One run directory and whatever trains in it now.

    Attributes:
        path: of the run directory.
        lines: all records of metrics.jsonl.
        launcher: the running `ddrl train`, or None.
    """

    def __init__(self, system: System, directory: Path, name: str):
        self.system, self.path = system, directory / name
        self._output, self._temporary = directory / f"{name}.txt", directory / f"{name}.tmp"
        self._temporary.mkdir(exist_ok=True)
        self._records = rundir.JsonLines(self.path / rundir.METRICS)
        self.lines: list[dict[str, Any]] = []
        self.launcher: subprocess.Popen[bytes] | None = None
        self.mark, self._began, self._first = "", 0.0, 0
        self._newest = 0
        self._sessions: set[str] = set()
        self._roles: dict[int, str] = {}

    @property
    def kept(self) -> tuple[Path, ...]:
        """All that there is of it."""
        return self.path, self._output, self._temporary

    @property
    def pid(self) -> int:
        """Of the launcher, which has begun."""
        assert self.launcher is not None
        return self.launcher.pid

    def status(self) -> int | None:
        """With which the launcher has ended; None: it runs."""
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
        """Waits until updates beyond those of the newest checkpoint are made, and another checkpoint."""

        def trained() -> bool:
            since = self.lines[self._first :]
            return "checkpoint" in records.names(since) and records.trains(since, self._newest)

        return self.wait(trained, seconds)

    def wait(self, condition: Callable[[], object], seconds: float) -> bool:
        """Waits while the launcher runs, reading lines; whether the condition came true."""
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
        """Takes in the new records."""
        self.lines += self._records.read()

    def newest(self) -> int:
        """Version of the newest checkpoint."""
        return max(map(version_of, list_checkpoints(self.path)), default=0)

    def living(self) -> list[Process]:
        """Its processes, the launcher included."""
        living = processes.of_mark(self.mark)
        self._sessions |= _sessions(living)
        return living

    def victims(self, role: str) -> list[Process]:
        """Its living processes of a role: of a rank, a child, mpirun or the launcher."""
        living = self.living()
        if role == "launcher":
            return [process for process in living if process.pid == self.pid]
        if role == "all":
            return living
        if role in (processes.MPIRUN, "simulator"):
            return [process for process in living if process.what == role]
        return [process for process in living if process.what == RANK and self._role(process.rank) == role]

    def children(self, kind: str) -> list[Process]:
        """Its living children of a kind."""
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
        """Where a rank writes first when a checkpoint is made."""
        if role not in self.system.replays:
            return self.path / "checkpoints"
        same = sorted(rank for rank, name in self._roles.items() if name == role)
        if role == "shard":
            return shard_directory(self.path, same.index(victim.rank))
        return worker_directory(self.path, victim.rank)

    def wait_gone(self, end: float) -> int:
        """Waits until no process is left, or that time of the monotonic clock; how many are left."""
        while (left := self.living()) and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
        return len(left)

    def ask_to_end(self) -> None:
        """As a user would."""
        processes.send(self.pid, signal.SIGTERM)

    def destroy(self) -> int:
        """Kills whatever is there; how many that were."""
        killed = processes.kill_all(self.mark) if self.mark else 0
        if self.launcher is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.launcher.wait(timeout=10.0)
            self.launcher = None
        return killed

    def unsound(self) -> list[str]:
        """Checkpoints that cannot be resumed from, and why."""
        bad = []
        for path in list_checkpoints(self.path):
            try:
                check_replays(self.path, load(path))
            except UsageError as error:
                if path.exists():  # one that is gone was removed for a newer one
                    bad.append(str(error))
        return bad

    def files_left(self) -> list[str]:
        """What earlier starts left behind; everything, where nothing of the run lives.

        A start that was killed leaves files, which the next one sweeps: call this after it has saved a checkpoint.
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
    """Directories of Open MPI's files; the launcher may have been told of one that is not this run's."""
    return {process.session for process in living if process.session and process.what in (RANK, processes.MPIRUN)}


def _older(path: Path, moment: float) -> bool:
    try:
        return path.stat().st_mtime < moment
    except OSError:
        return False
