"""Predicts the speed of a system, and names the part that limits it: the one without which it would be fastest."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ddrl.simulation.asynchronous import simulate_asynchronous
from ddrl.simulation.synchronous import simulate_synchronous
from ddrl.simulation.system import Prediction, System, Times

UPDATES = 100
TRIED = 30  # updates of each system without a part
EFFICIENT = 0.8  # of what the workers could compute: as long as they get that done, their own time sets the pace
COMPUTE, STRAGGLERS = "compute", "stragglers"
WITHOUT: Mapping[str, Callable[[System], System]] = {
    STRAGGLERS: lambda s: dataclasses.replace(s, compute=Times(s.compute.mean), slow_workers=0),
    "server card": lambda s: dataclasses.replace(s, server_bandwidth=math.inf),
    "server work": lambda s: dataclasses.replace(
        s, average_seconds_per_byte=0.0, apply_seconds_per_byte=0.0, message_seconds=0.0
    ),
    "worker card": lambda s: dataclasses.replace(s, worker_bandwidth=math.inf),
    "latency": lambda s: dataclasses.replace(s, latency=0.0, decision_seconds=0.0),
}
"""Name of a part -> the system in which it costs nothing; latency includes the chief's decision."""


class Limits(NamedTuple):
    """What sets the pace.

    Attributes:
        name: `compute` where the efficiency is at least EFFICIENT, since more workers help then; else the part that
            costs most.
        cost: part -> share of the data-points/s without it that is lost with it, 0 to 1.
    """

    name: str
    cost: Mapping[str, float]


def simulate(system: System, updates: int = UPDATES, seed: int = 0) -> Prediction:
    """Synchronous steps, or asynchronously as many gradients of each worker; a function of the seed."""
    if system.asynchronous:
        return simulate_asynchronous(system, updates * system.workers, seed)
    return simulate_synchronous(system, updates, seed)


def limits(system: System, updates: int = TRIED, seed: int = 0) -> Limits:
    """What sets the pace of a system: each part is taken away in turn, and the rest is simulated again."""
    prediction, cost = simulate(system, updates, seed), {}
    for name, without in WITHOUT.items():
        freed = simulate(without(system), updates, seed).datapoints_per_s
        cost[name] = max(0.0, 1.0 - prediction.datapoints_per_s / freed)
    efficient = prediction.efficiency >= EFFICIENT
    return Limits(COMPUTE if efficient else max(cost, key=cost.__getitem__), cost)
