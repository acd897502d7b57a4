"""The arrays and the two components of slurm/: each task trains what it should."""

from __future__ import annotations

import json

import pytest

from ddrl import rundir
from tests.parallel.support import result

pytestmark = pytest.mark.timeout(400)
ONE_NODE = ("--nodes=1", "--ntasks-per-node=2")
TINY = "OPTIONS=(--preset smoke --no-evaluator --minutes 0 --max-updates 20 {more})"

SMALL = {
    "--gpus-per-task=1": "--comment=none", "--cpus-per-task=8": "--cpus-per-task=1", "--ntasks=3": "--ntasks=1",
    "--ntasks-per-node=4": "--ntasks-per-node=1",
}  # fmt: skip


def config(run) -> dict:
    return json.loads((run / rundir.CONFIG).read_text())


@pytest.fixture(scope="module")
def jobs(submit):
    """Name -> job. All at once, as each waits more than it works."""
    scaling = f"WORKERS=(9 1) WORKERS_PER_SERVER=8\n{TINY.format(more='')}"
    epsilon = f"EPSILONS=(1e-3 1e-5 1e-6) BATCHES=(32 64) SERVERS=1\n{TINY.format(more='--workers 1')}"
    return {
        "scaling": submit("scaling.sbatch", scaling, *ONE_NODE, "--array=1"),
        "epsilon": submit("epsilon.sbatch", epsilon, *ONE_NODE, "--array=3", launcher="srun"),
        "components": submit("train_gpu.sbatch", f"SERVERS=1\n{TINY.format(more='')}", edits=SMALL),
    }


def test_a_task_of_each_array(jobs):
    scaling, epsilon = jobs["scaling"], jobs["epsilon"]
    assert scaling.wait() == ("COMPLETED", "0:0"), scaling.output
    run = scaling.runs / f"scaling-{scaling.number}" / "workers-1"
    assert result(run)["status"] == "finished"
    assert epsilon.wait() == ("COMPLETED", "0:0"), epsilon.output
    run = epsilon.runs / f"epsilon-{epsilon.number}" / "epsilon-1e-5-batch-64"
    optimizer = config(run)["optimizer"]
    assert (optimizer["adam_epsilon"], optimizer["batch_size"]) == (1e-5, 64)


def test_the_task_with_the_number_of_its_array_goes_back_into_the_queue_alone(submit, slurm):
    settings = f"EPSILONS=(1e-3 1e-5) BATCHES=(32) SERVERS=1 REQUEUE=yes\n{TINY.format(more='--workers 1')}"
    array = submit("epsilon.sbatch", settings.replace("updates 20", "updates 1000000"), *ONE_NODE, "--array=0,1")

    def show(task: int, field: str) -> str:
        return slurm.run("squeue", "-h", "-O", f"{field}:.20", "-j", f"{array.number}_{task}").strip()

    runs = array.runs / f"epsilon-{array.number}"
    array.wait_for(lambda: len(list(runs.glob("*/metrics.jsonl"))) == 2, "two runs")
    assert show(1, "JobID") == array.number, "the last task has the number of the array"
    slurm.run("scancel", "--signal=USR1", "--batch", f"{array.number}_1")
    array.wait_for(lambda: show(1, "RestartCnt") == "1", "requeue")
    assert (show(0, "RestartCnt"), show(0, "StateCompact")) == ("0", "R")
    slurm.run("scancel", array.number)


def test_workers_and_servers_on_two_components(jobs):
    job = jobs["components"]
    assert job.wait() == ("COMPLETED", "0:0"), job.output
    exchange = config(job.run)["exchange"]
    assert (exchange["workers"], exchange["parameter_servers"]) == (2, 1)
