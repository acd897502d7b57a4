"""What one rank sees of its machine, without MPI and without TensorFlow. JSON types, so that ranks can tell it."""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import resource
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cluster.job import number
from cluster.launch import output_of
from cluster.loopback import listeners
from cluster.topology import CORES_ON_NODE, GPU_VARIABLES, Seat, this_seat, usable_cores
from ddrl.launch.processes import stat_of
from ddrl.placement.resources import available_memory
from ddrl.programs import python_command
from ddrl.reporting.machine import package_versions, source_mark
from ddrl.run_lock import boot_id

PACKAGES = ("ddrl", "tensorflow", "numpy", "numba", "mpi4py", "ale-py", "gymnasium")
SOURCE = "source of ddrl"
MPI_LIBRARY = "MPI library"
NVIDIA_SMI_SECONDS = 15.0
wall_clock = time.time


@dataclasses.dataclass(frozen=True)
class Place:
    """A directory that a rank needs.

    Attributes:
        path: of the directory.
        error: why this rank cannot write there; empty if it can.
        free_bytes: free space for this user, or -1 where it is unknown.
    """

    path: str
    error: str
    free_bytes: int


@dataclasses.dataclass(frozen=True)
class RankFacts:
    """What one rank sees.

    Attributes:
        rank: its rank, and `world` the number of ranks, as MPI has them.
        seat: its host, its cores by the affinity mask, its GPUs by the environment.
        versions: package -> version, empty where it is not installed; Python, MPI and ddrl's own source too.
        node_cores: cores that the machine has.
        free_cores: cores that this rank would have if its launcher did not bind it; 0 if nobody knows.
        boot_id: that no other machine has, whatever it is called; empty where the system does not say.
        gpus: names of the GPUs that nvidia-smi shows it, each with its UUID; None where there is no nvidia-smi.
        gpus_asked: whether the job or the user gave it GPUs by name.
        memory_bytes: memory that can be had.
        run_dir: absolute path of the run directory; `base` its nearest parent that exists, or itself.
        places: the temporary directory and shared memory.
        files_limit: open files; `locked_bytes` memory that may be locked (-1: any).
        rdma: whether there is a network card that locks memory.
        ulfm: whether MPI reports dead ranks instead of ending the job.
        listens: addresses at which this rank, or who started it, takes connections.
        nonce: what this rank wrote into its file in the run directory.
    """

    rank: int
    world: int
    seat: Seat
    versions: dict[str, str]
    node_cores: int
    free_cores: int
    boot_id: str
    gpus: list[str] | None
    gpus_asked: bool
    memory_bytes: int
    run_dir: str
    base: Place
    places: list[Place]
    files_limit: int
    locked_bytes: int
    rdma: bool
    ulfm: bool
    listens: list[str]
    nonce: str

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RankFacts:
        """The inverse of dataclasses.asdict."""
        host, cores, gpus, own_gpus, wish = data["seat"]
        parts = {
            "seat": Seat(host, tuple(cores), tuple(gpus), own_gpus, wish),
            "base": Place(**data["base"]),
            "places": [Place(**place) for place in data["places"]],
        }
        return cls(**{**data, **parts})

    @property
    def host(self) -> str:
        """Its host name."""
        return self.seat.host


def gather_facts(
    rank: int, world: int, run_dir: str, base: Place, nonce: str, mpi_library: str, launcher: int = 0
) -> RankFacts:
    """The facts of this process, in a second or so.

    Args:
        rank, world: this rank, and how many there are.
        run_dir: as this rank knows it.
        base: the folder of the run directory, and what is wrong there.
        nonce: that this rank wrote for the others.
        mpi_library: name and version.
        launcher: process on this machine that may have bound this rank to cores; 0: there is none.
    """
    seat = this_seat(os.environ)
    return RankFacts(
        rank=rank,
        world=world,
        seat=seat,
        versions=versions() | {MPI_LIBRARY: mpi_library},
        node_cores=os.cpu_count() or 1,
        free_cores=free_cores(launcher, os.environ),
        boot_id=boot_id(),
        gpus=nvidia_smi_gpus(),
        gpus_asked=bool(seat.gpus) and any(name in os.environ for name in GPU_VARIABLES),
        memory_bytes=available_memory(),
        run_dir=run_dir,
        base=base,
        places=[look_at(path) for path in (tempfile.gettempdir(), "/dev/shm") if os.path.isdir(path)],
        files_limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        locked_bytes=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        rdma=os.path.isdir("/sys/class/infiniband") and bool(os.listdir("/sys/class/infiniband")),
        ulfm=os.environ.get("OMPI_MCA_mpi_ft_enable") == "1",
        listens=listening_addresses(),
        nonce=nonce,
    )


def listening_addresses() -> list[str]:
    """Addresses at which this rank takes connections, or whatever of its session started it."""
    starters = set(_ancestors(os.getpid(), os.getsid(0)))
    return sorted(address for address, owners in listeners().items() if starters.intersection(owners))


def free_cores(launcher: int, environ: Mapping[str, str]) -> int:
    """The number of cores that a process may use, and so may the ranks that it does not bind; 0 if it has ended."""
    try:
        return len(usable_cores(launcher)[: number(environ, CORES_ON_NODE)])
    except OSError:
        return 0


def _ancestors(process: int, session: int) -> Iterator[int]:
    """This process, its parent and so on, as far as they are of that session and /proc tells."""
    while (stat := stat_of(process)) is not None and stat.session == session:
        yield process
        process = stat.parent


def versions() -> dict[str, str]:
    """Package -> version, empty where it is not installed, with Python's and a mark of ddrl's own source."""
    packages = {name: version or "" for name, version in package_versions(PACKAGES).items()}
    return {"Python": platform.python_version(), SOURCE: source_mark()} | packages


def nvidia_smi_gpus() -> list[str] | None:
    """The GPUs that nvidia-smi shows, each with its UUID; none where it does not answer, None where it is absent."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    return re.findall(r"^GPU \d+: (.*)$", output_of([program, "-L"], NVIDIA_SMI_SECONDS), re.MULTILINE)


def tensorflow_gpus(timeout_seconds: float) -> int:
    """GPUs that TensorFlow can use, asked in a process of its own; -1 when it does not answer."""
    environment = dict(os.environ) | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    answer = output_of(python_command("ddrl.doctor.gpus"), timeout_seconds, environment)
    match = re.search(r"^GPUS (\d+)$", answer, re.MULTILINE)
    return int(match.group(1)) if match else -1


def look_at(path: str) -> Place:
    """Free space of a directory, and whether a file can be made there."""
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(bytes(4096))
            file.flush()
        error = ""
    except OSError as failure:
        error = failure.strerror or str(failure)
    return Place(path, error, free_bytes(path))


def free_bytes(path: str) -> int:
    """Free space for this user, or -1 where it is unknown."""
    try:
        state = os.statvfs(path)
    except OSError:
        return -1
    return state.f_bavail * state.f_frsize


def unresolved(names: Sequence[str], timeout_seconds: float) -> list[str]:
    """Host names for which no address was found in time. (A resolver may take half a minute to give up.)

    Args:
        names: of hosts.
        timeout_seconds: for all of them together.
    """
    resolved: set[str] = set()

    def resolve(name: str) -> None:
        try:
            socket.getaddrinfo(name, None)
            resolved.add(name)
        except OSError:
            pass

    threads = [threading.Thread(target=resolve, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    end = time.monotonic() + timeout_seconds
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return [name for name in names if name not in resolved]
