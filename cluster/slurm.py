"""What Slurm has given this job, from the environment of its script or of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cluster.hostlist import expand, expand_counts
from cluster.job import NUMBER, in_special_step
from cluster.wording import counted

MOST_COMPONENTS = 1024  # Slurm itself has 128
MOST_TASKS = 1 << 20  # of a job


class Node(NamedTuple):
    """One node of an allocation.

    Attributes:
        host: its name.
        tasks: ranks that srun would start on it.
        cpus: logical processors of the job on it.
        gpus: of the job on it.
    """

    host: str
    tasks: int
    cpus: int
    gpus: int = 0


class Allocation(NamedTuple):
    """A Slurm job.

    Attributes:
        job_id: its number; that of the first component of a heterogeneous job.
        nodes: in Slurm's order, component by component; in a step those of the step.
    """

    job_id: int
    nodes: tuple[Node, ...]


def read_allocation(environ: Mapping[str, str]) -> Allocation | None:
    """The Slurm job that this process is in, or None. The variables of a step come before those of the job.

    Raises:
        ValueError: for a variable that is missing or not what it should be; names it.
    """
    job_id = _number(environ, "SLURM_JOB_ID")
    if job_id is None:
        return None
    components = _number(environ, "SLURM_HET_SIZE") or 1
    if components > MOST_COMPONENTS:
        raise ValueError(f"SLURM_HET_SIZE={components}: a job has at most {MOST_COMPONENTS} components; unset it")
    suffixes = [f"_HET_GROUP_{index}" for index in range(components)] if components > 1 else [""]
    nodes = [node for suffix in suffixes for node in _component(environ, suffix)]
    return Allocation(job_id, tuple(nodes))


def _component(environ: Mapping[str, str], suffix: str) -> list[Node]:
    hosts_name, cpus_name = f"SLURM_JOB_NODELIST{suffix}", f"SLURM_JOB_CPUS_PER_NODE{suffix}"
    tasks_name = f"SLURM_TASKS_PER_NODE{suffix}"
    hosts = _hosts(environ, hosts_name)
    cpus_of = dict(zip(hosts, _counts(environ, cpus_name, hosts_name, len(hosts))))
    if not suffix and "SLURM_STEP_NODELIST" in environ and not in_special_step(environ):
        hosts_name, tasks_name = "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"
        hosts = _hosts(environ, hosts_name)
    strange = [host for host in hosts if host not in cpus_of]
    if strange:
        raise ValueError(
            f"{hosts_name}={environ[hosts_name]!r:.80} names {strange[0]}, which is not in SLURM_JOB_NODELIST: "
            "unset what another job left in the environment"
        )
    tasks = _counts(environ, tasks_name, hosts_name, len(hosts))
    if sum(tasks) > MOST_TASKS:
        raise ValueError(f"{tasks_name}={environ[tasks_name]!r:.80}: more than {MOST_TASKS} tasks; correct or unset it")
    return [Node(host, count, cpus_of[host], _gpus(environ, suffix, count)) for host, count in zip(hosts, tasks)]


def _gpus(environ: Mapping[str, str], suffix: str, tasks: int) -> int:
    """GPUs of a node with `tasks` tasks: what was asked for, else what this node has."""
    per_node = _gpu_count(environ, f"SLURM_GPUS_PER_NODE{suffix}")
    per_task = _gpu_count(environ, f"SLURM_GPUS_PER_TASK{suffix}")
    if per_node is not None:
        return per_node
    if per_task is not None:
        return per_task * tasks
    return (_number(environ, "SLURM_GPUS_ON_NODE") or 0) if suffix in ("", "_HET_GROUP_0") else 0


def _gpu_count(environ: Mapping[str, str], name: str) -> int | None:
    """4, a100:4 or a100:2,h100:2: four."""
    if name not in environ:
        return None
    counts = [part.rpartition(":")[2] for part in environ[name].split(",")]
    if not all(NUMBER.fullmatch(count) for count in counts):
        value = environ[name]
        raise ValueError(f"{name}={value!r:.80} is not a number of GPUs such as 4 or a100:4: correct or unset it")
    return sum(map(int, counts))


def _hosts(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    text = _text(environ, name)
    try:
        return expand(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _counts(environ: Mapping[str, str], name: str, hosts_name: str, nodes: int) -> tuple[int, ...]:
    text = _text(environ, name)
    try:
        counts = expand_counts(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if len(counts) != nodes:
        raise ValueError(
            f"{name}={environ[name]!r:.80} is for {counted(len(counts), 'node')}, and "
            f"{hosts_name}={environ[hosts_name]!r:.80} for {nodes}: unset what another job left in the environment"
        )
    return counts


def _text(environ: Mapping[str, str], name: str) -> str:
    if not environ.get(name, "").strip():
        raise ValueError(
            f"{name} is {'empty' if name in environ else 'not set'} though SLURM_JOB_ID={environ['SLURM_JOB_ID']}: "
            f"start this with sbatch, salloc, or srun, or unset SLURM_JOB_ID outside of a Slurm job"
        )
    return environ[name]


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    if text is None:
        return None
    if not NUMBER.fullmatch(text):
        raise ValueError(f"{name}={text!r:.80} is not a number: only Slurm should set it; unset it")
    return int(text)
