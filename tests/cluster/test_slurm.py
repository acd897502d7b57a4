from __future__ import annotations

import re

import pytest

from cluster.slurm import Allocation, Node, read_allocation

# As Slurm 22.05 sets them after `sbatch -N3 -n6`.
BATCH = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURM_NODELIST": "n[1-3]",
    "SLURM_JOB_CPUS_PER_NODE": "4,1(x2)",
    "SLURM_TASKS_PER_NODE": "4,1(x2)",
    "SLURM_NTASKS": "6",
}
STEP = {
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[2-3]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_TASKS_PER_NODE": "2,1",
}
INTERACTIVE = {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NODELIST": "n1", "SLURM_STEP_TASKS_PER_NODE": "1"}
HETEROGENEOUS = {
    "SLURM_JOB_ID": "4",
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_NODELIST": "n1",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "n1",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "n[2-3]",
    "SLURM_JOB_CPUS_PER_NODE": "2",
    "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_0": "2",
    "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_1": "3,1",
    "SLURM_TASKS_PER_NODE": "2",
    "SLURM_TASKS_PER_NODE_HET_GROUP_0": "2",
    "SLURM_TASKS_PER_NODE_HET_GROUP_1": "3,1",
}
WHOLE = (Node("n1", 4, 4), Node("n2", 1, 1), Node("n3", 1, 1))


@pytest.mark.parametrize(
    "environ, allocation",
    [
        ({}, None),
        ({"SLURM_JOB_NODELIST": "n1"}, None),
        (BATCH, Allocation(7, WHOLE)),
        (BATCH | INTERACTIVE, Allocation(7, WHOLE)),
        (BATCH | STEP, Allocation(7, (Node("n2", 2, 1), Node("n3", 1, 1)))),
        (HETEROGENEOUS, Allocation(4, (Node("n1", 2, 2), Node("n2", 3, 3), Node("n3", 1, 1)))),
    ],
)
def test_allocations(environ, allocation):
    assert read_allocation(environ) == allocation


@pytest.mark.parametrize(
    "added, gpus",
    [
        ({}, [0, 0, 0]),
        ({"SLURM_GPUS_PER_NODE": "2"}, [2, 2, 2]),
        ({"SLURM_GPUS_PER_NODE": "a100:2,h100:1"}, [3, 3, 3]),
        ({"SLURM_GPUS_PER_TASK": "1", "SLURM_GPUS_ON_NODE": "4"}, [4, 1, 1]),
        ({"SLURM_GPUS_ON_NODE": "8"}, [8, 8, 8]),
    ],
)
def test_gpus(added, gpus):
    assert [node.gpus for node in read_allocation(BATCH | added).nodes] == gpus


def test_gpus_of_the_component_that_has_them():
    environ = HETEROGENEOUS | {"SLURM_GPUS_PER_NODE_HET_GROUP_1": "4"}
    assert [node.gpus for node in read_allocation(environ).nodes] == [0, 4, 4]


@pytest.mark.parametrize(
    "changed, why",
    [
        ({"SLURM_JOB_ID": "seven"}, "SLURM_JOB_ID='seven' is not a number"),
        ({"SLURM_JOB_NODELIST": ""}, "SLURM_JOB_NODELIST is empty though SLURM_JOB_ID=7: start this with sbatch"),
        ({"SLURM_JOB_NODELIST": "n[1-3"}, "SLURM_JOB_NODELIST: host list 'n[1-3' has a bracket"),
        ({"SLURM_JOB_CPUS_PER_NODE": "four"}, "SLURM_JOB_CPUS_PER_NODE: counts per node 'four'"),
        ({"SLURM_TASKS_PER_NODE": "4,1"}, "SLURM_TASKS_PER_NODE='4,1' is for 2 nodes, and SLURM_JOB_NODELIST"),
        ({"SLURM_HET_SIZE": "\u00b2"}, "SLURM_HET_SIZE='\u00b2' is not a number"),
        ({"SLURM_JOB_ID": "\u0663"}, "SLURM_JOB_ID='\u0663' is not a number"),
        ({"SLURM_JOB_ID": "9" * 5000}, "is not a number"),
        ({"SLURM_HET_SIZE": "999999999"}, "SLURM_HET_SIZE=999999999: a job has at most 1024 components; unset it"),
        ({"SLURM_GPUS_PER_NODE": "a100:\u0663"}, "is not a number of GPUs"),
        ({"SLURM_TASKS_PER_NODE": "999999999(x3)"}, "more than 1048576 tasks"),
        ({"SLURM_GPUS_ON_NODE": "-1"}, "SLURM_GPUS_ON_NODE='-1' is not a number"),
        ({"SLURM_GPUS_PER_NODE": "many"}, "SLURM_GPUS_PER_NODE='many' is not a number of GPUs"),
        (STEP | {"SLURM_STEP_NODELIST": "n[3-4]"}, "SLURM_STEP_NODELIST='n[3-4]' names n4"),
        (STEP | {"SLURM_STEP_TASKS_PER_NODE": " "}, "SLURM_STEP_TASKS_PER_NODE is empty"),
        ({"SLURM_HET_SIZE": "2"}, "SLURM_JOB_NODELIST_HET_GROUP_0 is not set"),
    ],
)
def test_wrong_variables_are_named_in_one_line(changed, why):
    with pytest.raises(ValueError, match=re.escape(why)) as caught:
        read_allocation(BATCH | changed)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["SLURM_JOB_NODELIST", "SLURM_JOB_CPUS_PER_NODE", "SLURM_TASKS_PER_NODE"])
def test_missing_variables_are_named(name):
    with pytest.raises(ValueError, match=f"^{name} is not set though SLURM_JOB_ID=7"):
        read_allocation({key: value for key, value in BATCH.items() if key != name})
