"""Agent steps/s of acting alone: simulators and policy, nobody learns (Stooke and Abbeel 2018, section 5.2)."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from cluster.topology import usable_cores
from ddrl.bench.children import Children
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.rundir import config_to_dict

START_SECONDS = 180.0  # for imports, environments and tracing, with all cores busy


class Sampling(NamedTuple):
    """What is measured.

    Attributes:
        config: environment, network, simulators and groups of one process, and the length of its rollouts.
        processes: how many.
        cores: of each process, which is fixed to them.
        inference: False: actions are drawn at random, and nothing else is done.
        barrier: the processes wait for each other after every rollout, as they would to learn.
    """

    config: TrainConfig
    processes: int = 1
    cores: int = 1
    inference: bool = True
    barrier: bool = False


def measure_sampling(what: Sampling, seconds: float) -> float:
    """Agent steps/s of all processes together.

    Raises:
        UsageError: more cores than this process may use, or what the settings say cannot run.
        RuntimeError: a measuring process died or did not answer in time.
    """
    available = sorted(usable_cores())
    needed = what.processes * what.cores
    if needed > len(available):
        raise UsageError(f"{needed} cores are asked for, and this process may use {len(available)}: fewer --cores")
    message: dict[str, Any] = {"seconds": 0.0 if what.barrier else seconds, "inference": what.inference}
    message |= {"config": config_to_dict(what.config)}
    cores = [available[i * what.cores : (i + 1) * what.cores] for i in range(what.processes)]
    firsts = [message | {"cores": of_process} for of_process in cores]
    with Children("ddrl.bench.sampling_worker", firsts, START_SECONDS + 10 * seconds) as children:
        children.hear()  # all are ready, so that they begin at once
        if what.barrier:
            return _rounds(children, seconds)
        return sum(answer["agent_steps"] / answer["seconds"] for answer in children.ask({"go": True}))


def _rounds(children: Children, seconds: float) -> float:
    """Agent steps/s of one rollout of all, again and again."""
    steps, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds or not steps:
        steps += sum(answer["agent_steps"] for answer in children.ask({"go": True}))
    return steps / elapsed
