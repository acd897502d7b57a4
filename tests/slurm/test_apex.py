"""Ape-X on a real Slurm."""

from __future__ import annotations

import json

import pytest

from ddrl import rundir
from tests.parallel.support import lines, result

pytestmark = pytest.mark.timeout(200)
SMALL = {
    "--gpus-per-task=1": "--comment=none", "--cpus-per-task=8": "--cpus-per-task=1",
    "--ntasks-per-node=16": "--ntasks-per-node=2",
}  # fmt: skip


def test_the_learner_and_the_others_on_two_components(submit):
    settings = "ALGORITHM=apex-dqn SHARDS=1\nOPTIONS=(--preset smoke --minutes 0 --max-updates 60)"
    job = submit("apex.sbatch", settings, edits=SMALL)
    assert job.wait() == ("COMPLETED", "0:0"), job.output
    assert result(job.run)["status"] == "finished" and max(line.get("inserts_per_s", 0) for line in lines(job.run)) > 0
    config = json.loads((job.run / rundir.CONFIG).read_text())
    assert (config["apex"]["actors"], config["apex"]["replay_shards"], config["exchange"]["workers"]) == (2, 1, 1)
