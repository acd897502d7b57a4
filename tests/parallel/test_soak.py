"""Real faults: the benchmark of faults breaks a few runs, and finds nothing wrong."""

from __future__ import annotations

import json
import sys

import pytest

from ddrl.bench.faults.command import LOG
from tests.parallel.light import EVERYWHERE
from tests.parallel.support import Job, needs_mpirun


@needs_mpirun
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "system, kinds, seed",
    [("single", ["launcher-kill", "disk-full"], 1), ("allreduce", ["saving-kill", "rank-stop"], 1)],
)
def test_a_few_faults_leave_nothing_and_lose_little(tmp_path, system, kinds, seed):
    target, where = tmp_path / "faults.json", tmp_path / "soak"
    argv = [sys.executable, "-m", "ddrl.cli", "bench", "faults", "--faults", "2", "--json", str(target)]
    argv += ["--directory", str(where), "--systems", system, "--kinds", *kinds, "--seed", str(seed)]
    with Job(argv, where, EVERYWHERE) as job:
        assert job.wait(360.0) == 0, job.output
    found = json.loads(target.read_text())
    assert len(found["kinds"]) == 2 and found["bad"] == []
    assert found["all"]["resumed"] == found["all"]["trained again"]
    assert [path.name for path in where.iterdir()] == [LOG], "runs in which nothing was bad are deleted"
