"""Ape-X on a real Slurm."""

from __future__ import annotations

import json

import pytest

from ddrl import rundir
from tests.parallel.support import result

pytestmark = pytest.mark.timeout(400)
SMALL = {
    "--gpus-per-task=1": "--comment=none", "--cpus-per-task=8": "--cpus-per-task=1",
    "--ntasks-per-node=16": "--ntasks-per-node=2",
}  # fmt: skip


def test_the_learner_and_the_others_on_two_components(submit):
    settings = "ALGORITHM=apex-dqn SHARDS=1\nOPTIONS=(--preset smoke --minutes 0 --max-updates 60)"
    job = submit("apex.sbatch", settings, edits=SMALL)
    assert job.wait() == ("COMPLETED", "0:0"), job.output
    ended = result(job.run)
    assert (ended["status"], ended["update"]) == ("finished", 60), "each update takes a batch from the other component"
    config = json.loads((job.run / rundir.CONFIG).read_text())
    assert (config["apex"]["actors"], config["apex"]["replay_shards"], config["exchange"]["workers"]) == (2, 1, 1)


def test_the_nodes_of_both_components_are_asked_whether_they_answer(submit, slurm):
    asks = (
        'nodes_answer; echo "it answers"; until [[ -e $RUNS/crashed ]]; do sleep 1; done\n'
        'nodes_answer || echo "it is gone"; exit\n'
    )
    job = submit("apex.sbatch", "OPTIONS=()", edits={**SMALL, "check_nodes\n": asks})
    job.wait_for(lambda: "it answers" in job.output, "answer of all nodes")
    others = slurm.run("squeue", "-h", "-j", job.number, "-o", "%i %N").splitlines()
    (nodes,) = [line.split()[1] for line in others if "+1 " in line]
    lost = slurm.run("scontrol", "show", "hostnames", nodes).split()[-1]
    slurm.crash(lost)
    try:
        job.runs.mkdir(exist_ok=True)
        (job.runs / "crashed").touch()
        job.wait_for(lambda: "it is gone" in job.output, "loss of a node of the second component")
    finally:
        slurm.start_node(lost)
