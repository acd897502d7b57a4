"""`ddrl doctor` as the three ranks of a real job: whole, and with a fault on the last one."""

from __future__ import annotations

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


def start(directory: Path, fault: str, *arguments: str) -> Job:
    argv = [sys.executable, str(PROGRAM), fault, *SIZES, *arguments]
    environment = rank_environment(os.geteuid() == 0) | {"PYTHONPATH": str(PROGRAM.parent.parent.parent)}
    # With ULFM mpirun leaves behind a rank that never spoke to MPI, and may say 0 of a job that was aborted.
    ulfm = fault not in ("absent", "frozen")
    return Job(mpirun_command(3, argv, ulfm, inspect_mpirun(find_mpirun())), directory / "none", environment)


def findings(directory: Path, fault: str, status: int, *arguments: str) -> list[dict]:
    """What the doctor found that is not fine."""
    report = directory / "report.json"
    argv = ("--run-dir", str(directory / "run"), "--json", str(report), *arguments)
    with start(directory, fault, *argv) as job:
        assert job.wait(100.0) == status, job.output
    assert sorted(path.name for path in directory.iterdir() if path.name.startswith(".ddrl")) == []
    told = json.loads(report.read_text())
    assert told["status"] == status
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
    said = findings(tmp_path, "other", 1)
    assert {finding["check"] for finding in said} == {"versions", "clocks"}
    assert all(" 9.9 on fake2 (rank 2)" in finding["found"] for finding in said if finding["check"] == "versions")
    assert said[-1]["found"] == "fake2 is 7.0 s ahead of fake0"


@needs_mpirun
@pytest.mark.parametrize(
    "fault, found",
    [
        ("absent", "no sign of rank 2 within 5 s; ranks that came: 0 on "),
        ("frozen", " did not answer within 20 s (awaited: what it sees of its machine)"),
        ("no MPI", "MPI cannot be loaded"),
    ],
)
def test_a_rank_that_does_not_come_is_named(tmp_path, fault, found):
    said = findings(tmp_path, fault, 1, "--timeout", {"absent": "5", "frozen": "20"}.get(fault, "60"))
    assert [finding["check"] for finding in said] == ["start"]
    assert found in said[0]["found"] and "rank 2" in said[0]["found"]


@needs_mpirun
def test_bad_input_is_refused_once(tmp_path):
    with start(tmp_path, "none", "--timeout", "0") as job:
        assert job.wait(60.0) == 2, job.output
    assert job.output.count("ddrl: --timeout 0.0: must be a finite number above 0") == 1
