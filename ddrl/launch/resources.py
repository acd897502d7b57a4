"""Does a local run fit this machine? Cores, free memory, and the shards of the parameter vector."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from cluster.topology import usable_cores
from ddrl.config import TrainConfig
from ddrl.envs import VectorEnvironment
from ddrl.errors import UsageError
from ddrl.presets import Machine
from ddrl.replay import Replay, check_memory

# Resident sizes: TensorFlow, emulators and queue; a server has a slice and its slots, without TensorFlow.
HEAVY_RANK_BYTES = 1.0e9
SERVER_BYTES = 0.1e9
RANKS_PER_CORE = 4


def this_machine() -> Machine:
    """Cores that this process may use, and free memory, limited by the control group where there is one."""
    return Machine(len(usable_cores()), available_memory())


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


def _control_group_memory(root: Path = Path("/sys/fs/cgroup")) -> int:
    try:
        limit = (root / "memory.max").read_text().strip()
        used = int((root / "memory.current").read_text())
        return (1 << 62) if limit == "max" else max(0, int(limit) - used)
    except (OSError, ValueError):
        return 1 << 62


def heavy_ranks(config: TrainConfig) -> int:
    """Ranks that run TensorFlow and emulators: workers and evaluator (a dedicated chief coordinates)."""
    return config.exchange.workers + (config.ranks > config.exchange.ranks)


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
    remedy = "lower --workers, or run on more machines"
    if needed > machine.memory_bytes:
        raise UsageError(
            f"{config.ranks} ranks need about {needed / 1e9:.1f} GB of memory and "
            f"{machine.memory_bytes / 1e9:.1f} GB are free here: {remedy}"
        )
    if heavy > RANKS_PER_CORE * machine.cores:
        raise UsageError(
            f"{heavy} ranks that compute are more than {RANKS_PER_CORE} for each of the "
            f"{machine.cores} cores here: {remedy}"
        )
    if config.exchange.workers > machine.cores:
        return [f"{config.exchange.workers} workers share {machine.cores} cores: expect them to take turns"]
    return []


def replay_bytes(config: TrainConfig, environment: VectorEnvironment) -> int:
    """Memory of a worker's replay when it is full, and of what is acted meanwhile; 0 where there is no replay."""
    if not config.algorithm.from_replay:
        return 0
    acted = config.algorithm.target_period if config.sampling.schedule == "concurrent" else 0
    observation = math.prod(environment.observation_shape) * np.dtype(environment.observation_dtype).itemsize
    return Replay.bytes_for(**replay_size(config, environment)) + acted * observation


def replay_size(config: TrainConfig, environment: VectorEnvironment) -> dict[str, Any]:
    """The arguments of a worker's `Replay` that its memory depends on."""
    return {
        "capacity": config.replay.replay_capacity,
        "simulators": config.rows,
        "observation_shape": environment.observation_shape,
        "observation_dtype": environment.observation_dtype,
        "stack": environment.stamp.get("stack", 1),
        "n_step": config.algorithm.n_step,
        "action": (environment.action_space.action_shape, environment.action_space.action_dtype),
    }


def check_replay(config: TrainConfig, environment: VectorEnvironment, workers: int, available: int) -> None:
    """Whether the replays of so many workers fit together into memory.

    Raises:
        UsageError: they do not; nothing was allocated.
    """
    whose = f"the replays of {workers} workers need" if workers > 1 else "the replay needs"
    check_memory(workers * replay_bytes(config, environment), available, whose)


def check_shards(parameters: int, servers: int) -> None:
    """A server without a parameter would have nothing to say, and the step would wait for it.

    Raises:
        UsageError: when there are more servers than parameters.
    """
    if servers > parameters:
        raise UsageError(
            f"--parameter-servers {servers}: the network has {parameters} parameters; use at most that many"
        )
