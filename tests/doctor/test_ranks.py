"""`ddrl doctor` as the three ranks of a real job: whole, and with a fault on the last one."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

import pytest

from cluster.launch import find_mpirun, inspect_mpirun, mpirun_command, rank_environment
from tests.parallel.support import Job, needs_mpirun

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).with_name("ranks_faulty.py")
SIZES = ("--workers", "1", "--parameter-servers", "1")
REPORT = "report.json"
LATE = {
    "absent": ("15", "no sign of rank 2 within 15 s; ranks that came: 0 on "),
    "frozen": ("20", " did not answer within 20 s (awaited: what it sees of its machine)"),
    "no MPI": ("60", "MPI cannot be loaded"),
}
"""Fault of a rank that does not come -> the doctor's --timeout, and what it finds."""


def start(directory: Path, fault: str, *arguments: str) -> Job:
    argv = [sys.executable, str(PROGRAM), fault, *SIZES, *arguments]
    environment = rank_environment(os.geteuid() == 0) | {"PYTHONPATH": str(PROGRAM.parent.parent.parent)}
    # With ULFM mpirun leaves behind a rank that never spoke to MPI, and may say 0 of a job that was aborted.
    ulfm = fault not in ("absent", "frozen")
    return Job(mpirun_command(3, argv, ulfm, inspect_mpirun(find_mpirun())), directory / "none", environment)


def examine(directory: Path, fault: str, *arguments: str) -> Job:
    """A doctor that writes its report."""
    return start(directory, fault, "--run-dir", str(directory / "run"), "--json", str(directory / REPORT), *arguments)


def findings(directory: Path) -> list[dict]:
    """What the doctor found that is not fine; one that has ended with status 1."""
    assert sorted(path.name for path in directory.iterdir() if path.name.startswith(".ddrl")) == []
    told = json.loads((directory / REPORT).read_text())
    assert told["status"] == 1
    return [finding for finding in told["findings"] if finding["level"] != "fine" and finding["check"] != "network"]


@needs_mpirun
def test_a_sound_job_prints_one_table(tmp_path):
    with start(tmp_path, "none", "--run-dir", str(tmp_path / "run")) as job:
        assert job.wait(100.0) == 0, job.output
    assert job.output.count("fine     ranks          3 on 3 nodes: fake0 0, fake1 1, fake2 2; 1 worker +") == 1
    for line in ("fine     run directory  ", "fine     clocks         within", "ready to train: 0 problems"):
        assert job.output.count(line) == 1, job.output
    assert " network        " in job.output, "measured; what a busy machine makes of it is no matter"
    assert list(tmp_path.glob(".ddrl*")) == []


@needs_mpirun
def test_a_rank_that_differs_is_named(tmp_path):
    with examine(tmp_path, "other") as job:
        assert job.wait(100.0) == 1, job.output
    said = findings(tmp_path)
    assert {finding["check"] for finding in said} == {"versions", "clocks"}
    assert all(" 9.9 on fake2 (rank 2)" in finding["found"] for finding in said if finding["check"] == "versions")
    assert said[-1]["found"] == "fake2 is 7.0 s ahead of fake0"


@pytest.fixture(scope="module")
def late(tmp_path_factory):
    """Fault of a rank that does not come -> directory of the report. All at once, as each waits more than it works."""
    directories = {fault: tmp_path_factory.mktemp(fault.replace(" ", "-")) for fault in LATE}
    with contextlib.ExitStack() as stack:
        jobs = [
            stack.enter_context(examine(directories[fault], fault, "--timeout", seconds))
            for fault, (seconds, _) in LATE.items()
        ]
        for job in jobs:
            assert job.wait(100.0) == 1, job.output
    return directories


@needs_mpirun
@pytest.mark.parametrize("fault", LATE)
def test_a_rank_that_does_not_come_is_named(late, fault):
    said = findings(late[fault])
    assert [finding["check"] for finding in said] == ["start"]
    assert LATE[fault][1] in said[0]["found"] and "rank 2" in said[0]["found"]


@needs_mpirun
def test_bad_input_is_refused_once(tmp_path):
    with start(tmp_path, "none", "--timeout", "0") as job:
        assert job.wait(60.0) == 2, job.output
    assert job.output.count("ddrl: --timeout 0.0: must be a finite number above 0") == 1
