"""Does a local run fit this machine? Cores, free memory, and the shards of the parameter vector."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from cluster.topology import usable_cores, visible_gpus
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.types import Machine

# Resident sizes: TensorFlow, emulators and queue; a server has a slice and its slots, without TensorFlow.
HEAVY_RANK_BYTES = 1.0e9
SERVER_BYTES = 0.2e9
RANKS_PER_CORE = 4
ACTORS_PER_CORE = 16  # nobody waits for the slowest, and a slow simulator leaves its core to others
CPUINFO = Path("/proc/cpuinfo")
CONTROL_GROUPS, OWN_CONTROL_GROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})  # of x86 processors, as Linux names them


def this_machine() -> Machine:
    """Cores that this process may use, free memory, limited by the control groups that it is in, and bfloat16."""
    bfloat16 = processor_computes_bfloat16() or bool(visible_gpus(os.environ))
    return Machine(len(usable_cores()), available_memory(), bfloat16)


def processor_computes_bfloat16(cpuinfo: Path = CPUINFO) -> bool:
    """Whether it has instructions for it that TensorFlow uses; no where the system does not say."""
    return not BFLOAT16_FLAGS.isdisjoint(of_processor("flags", cpuinfo).split())


@functools.cache  # the file of a machine with many cores takes long to read
def of_processor(field: str, cpuinfo: Path = CPUINFO) -> str:
    """What Linux says of the first processor in that field; nothing where the system does not say."""
    try:
        with cpuinfo.open() as lines:
            return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")
    except OSError:
        return ""


def available_memory() -> int:
    """Bytes that can be had without swapping; 2^62 where the system does not say."""
    free = 1 << 62
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return min(free, _control_group_memory())


def _control_group_memory(root: Path = CONTROL_GROUPS, own: Path = OWN_CONTROL_GROUP) -> int:
    """The least that the control group of this process and those around it leave: the limit of a group holds for all
    that are inside."""
    return min(map(_left_in, _control_groups(root, own)))


def _control_groups(root: Path, own: Path) -> list[Path]:
    """The control group of this process, of version 2, and those around it up to the root; the root alone where the
    system does not say, or where the process is outside of what a container shows it."""
    try:
        lines = own.read_text().splitlines()
    except (OSError, ValueError):
        lines = []
    inside = Path(next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), ""))
    if ".." in inside.parts:
        return [root]
    return [root / inside, *(root / group for group in inside.parents)]


def _left_in(group: Path) -> int:
    """Bytes that a control group may still take; 2^62 where it has no limit, or is not there."""
    try:
        limit = (group / "memory.max").read_text().strip()
        used = max(0, int((group / "memory.current").read_text()) - _cached_files(group))
        return (1 << 62) if limit == "max" else max(0, int(limit) - used)
    except (OSError, ValueError):
        return 1 << 62


def _cached_files(group: Path) -> int:
    """Bytes of files that a control group counts as used and gives back when others are needed, as those in
    MemAvailable; 0 where it does not say."""
    try:
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return int(counts["active_file"]) + int(counts["inactive_file"])
    except (KeyError, OSError, ValueError):
        return 0


def heavy_ranks(config: TrainConfig) -> int:
    """Ranks that run TensorFlow and emulators: workers, actors and evaluator (a dedicated chief coordinates)."""
    return config.exchange.workers + config.apex.actors + (config.evaluation.evaluator and not config.single_process)


def rank_bytes(config: TrainConfig, computes: bool, shard: int) -> float:
    """Memory that a rank needs, in bytes, roughly.

    Args:
        config: of the run.
        computes: it runs TensorFlow and emulators.
        shard: parameters that it serves.
    """
    if computes:
        return HEAVY_RANK_BYTES
    # float32 vectors of a shard: 6 versions and sums, 2 of each of Adam's moments, 2 buffers for each worker
    return SERVER_BYTES + 4.0 * shard * (6 + 4 + 2 * config.exchange.workers)


def check_machine(config: TrainConfig, machine: Machine) -> list[str]:
    """Warnings for a local run that fits only just.

    Raises:
        UsageError: when its ranks do not fit the memory, or crowd the cores.
    """
    heavy = heavy_ranks(config)
    light = config.ranks - heavy
    needed = heavy * HEAVY_RANK_BYTES + light * SERVER_BYTES
    remedy = f"lower {'--actors' if config.apex.actors else '--workers'}, or run on more machines"
    if needed > machine.memory_bytes:
        raise UsageError(
            f"{config.ranks} ranks need about {needed / 1e9:.1f} GB of memory and "
            f"{machine.memory_bytes / 1e9:.1f} GB are free here: {remedy}"
        )
    most = ACTORS_PER_CORE if config.apex.actors else RANKS_PER_CORE
    if heavy > most * machine.cores:
        raise UsageError(
            f"{heavy} ranks that compute are more than {most} for each of the {machine.cores} cores here: {remedy}"
        )
    warnings = emulation_warnings(config, machine)
    if config.apex.actors >= machine.cores:
        crowd = f"the learner and {config.apex.actors} actors"
    elif config.exchange.workers > machine.cores:
        crowd = f"{config.exchange.workers} workers"
    else:
        return warnings
    return [f"{crowd} share {machine.cores} cores: expect them to take turns", *warnings]


def emulation_warnings(config: TrainConfig, machine: Machine) -> list[str]:
    """Of a run whose networks compute in a type that the machine emulates."""
    network = config.network
    if network.compute_dtype == "float32" or machine.bfloat16 or network.network == "mlp":  # which is float32 always
        return []
    return ["--compute-dtype bfloat16: the processor here emulates it, which is several times slower; use float32"]


def check_shards(parameters: int, servers: int) -> None:
    """A server without a parameter would have nothing to say, and the step would wait for it.

    Raises:
        UsageError: when there are more servers than parameters.
    """
    if servers > parameters:
        raise UsageError(
            f"--parameter-servers {servers}: the network has {parameters} parameters; use at most that many"
        )
