"""`ddrl submit`, `ddrl status` and `ddrl logs` against a real Slurm, and sbatch with options from another directory."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddrl import rundir
from ddrl.slurm.site import EXAMPLE
from tests.parallel.support import events, newest, result
from tests.slurm.conftest import LIGHT, QUICK, ROOT, VENV, Job

pytestmark = pytest.mark.timeout(400)
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
HOSTILE = "runs/$(touch owned); \"#'%j é"
SMALL = "--sbatch-options=--mem-per-cpu=1"
TRAIN = (
    "ba3c", "--preset", "smoke", "--no-evaluator", "--parameter-servers", "1", "--minutes", "0",
    "--checkpoint-every-updates", "20",
)  # fmt: skip


@pytest.fixture
def ddrl(slurm, tmp_path) -> Callable[..., str]:
    """ddrl(WORD..., status=0) -> what it printed on both streams."""

    def call(*words, status=0):
        done = subprocess.run(
            [sys.executable, "-m", "ddrl.cli", *words],
            env=slurm.environment | QUICK | AS_ROOT | {"HOME": str(tmp_path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        said = done.stdout + done.stderr
        assert done.returncode == status, said
        return said

    return call


def test_a_run_is_submitted_watched_and_followed_to_its_end(ddrl, slurm, tmp_path):
    """Whatever its directory is called."""
    size = ("--nodes", "2", "--ranks-per-node", "2", "--time", "10")
    updates = ("--max-updates", "450")  # in which `ddrl status` starts on a busy machine, too
    said = ddrl("submit", "train", *TRAIN, *updates, *size, "--run-dir", HOSTILE, SMALL)
    run = tmp_path / HOSTILE
    number = re.search(r"job (\d+): ba3c on ddrl/Catch-v0, 4 ranks: 3 workers", said)[1]
    job = Job(slurm, number, run / f"slurm-{number}.out", run.parent)
    try:
        again = ddrl("submit", "train", *TRAIN, "--run-dir", HOSTILE, SMALL, status=2)
        assert f"job {number} of " in again and "wait until it ends" in again
        job.wait_for(lambda: run.exists() and events(run, "started"), "first update")
        row = ddrl("status").splitlines()[1]
        assert row.startswith(number) and "RUNNING" in row and row.endswith(HOSTILE)
        assert re.search(r"\d+% of 450 updates", row)
        assert job.show("Requeue") == "1"
        followed = ddrl("logs", HOSTILE, "-f")
    finally:
        slurm.run("scancel", "--quiet", number)
    assert "finished: the budget of 450 updates is used up" in followed
    assert f"job {number} has left the queue" in followed
    assert result(run)["status"] == "finished" and events(run, "checkpoint")
    assert json.loads((run / rundir.CONFIG).read_text())["exchange"]["workers"] == 3
    header, row, *others = ddrl("status", HOSTILE).splitlines()
    assert "finished" in row and "100% of 450 updates" in row and others == []
    assert not list(tmp_path.rglob("owned"))
    assert "100% of" in ddrl("status"), "found in runs, too, when it has ended"


def test_sbatch_passes_options_on_from_any_directory_with_an_unchanged_site_file(slurm, tmp_path):
    """Its empty settings stay unset: Slurm refuses an empty partition."""
    site = tmp_path / "site.conf"
    text = re.sub(r"(?m)^VENV=.*", f"VENV={VENV}", EXAMPLE.read_text())
    site.write_text(re.sub(r"(?m)^RUNS=.*", f"RUNS={tmp_path}/runs", text) + LIGHT + "\n")
    options = "--nodes=2 --ntasks-per-node=2 --mem-per-cpu=1 --time=10 --parsable"
    script = f". {shlex.quote(str(site))} && sbatch {options} {ROOT}/slurm/train.sbatch"
    words = ["a2c", "--game=ddrl/Catch-v0", *TRAIN[1:], "--max-updates", "20"]
    done = subprocess.run(
        ["bash", "-c", f'{script} "$@"', "bash", *words],
        env=slurm.environment | AS_ROOT | {"DDRL_SITE": str(site)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    number = done.stdout.strip()
    job = Job(slurm, number, tmp_path / f"train-{number}.out", tmp_path / "runs")
    assert job.wait() == ("COMPLETED", "0:0"), job.output
    assert newest(job.run).version == 20
    config = json.loads((job.run / rundir.CONFIG).read_text())
    assert (config["algorithm_name"], config["exchange"]["workers"]) == ("a2c", 3)
    assert (job.run / "slurm-jobs.tsv").read_text() == f"{number}\t{tmp_path}/train-{number}.out\n"


def test_what_sbatch_refuses_leaves_nothing(ddrl, tmp_path):
    said = ddrl("submit", "train", *TRAIN, "--run-dir", "run", "--sbatch-options=--partition=nowhere", status=2)
    assert (
        said.startswith("ddrl: sbatch refuses the job: invalid partition specified: nowhere") and said.count("\n") == 1
    )
    assert not Path(tmp_path, "run").exists()
