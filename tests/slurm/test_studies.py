"""A study as an array of a real Slurm: submitted, collected while it waits, and reported by a job when it has ended."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.slurm.conftest import QUICK, Job

pytestmark = pytest.mark.timeout(400)
OPTIONS = (
    "--quick", "--workers", "1", "2", "--games", "ddrl/Catch-v0", "Nowhere-v0", "--repeats", "1", "--minutes", "0",
    "--agent-steps", "3000",
)  # fmt: skip
SBATCH = "--hold --mem-per-cpu=1 --time=10"


@pytest.fixture
def study(slurm, tmp_path):
    """study(OPTION...) -> (exit status, what it said)."""

    def call(*options):
        command = [sys.executable, "-m", "ddrl.cli", "study", "scaling", "--dir", str(tmp_path / "scaling"), *options]
        environment = slurm.environment | QUICK
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path
        )
        return done.returncode, done.stdout + done.stderr

    return call


def test_a_study_of_scaling_as_an_array(slurm, study, tmp_path):
    status, said = study(*OPTIONS, "--submit", f"--sbatch-options={SBATCH}")
    assert status == 0, said
    array, report = re.findall(r"^job (\d+): ", said, re.MULTILINE)
    job = Job(slurm, report, tmp_path / "scaling" / f"report-{report}.out", tmp_path)
    assert job.show("Dependency").startswith(f"afterany:{array}_*")
    try:
        status, said = study("--collect")
        assert status == 2 and "no point has finished (not finished: 4 waiting)" in said
        status, said = study("--list")
        assert status == 0 and said.count("waiting") == 4
        slurm.run("scontrol", "release", array)
        assert job.wait() == ("COMPLETED", "0:0"), job.output
    finally:
        slurm.run("scancel", "--quiet", array, report)
    outputs = "\n".join(path.read_text() for path in (tmp_path / "scaling").glob("slurm-*.out"))
    said = job.output
    assert "failed: strong-nowhere-v0-2workers-seed1" in said and "failed: strong-nowhere-v0-1workers-seed1" in said
    results = json.loads((tmp_path / "scaling" / "results.json").read_text())
    rows = {row[2]: row for row in results["tables"][0]["rows"]}
    assert {workers: row[3:5] for workers, row in rows.items()} == {1: [0, 1], 2: [1, 3]}, outputs
    assert (tmp_path / "scaling" / "report.html").exists()
