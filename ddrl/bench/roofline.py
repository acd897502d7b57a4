"""The compute roofline: what emulation, inference and gradient of a configuration allow by themselves."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ddrl.bench.children import answers, kill, say, start_child
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.rundir import config_to_dict

_START_SECONDS = 180.0  # for imports, environments and tracing, with all cores busy


def measure_roofline(config: TrainConfig, seconds: float, cores: int) -> dict[str, Any]:
    """Measures the parts one after the other, each on all cores at once.

    One process per core, bound to it, with one intra-op thread each: the way in which workers run. The
    batches are the configuration's: observations of one group of simulators, data-points of one gradient.

    Args:
        config: environment, network, sampling and optimizer settings count.
        seconds: time for each part.
        cores: processes, at most the cores that this process may use.

    Returns:
        JSON types: `env` and `inference` (agent steps/s of one core), `gradient` (data-points/s of one
        core), with a replay `target` (transitions/s of one core), `roofline` (agent steps/s of all cores: `combine`),
        `uses`, `cores`, `simulators`, `inference_batch`, `gradient_batch`, `network`, `dtype`, `game`, `protocol`.

    Raises:
        UsageError: too many cores, or what the settings say cannot run.
        RuntimeError: a measuring process died or did not answer in time.
    """
    available = _cores()
    if not 1 <= cores <= len(available):
        raise UsageError(f"{cores} cores: choose 1 to {len(available)}, the cores that this process may use")
    rates, dtype = _measure(config, seconds, available[:cores])
    return {
        **rates,
        "roofline": combine(rates, uses(config), cores),
        "uses": uses(config),
        "cores": cores,
        "simulators": group_size(config),
        "inference_batch": inference_batch(config),
        "gradient_batch": config.batch_size,
        "network": config.network.network,
        "dtype": dtype,
        "game": config.environment.game,
        "protocol": config.environment.protocol,
    }


def phases_of(config: TrainConfig) -> tuple[str, ...]:
    """The parts of a configuration."""
    targets = ("target",) if config.has_replay else ()
    return ("env", "inference", "gradient", *targets)


def combine(rates: Mapping[str, float], uses: float, cores: int) -> float:
    """Agent steps/s of cores that do the parts in turn: cores / (1/env + 1/inference + uses/gradient + uses/target)."""
    learning = sum(1.0 / rates[phase] for phase in ("gradient", "target") if phase in rates)
    return cores / (1.0 / rates["env"] + 1.0 / rates["inference"] + uses * learning)


def uses(config: TrainConfig) -> float:
    """Gradients that each data-point takes part in: PPO's epochs; from a replay the batch over the steps per update."""
    if config.has_replay:
        return config.batch_size / config.replay_data.steps_per_update
    return getattr(config.algorithm, "epochs", 1)


def group_size(config: TrainConfig) -> int:
    """Simulators of one group."""
    return config.sampling.simulators // config.sampling.groups


def inference_batch(config: TrainConfig) -> int:
    """Observations per policy query."""
    return config.sampling.predict_batch or group_size(config)


def _cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _measure(config: TrainConfig, seconds: float, cores: Sequence[int]) -> tuple[dict[str, float], str]:
    """Mean rate of a core in each phase, and the compute type. A timer ends every wait: it kills all."""
    with tempfile.TemporaryFile("w+") as log:
        processes = [_start(core, config, seconds, log) for core in cores]
        phases = phases_of(config)
        timer = threading.Timer(_START_SECONDS + 10 * len(phases) * seconds, kill, [processes])
        timer.start()
        try:
            ready = answers(processes, log)  # of all, so that a phase begins on all cores at once
            return {phase: _phase(processes, phase, log) for phase in phases}, ready[0]["dtype"]
        finally:
            timer.cancel()
            kill(processes)


def _start(core: int, config: TrainConfig, seconds: float, log: Any) -> subprocess.Popen:
    message = {"core": core, "seconds": seconds, "config": config_to_dict(config)}
    return start_child("ddrl.bench.roofline_worker", message, log)


def _phase(processes: Sequence[subprocess.Popen], phase: str, log: Any) -> float:
    for process in processes:
        say(process, {"phase": phase})
    return float(np.mean([answer["rate"] for answer in answers(processes, log)]))
