"""A search as an array of a real Slurm: its tasks share the journal, and the last one writes the report."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ddrl.tuning import plan as plans
from ddrl.tuning.journal import open_study
from tests.slurm.conftest import QUICK, Job

pytest.importorskip("optuna")
pytestmark = pytest.mark.timeout(400)
OPTIONS = (
    "--preset", "smoke", "--minutes", "0", "--agent-steps", "3000", "--workers", "1", "--parameter-servers", "0",
    "--trials", "2", "--space", "adam-epsilon=log(1e-9,1e-2)", "batch-size=choice(64,128)",
)  # fmt: skip


def test_a_search_as_an_array(slurm, tmp_path):
    search = tmp_path / "search"
    command = [sys.executable, "-m", "ddrl.cli", "tune", "ba3c", "--dir", str(search), *OPTIONS]
    done = subprocess.run(
        [*command, "--submit", "--sbatch-options=--mem-per-cpu=1 --time=10"],
        env=slurm.environment | QUICK,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    job = Job(slurm, done.stdout.split("job ")[1].split(":")[0], tmp_path / "none", tmp_path)
    try:
        job.wait_for(lambda: job.number not in slurm.run("squeue", "-h", "-o", "%F").split(), "end")
    finally:
        slurm.run("scancel", "--quiet", job.number)
    outputs = "\n".join(path.read_text() for path in search.glob("slurm-*.out"))
    plan = plans.load(search)
    assert plan is not None
    trials = open_study(plan).get_trials()
    assert [trial.state.name for trial in trials] == ["COMPLETE", "COMPLETE"], outputs
    assert trials[0].params != trials[1].params
    assert (search / "report.html").exists() and (search / "best.yaml").exists(), outputs
