"""Who is where: for each rank its host, the cores it may use and the GPUs it sees.

Gathered from the ranks of a running job, read from a Slurm allocation, or made up for a plan.
"""

from __future__ import annotations

import array
import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cluster.control_groups import cpu_quota
from cluster.job import detect_job, number
from cluster.slurm import Allocation
from cluster.wording import counted

CORES_ON_NODE = "SLURM_CPUS_ON_NODE"
GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")  # the first that is set names the GPUs
ROLE_VARIABLE = "DDRL_ROLE"  # set for the ranks of one component of a heterogeneous job


class Seat(NamedTuple):
    """Where one rank sits. A topology is a tuple of them, by rank.

    Attributes:
        host: name of its node.
        cores: logical processors in its affinity mask; empty if nobody knows.
        gpus: what it may put into CUDA_VISIBLE_DEVICES.
        own_gpus: its GPUs are no other rank's, even where theirs have the same names.
        wish: the role that its launcher wants it to have, or empty.
    """

    host: str = ""
    cores: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    own_gpus: bool = False
    wish: str = ""


def this_seat(environ: Mapping[str, str]) -> Seat:
    """Where this process sits.

    Of its affinity mask it takes no more than Slurm gave the job on this node: there are sites where Slurm
    binds nobody, and the rest of the node is somebody else's.
    """
    return Seat(
        os.uname().nodename,
        usable_cores()[: number(environ, CORES_ON_NODE)],
        visible_gpus(environ),
        _own_gpus(environ),
        environ.get(ROLE_VARIABLE, "").strip(),
    )


def usable_cores(process: int = 0) -> tuple[int, ...]:
    """The logical processors that the scheduler lets a process run on, but no more than our CPU quota allows.

    Args:
        process: its number (0: this one).
    """
    affinity = hasattr(os, "sched_getaffinity")
    cores = sorted(os.sched_getaffinity(process)) if affinity else range(os.cpu_count() or 1)
    return tuple(cores)[: max(1, math.ceil(min(cpu_quota(), len(cores))))]


def visible_gpus(environ: Mapping[str, str], devices: Path = Path("/dev")) -> tuple[str, ...]:
    """Names of the GPUs that this process may use: numbers or UUIDs.

    CUDA_VISIBLE_DEVICES names them. Without it, they are the job's in Slurm, where other GPUs of a node are
    somebody else's, and elsewhere all that the node or the container has. CUDA numbers these from 0, whatever
    the numbers of their device files.
    """
    for name in GPU_VARIABLES:
        if name in environ:
            return _listed(environ[name])
    if "SLURM_JOB_ID" in environ:
        return ()
    files = [path for path in devices.glob("nvidia[0-9]*") if path.name.removeprefix("nvidia").isdecimal()]
    return tuple(map(str, range(len(files))))


def _listed(text: str) -> tuple[str, ...]:
    """As CUDA reads it: the first invalid entry ends the list."""
    names: list[str] = []
    for name in (part.strip() for part in text.split(",")):
        if not name or name.startswith("-") or name == "NoDevFiles":
            break
        names.append(name)
    return tuple(names)


def _own_gpus(environ: Mapping[str, str]) -> bool:
    """Whether srun gave this rank GPUs of its own. In its control group each rank may call its first one 0.

    SLURM_TRES_PER_TASK also names other things, such as cpu=8. In a heterogeneous job, _HET_GROUP_ and the number of
    a component are at the end of the names.
    """
    job = detect_job(environ)
    by_srun = job is not None and job.launcher != "openmpi"
    return by_srun and any(
        name.startswith("SLURM_GPUS_PER_TASK") or (name.startswith("SLURM_TRES_PER_TASK") and "gpu" in value)
        for name, value in environ.items()
    )


def gather_seats(comm: Any, environ: Mapping[str, str] = os.environ) -> tuple[Seat, ...]:
    """The topology of a running job, on every rank. All ranks of the mpi4py communicator `comm` call it."""
    seats = gather_json(comm, this_seat(environ))
    return tuple(Seat(host, tuple(cores), tuple(gpus), own_gpus, wish) for host, cores, gpus, own_gpus, wish in seats)


def gather_json(comm: Any, content: Any) -> list[Any]:
    """What every rank has to say, by rank, on every rank. All ranks of `comm` call it.

    Bytes of JSON in plain buffers: nothing is pickled.

    Args:
        comm: an mpi4py communicator.
        content: of this rank, JSON types.
    """
    own = bytearray(json.dumps(content).encode())
    lengths = array.array("i", [0] * comm.Get_size())
    comm.Allgather(array.array("i", [len(own)]), lengths)
    everyone = bytearray(sum(lengths))
    comm.Allgatherv(own, [everyone, list(lengths)])
    ends = list(itertools.accumulate(lengths))
    return [json.loads(everyone[end - length : end]) for end, length in zip(ends, lengths)]


def ranks_per_core(seats: Sequence[Seat], rank: int) -> float:
    """Ranks on the host of a rank for each core that any of them may use; 0 if nobody knows the cores."""
    neighbors = [seat for seat in seats if seat.host == seats[rank].host]
    cores = {core for seat in neighbors for core in seat.cores}
    return len(neighbors) / len(cores) if cores else 0.0


def made_up(
    ranks_per_node: Sequence[int], cpus_per_node: int, gpus_per_node: int = 0, hosts: Sequence[str] = ()
) -> tuple[Seat, ...]:
    """A topology of equal nodes, filled one after the other, whose ranks are bound to no cores.

    Args:
        ranks_per_node: one number for each node; 0 for a node without ranks.
        cpus_per_node, gpus_per_node: of every node.
        hosts: names of the nodes (none: node1, node2, ...).

    Raises:
        ValueError: for numbers that make no job.
    """
    ranks = sum(ranks_per_node)
    if min(ranks_per_node, default=0) < 0 or ranks < 1 or cpus_per_node < 1 or gpus_per_node < 0:
        raise ValueError(
            f"{counted(ranks, 'rank')} on {counted(len(ranks_per_node), 'node')} of "
            f"{counted(cpus_per_node, 'processor')} and {counted(gpus_per_node, 'GPU')} do not make a job: "
            "it takes at least one rank, one node, and one processor"
        )
    names = list(hosts) or [f"node{number}" for number in range(1, len(ranks_per_node) + 1)]
    cores, gpus = tuple(range(cpus_per_node)), tuple(map(str, range(gpus_per_node)))
    return tuple(Seat(host, cores, gpus) for host, count in zip(names, ranks_per_node) for _ in range(count))


def allotted(allocation: Allocation, ranks_per_node: Sequence[int] = ()) -> tuple[Seat, ...]:
    """The topology that srun will make of an allocation, filled one node after the other.

    Args:
        allocation: the Slurm job.
        ranks_per_node: other numbers of ranks than Slurm's tasks, one for each node.
    """
    numbers = ranks_per_node or [node.tasks for node in allocation.nodes]
    seats: list[Seat] = []
    for node, ranks in zip(allocation.nodes, numbers):
        if ranks:
            seats += made_up([ranks], max(node.cpus, 1), node.gpus, [node.host])
    return tuple(seats)


def balanced(ranks: int, nodes: int) -> tuple[int, ...]:
    """How many of `ranks` each of `nodes` takes: they differ by one at most, the first have more.

    Raises:
        ValueError: for no node.
    """
    if nodes < 1:
        raise ValueError(f"{nodes} nodes: at least one is needed")
    return tuple(ranks // nodes + (node < ranks % nodes) for node in range(nodes))
