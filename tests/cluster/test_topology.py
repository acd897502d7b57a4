from __future__ import annotations

import math
import os

import pytest

from cluster.control_groups import cpu_quota
from cluster.slurm import Allocation, Node
from cluster.topology import (
    Seat,
    allotted,
    balanced,
    gather_seats,
    made_up,
    ranks_per_core,
    this_seat,
    usable_cores,
    visible_gpus,
)


@pytest.mark.parametrize(
    "environ, gpus",
    [
        ({}, ()),
        ({"CUDA_VISIBLE_DEVICES": "0"}, ("0",)),
        ({"CUDA_VISIBLE_DEVICES": "3, 1"}, ("3", "1")),
        ({"CUDA_VISIBLE_DEVICES": "GPU-5ab,MIG-7"}, ("GPU-5ab", "MIG-7")),
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ()),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,0"}, ("1",)),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, ()),
        ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_GPUS": "0,1"}, ("0",)),
        ({"SLURM_STEP_GPUS": "2", "SLURM_JOB_GPUS": "0,1,2"}, ("2",)),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0,1"}, ("0", "1")),
    ],
)
def test_gpus_that_the_environment_shows(environ, gpus, tmp_path):
    assert visible_gpus(environ, tmp_path) == gpus


def test_gpus_of_the_machine_unless_slurm_gave_none(tmp_path):
    for name in ("nvidia10", "nvidia2", "nvidia0", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert visible_gpus({}, tmp_path) == ("0", "1", "2"), "CUDA's own numbers"
    assert visible_gpus({"SLURM_JOB_ID": "7"}, tmp_path) == ()


RANK = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}
STEP = RANK | {"SLURM_GPUS_PER_TASK": "1"}


@pytest.mark.parametrize(
    "environ, own",
    [
        (STEP, True),
        (STEP | {"PMIX_RANK": "1"}, True),
        (STEP | {"OMPI_COMM_WORLD_RANK": "1"}, False),  # mpirun binds no GPU, whatever the job asked for
        ({"SLURM_GPUS_PER_TASK": "1"}, False),
        ({**STEP, "SLURM_GPUS_PER_TASK": "1", "CUDA_VISIBLE_DEVICES": "0"}, True),
        ({"PMIX_RANK": "1", "CUDA_VISIBLE_DEVICES": "0"}, False),
        (RANK | {"SLURM_TRES_PER_TASK": "cpu=8"}, False),
        (RANK | {"SLURM_TRES_PER_TASK": "cpu=8,gres/gpu=1"}, True),
        (RANK | {"SLURM_GPUS_PER_TASK_HET_GROUP_0": "1", "CUDA_VISIBLE_DEVICES": "0"}, True),
        (RANK | {"SLURM_TRES_PER_TASK_HET_GROUP_0": "cpu=8", "SLURM_TRES_PER_TASK_HET_GROUP_1": "cpu=1"}, False),
    ],
)
def test_whether_a_rank_has_gpus_of_its_own(environ, own):
    assert this_seat(environ).own_gpus is own


def test_this_seat(monkeypatch):
    monkeypatch.setattr("cluster.topology.cpu_quota", lambda: math.inf)
    seat = this_seat({"DDRL_ROLE": " evaluator ", "CUDA_VISIBLE_DEVICES": "1"})
    assert seat == Seat(os.uname().nodename, tuple(sorted(os.sched_getaffinity(0))), ("1",), False, "evaluator")
    assert this_seat({"SLURM_JOB_ID": "1"}).wish == ""


@pytest.mark.parametrize(
    "quotas, cores",
    [
        ({"": "max 100000"}, 8),
        ({"": "250000 100000"}, 3),
        ({"": "20000 100000"}, 1),
        ({"": "900000 100000", "box": "max 100000", "box/inner": "400000 100000"}, 4),
        ({"": "nonsense", "box": "2 0"}, 8),
    ],
)
def test_no_more_cores_than_a_container_gets_the_time_of(tmp_path, monkeypatch, quotas, cores):
    (tmp_path / "own").write_text("0::/box/inner\n")
    for group, quota in quotas.items():
        (tmp_path / "groups" / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / group / "cpu.max").write_text(f"{quota}\n")
    limit = cpu_quota(tmp_path / "groups", tmp_path / "own")
    monkeypatch.setattr("cluster.topology.cpu_quota", lambda: limit)
    monkeypatch.setattr("cluster.topology.os.sched_getaffinity", lambda pid: set(range(4, 12)))
    assert usable_cores() == tuple(range(4, 4 + cores))


def test_no_more_cores_than_slurm_gave(monkeypatch):
    monkeypatch.setattr("cluster.topology.usable_cores", lambda: (2, 3, 4, 5))
    for given, cores in (("2", (2, 3)), ("9", (2, 3, 4, 5)), ("", (2, 3, 4, 5))):
        assert this_seat({"SLURM_CPUS_ON_NODE": given}).cores == cores


class FakeComm:
    """Three ranks, all of them this process: what one gives, all have."""

    def Get_size(self):
        return 3

    def Allgather(self, mine, into):
        into[:] = type(into)(into.typecode, list(mine) * 3)

    def Allgatherv(self, mine, into):
        buffer, counts = into
        assert counts == [len(mine)] * 3
        buffer[:] = bytes(mine) * 3


def test_gathering_keeps_every_field():
    environ = {"DDRL_ROLE": "worker", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert gather_seats(FakeComm(), environ) == (this_seat(environ),) * 3


def test_equal_nodes():
    a, b = Seat("node1", (0, 1), ("0",)), Seat("node2", (0, 1), ("0",))
    assert made_up([2, 1], 2, 1) == (a, a, b)
    assert made_up([1, 0, 1], 1) == (Seat("node1", (0,)), Seat("node3", (0,)))


@pytest.mark.parametrize("numbers", [([], 1, 0), ([0], 1, 0), ([2, -1], 1, 0), ([1], 0, 0), ([1], 1, -1)])
def test_numbers_that_make_no_job(numbers):
    with pytest.raises(ValueError, match="do not make a job"):
        made_up(*numbers)


def test_an_allocation():
    nodes = (Node("n1", 2, 4, gpus=1), Node("n2", 0, 4), Node("n3", 1, 2))
    wide, narrow = Seat("n1", (0, 1, 2, 3), ("0",)), Seat("n3", (0, 1))
    assert allotted(Allocation(7, nodes)) == (wide, wide, narrow)
    assert [seat.host for seat in allotted(Allocation(7, nodes), [1, 1, 1])] == ["n1", "n2", "n3"]


@pytest.mark.parametrize(
    "ranks, nodes, numbers",
    [(6, 4, (2, 2, 1, 1)), (3, 3, (1, 1, 1)), (1, 3, (1, 0, 0)), (70, 16, (5,) * 6 + (4,) * 10)],
)
def test_even_shares(ranks, nodes, numbers):
    assert balanced(ranks, nodes) == numbers


def test_no_node():
    with pytest.raises(ValueError, match="0 nodes"):
        balanced(1, 0)


def test_ranks_for_each_core_of_their_host():
    seats = (Seat("a", (0,)), Seat("a", (1,)), Seat("b", (0, 1)), Seat("b", (0, 1)), Seat("b", (0, 1)), Seat("c"))
    assert [ranks_per_core(seats, rank) for rank in (0, 2, 5)] == [1.0, 1.5, 0.0]
