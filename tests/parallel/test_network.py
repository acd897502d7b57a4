"""A run on one machine takes no connections from others, and leaves no file of MPI's however it ends."""

from __future__ import annotations

import os
import signal
import time
from ipaddress import ip_address
from pathlib import Path

import pytest

from cluster import session
from cluster.loopback import listeners
from tests.parallel.support import CATCH, kill, marked, needs_mpirun
from tests.parallel.support import light_train as train

pytestmark = [needs_mpirun, pytest.mark.timeout(300)]
GONE_SECONDS = 30.0
LONG = (*CATCH, "--max-updates", "100000", "--no-evaluator")


def files_of(job) -> list[Path]:
    """Directories of mpirun's files of that job."""
    paths = {environment.get(session.SESSION_DIRECTORY) for environment in marked(job.mark).values()}
    return sorted(Path(path) for path in paths if path)


def test_nothing_listens_but_on_the_loopback(tmp_path):
    with train(tmp_path / "run", *LONG, "--workers", "2", "--parameter-servers", "1") as job:
        job.wait_for_update(5)
        ours = marked(job.mark)
        assert len(ours) >= 5, "launcher, mpirun, two workers and a server"
        reached = {address for address, owners in listeners().items() if set(owners) & set(ours)}
        assert reached, "mpirun listens somewhere"
        assert all(ip_address(address).is_loopback for address in reached), reached
        job.process.send_signal(signal.SIGINT)
        assert job.wait() == 0, job.output


def test_files_of_a_run_whose_processes_were_all_killed_are_swept(tmp_path, monkeypatch):
    with train(tmp_path / "run", *LONG) as job:
        job.wait_for_update(1)
        (left,) = [path for path in files_of(job) if path != Path(os.environ[session.SESSION_DIRECTORY])]
        job.process.send_signal(signal.SIGUSR1)  # which ends it at once, as a SIGKILL would
        assert job.wait() == -signal.SIGUSR1
        for pid in marked(job.mark):
            kill(pid)
    assert left.is_dir()
    end = time.monotonic() + GONE_SECONDS
    while left.exists():  # processes that were killed close their files when they get to it
        assert time.monotonic() < end, sorted(left.rglob("*"))
        session.sweep(str(left.parent))
        time.sleep(0.05)
