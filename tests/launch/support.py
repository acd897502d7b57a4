"""What tests of launchers share."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cluster import launch as cluster_launch
from ddrl.checkpoint import Checkpoint
from ddrl.config import TrainConfig
from ddrl.launch.processes import stat_of
from ddrl.rundir import config_to_dict

TESTS = Path(__file__).parent
PATIENCE_SECONDS = 90.0
RANKS = 4
needs_mpirun = pytest.mark.skipif(cluster_launch.find_mpirun() is None, reason="no mpirun on this machine")


def command(behavior: str, path: Path, *more: str) -> list[str]:
    return [sys.executable, str(TESTS / "launch_fake.py"), behavior, str(path), *more]


def run_fake(behavior: str, path: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(behavior, path, *more), capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )


def wait_for(condition, what: str, seconds: float = PATIENCE_SECONDS) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"no {what} within {seconds} s"
        time.sleep(0.05)


def started(path: Path) -> bool:
    return len([file for file in path.glob("pid-[0-9]") if file.read_text()]) == RANKS


def alive(pid: int) -> bool:
    stat = stat_of(pid)
    return stat is not None and stat.state not in "ZX"


def assert_none_left(path: Path) -> None:
    pids = [int(file.read_text()) for file in path.glob("pid-*")]
    assert len(pids) >= RANKS
    assert [pid for pid in pids if alive(pid)] == []


class Terminal:
    """A program as the foreground process group of a terminal of its own."""

    def __init__(self, argv: list[str]):
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            os.execv(argv[0], argv)
        self.output = ""

    def control_c(self) -> None:
        os.write(self._master, b"\x03")

    def read(self) -> str:
        while select.select([self._master], [], [], 0)[0]:
            try:
                data = os.read(self._master, 4096)
            except OSError:  # the terminal's other side is closed
                break
            if not data:
                break
            self.output += data.decode(errors="replace")
        return self.output

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        status: list[int] = []

        def ended() -> bool:
            self.read()
            pid, code = os.waitpid(self.pid, os.WNOHANG)
            status.extend([code] if pid else [])
            return bool(status)

        try:
            wait_for(ended, "end of the launcher", seconds)
        finally:
            if not status:
                os.kill(self.pid, signal.SIGKILL)
        self.read()
        os.close(self._master)
        return os.waitstatus_to_exitcode(status[0])


def checkpoint(config: TrainConfig, wall_seconds: float) -> Checkpoint:
    """A small checkpoint of a run that has trained for so long."""
    of_run = config_to_dict(config)
    return Checkpoint(5, 5, 80, wall_seconds, np.zeros(1, np.float32), {}, 5, (("x", (1,)),), config=of_run)
