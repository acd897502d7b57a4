"""The arrays and the two components of slurm/: each task trains what it should."""

from __future__ import annotations

import json

import pytest

from ddrl import rundir
from tests.parallel.support import result

pytestmark = pytest.mark.timeout(200)
ONE_NODE = ("--nodes=1", "--ntasks-per-node=2")
TINY = "OPTIONS=(--preset smoke --no-evaluator --minutes 0 --max-updates 20 {more})"

SMALL = {
    "--gpus-per-task=1": "--comment=none", "--cpus-per-task=8": "--cpus-per-task=1", "--ntasks=3": "--ntasks=1",
    "--ntasks-per-node=4": "--ntasks-per-node=1",
}  # fmt: skip


def config(run) -> dict:
    return json.loads((run / rundir.CONFIG).read_text())


def test_a_task_of_each_array(submit):
    scaling = submit(
        "scaling.sbatch", f"WORKERS=(9 1) WORKERS_PER_SERVER=8\n{TINY.format(more='')}", *ONE_NODE, "--array=1"
    )
    epsilon = submit(
        "epsilon.sbatch",
        f"EPSILONS=(1e-3 1e-5 1e-6) BATCHES=(32 64) SERVERS=1\n{TINY.format(more='--workers 1')}",
        *ONE_NODE,
        "--array=3",
        launcher="srun",
    )
    assert scaling.wait() == ("COMPLETED", "0:0"), scaling.output
    run = scaling.runs / f"scaling-{scaling.number}" / "workers-1"
    assert result(run)["status"] == "finished"
    assert epsilon.wait() == ("COMPLETED", "0:0"), epsilon.output
    run = epsilon.runs / f"epsilon-{epsilon.number}" / "epsilon-1e-5-batch-64"
    optimizer = config(run)["optimizer"]
    assert (optimizer["adam_epsilon"], optimizer["batch_size"]) == (1e-5, 64)


def test_workers_and_servers_on_two_components(submit):
    job = submit("train_gpu.sbatch", f"SERVERS=1\n{TINY.format(more='')}", edits=SMALL)
    assert job.wait() == ("COMPLETED", "0:0"), job.output
    exchange = config(job.run)["exchange"]
    assert (exchange["workers"], exchange["parameter_servers"]) == (2, 1)
