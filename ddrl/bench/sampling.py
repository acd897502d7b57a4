"""Measures agent steps/s of acting alone: simulators and policy, no learning (Stooke and Abbeel 2018, section 5.2)."""

from __future__ import annotations

import time
from typing import NamedTuple

from cluster.topology import usable_cores
from ddrl.bench.phases import on_cores
from ddrl.config import TrainConfig
from ddrl.errors import UsageError


class Sampling(NamedTuple):
    """A setup to measure.

    Attributes:
        config: environment, network, simulators and groups of one process, and the length of its rollouts.
        processes: number of processes.
        cores: cores of each process, which is bound to them.
        inference: whether the network's policy acts; False: actions are drawn at random, without a network.
        barrier: whether the processes wait for each other after every rollout, as they would to learn.
    """

    config: TrainConfig
    processes: int = 1
    cores: int = 1
    inference: bool = True
    barrier: bool = False


def measure_sampling(what: Sampling, seconds: float) -> float:
    """Agent steps/s of all processes together.

    Raises:
        UsageError: it needs more cores than this process may use, the settings cannot run, or a measuring process died
            or did not answer in time.
    """
    available = usable_cores()
    needed = what.processes * what.cores
    if needed > len(available):
        raise UsageError(f"--cores: {needed} cores are needed, and this process may use {len(available)}; give fewer")
    cores = [available[i : i + what.cores] for i in range(0, needed, what.cores)]
    kind = "acting" if what.inference else "acting at random"
    with on_cores(what.config, kind, cores, seconds) as children:
        children.hear()  # all are ready, so that they begin at once
        if not what.barrier:
            return sum(answer["rate"] for answer in children.ask({"phase": "act", "seconds": seconds}))
        steps, start = 0.0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds or not steps:
            steps += sum(answer["done"] for answer in children.ask({"phase": "act", "seconds": 0.0}))
        return steps / elapsed
