"""What the control groups (version 2) of this process, such as those of a container, let it use of the machine."""

from __future__ import annotations

import math
from pathlib import Path

CONTROL_GROUPS, OWN_CONTROL_GROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def control_groups(root: Path = CONTROL_GROUPS, own: Path = OWN_CONTROL_GROUP) -> list[Path]:
    """The control group of this process and its ancestors up to the root. A group's limit holds for all inside it.

    It is the root alone if the system does not say, or if the group of the process is outside those that its container
    shows.
    """
    try:
        lines = own.read_text().splitlines()
    except (OSError, ValueError):
        lines = []
    inside = Path(next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), ""))
    if ".." in inside.parts:
        return [root]
    return [root / inside, *(root / group for group in inside.parents)]


def cpu_quota(root: Path = CONTROL_GROUPS, own: Path = OWN_CONTROL_GROUP) -> float:
    """How many processors' time this process may use, such as 1.5; infinity without a limit.

    A container with a limit sees all processors of its machine, and is stopped for the rest of each period in which its
    threads have used up their time.
    """
    return min(map(_quota, control_groups(root, own)))


def _quota(group: Path) -> float:
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf
