"""The resources of this machine, and checks that a local run fits its cores and its free memory."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
from pathlib import Path

from cluster.control_groups import CONTROL_GROUPS, OWN_CONTROL_GROUP, control_groups
from cluster.topology import usable_cores, visible_gpus
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.types import Machine
from ddrl.wording import counted

HEAVY_RANK_BYTES = 1.0e9  # resident memory of a rank with TensorFlow, emulators and a queue
SERVER_BYTES = 0.2e9  # resident memory of a server without its vectors; it has no TensorFlow
RANKS_PER_CORE = 4  # most ranks that compute for each core
ACTORS_PER_CORE = 16  # the same with Ape-X: no rank waits for the slowest actor, and slow simulators leave cores free
CPUINFO = Path("/proc/cpuinfo")
CUDNN = "libcudnn.so.9"  # of TensorFlow 2.21
BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})  # names of these features of x86 processors in Linux


def this_machine() -> Machine:
    """The cores and the free memory that this process may use, and whether bfloat16 is computed or emulated.

    Both are limited by the control groups in which the process is.
    """
    bfloat16 = processor_computes_bfloat16() or (bool(visible_gpus(os.environ)) and has_cuda())
    return Machine(len(usable_cores()), available_memory(), bfloat16)


@functools.cache
def has_cuda() -> bool:
    """Whether TensorFlow can load CUDA's libraries, without which it leaves a GPU idle: those of
    `pip install "tensorflow[and-cuda]"`, or the system's."""
    if importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.cudnn"):
        return True
    try:
        ctypes.CDLL(CUDNN)
    except OSError:
        return False
    return True


def processor_computes_bfloat16(cpuinfo: Path = CPUINFO) -> bool:
    """Whether the processor has instructions for bfloat16 that TensorFlow uses; False if the system does not say."""
    return not BFLOAT16_FLAGS.isdisjoint(of_processor("flags", cpuinfo).split())


@functools.cache  # the file of a machine with many cores takes long to read
def of_processor(field: str, cpuinfo: Path = CPUINFO) -> str:
    """The value of a field of /proc/cpuinfo for the first processor; an empty string if the system does not say."""
    try:
        with cpuinfo.open() as lines:
            return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")
    except OSError:
        return ""


def available_memory() -> int:
    """The bytes that this process can allocate without swapping; 2^62 if the system does not say."""
    free = 1 << 62
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return min(free, _control_group_memory())


def _control_group_memory(root: Path = CONTROL_GROUPS, own: Path = OWN_CONTROL_GROUP) -> int:
    """The bytes that the control group of this process and all its ancestors still allow.

    A group's limit holds for all groups inside it.
    """
    return min(map(_left_in, control_groups(root, own)))


def _left_in(group: Path) -> int:
    """The bytes that a control group may still allocate; 2^62 if it has no limit or does not exist."""
    try:
        limit = (group / "memory.max").read_text().strip()
        used = max(0, int((group / "memory.current").read_text()) - _cached_files(group))
        return (1 << 62) if limit == "max" else max(0, int(limit) - used)
    except (OSError, ValueError):
        return 1 << 62


def _cached_files(group: Path) -> int:
    """The bytes of cached files in a control group; 0 if the system does not say.

    The group counts them as used, but gives them back when memory is needed; MemAvailable has such files, too.
    """
    try:
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return int(counts["active_file"]) + int(counts["inactive_file"])
    except (KeyError, OSError, ValueError):
        return 0


def heavy_ranks(config: TrainConfig) -> int:
    """The number of ranks that run TensorFlow and emulators: workers, actors and evaluator, but no dedicated chief."""
    return config.exchange.workers + config.apex.actors + (config.evaluation.evaluator and not config.single_process)


def rank_bytes(config: TrainConfig, computes: bool, shard: int) -> float:
    """A rough estimate of the memory that a rank needs, in bytes, without its replay, rollouts, and pool.

    Args:
        config: settings of the run.
        computes: whether the rank runs TensorFlow and emulators.
        shard: number of parameters that it serves.
    """
    if computes:
        return HEAVY_RANK_BYTES
    # float32 vectors of a shard: 6 versions and sums, 2 of each of Adam's moments, 2 buffers for each worker
    return SERVER_BYTES + 4.0 * shard * (6 + 4 + 2 * config.exchange.workers)


def check_machine(config: TrainConfig, machine: Machine) -> list[str]:
    """Checks that a local run fits the machine; returns warnings if it will be slow there.

    Raises:
        UsageError: its ranks need more memory than is free, or are too many for the cores.
    """
    heavy = heavy_ranks(config)
    light = config.ranks - heavy
    needed = heavy * HEAVY_RANK_BYTES + light * SERVER_BYTES
    remedy = f"lower {'--actors' if config.apex.actors else '--workers'}, or run on more machines"
    if needed > machine.memory_bytes:
        whose = "1 rank needs" if config.ranks == 1 else f"{config.ranks} ranks need"
        raise UsageError(
            f"{whose} about {needed / 1e9:.1f} GB of memory and "
            f"{machine.memory_bytes / 1e9:.1f} GB are free here: {remedy}"
        )
    most, cores = ACTORS_PER_CORE if config.apex.actors else RANKS_PER_CORE, counted(machine.cores, "core")
    if heavy > most * machine.cores:
        raise UsageError(f"{heavy} ranks that compute are too many for {cores}, at most {most} for each: {remedy}")
    return machine_warnings(config, machine)


def machine_warnings(config: TrainConfig, machine: Machine) -> list[str]:
    """Warnings of what makes a local run slow on the machine: more ranks than cores, and a type that it emulates."""
    crowd = ""
    if config.apex.actors >= machine.cores:
        crowd = f"the learner and {counted(config.apex.actors, 'actor')}"
    elif config.exchange.workers > machine.cores:
        crowd = counted(config.exchange.workers, "worker")
    crowded = [f"{crowd} share {counted(machine.cores, 'core')}: expect them to take turns"] if crowd else []
    return [*crowded, *emulation_warnings(config, machine)]


def emulation_warnings(config: TrainConfig, machine: Machine) -> list[str]:
    """A warning if the networks of a run compute in a type that the machine emulates; else an empty list."""
    network = config.network
    if network.compute_dtype == "float32" or machine.bfloat16 or network.network == "mlp":  # an mlp is always float32
        return []
    return ["--compute-dtype bfloat16: the processor here emulates it, which is several times slower; use float32"]


def check_shards(parameters: int, servers: int) -> None:
    """Checks that every server has a parameter: steps would wait forever for a server without any.

    Raises:
        UsageError: there are more servers than parameters.
    """
    if servers > parameters:
        raise UsageError(
            f"--parameter-servers {servers}: the network has {parameters} parameters; use at most that many"
        )
