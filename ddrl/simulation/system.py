"""What is simulated (`System`: workers, servers, and their network) and what a simulation returns (`Prediction`)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ddrl.errors import UsageError

FLOAT_BYTES = 4


@dataclasses.dataclass(frozen=True)
class Times:
    """How long a worker takes from having parameters to having a gradient: gamma distributed, in seconds.

    With deviation = mean it is the exponential distribution; without a deviation, always the mean.
    """

    mean: float
    deviation: float = 0.0

    def draw(self, generator: np.random.Generator, count: int) -> np.ndarray:
        """Independent times <float64>[count]."""
        if self.deviation <= 1e-6 * self.mean:
            return np.full(count, self.mean)
        shape = (self.mean / self.deviation) ** 2
        return generator.gamma(shape, self.mean / shape, count)


@dataclasses.dataclass(frozen=True)
class System:
    """Workers, parameter servers and the network between them.

    Every host has one card that sends and receives at once, each at its bandwidth, shared by the ranks of the host.
    Hosts have workers or servers, all hosts of a kind equally many; a worker and a server on one host do not hinder
    each other here, since in a synchronous step one sends while the other receives.

    Attributes:
        workers: number of them.
        compute: time of a gradient, of one worker.
        parameters: float32 values.
        batch: data-points in a gradient.
        servers: shards of equal size.
        worker_bandwidth, server_bandwidth: of a host's card, in bytes/s and direction.
        latency: of a message, in seconds.
        workers_per_host, servers_per_host: that share a card (0: all of them).
        message_seconds: processor time of a message, at either end.
        average_seconds_per_byte: of adding one gradient to the average.
        apply_seconds_per_byte: of the optimizer, for a byte of parameters.
        decision_seconds: of the chief, and whatever else a step takes: polling, scheduling.
        slow_workers: that are slow all the time.
        slow_factor: how much slower.
        quorum: gradients that close a synchronous step (0: all).
        deadline_seconds: close with what is there this long after the first gradient (0: never).
        asynchronous: every gradient is applied as it comes.
    """

    workers: int
    compute: Times = Times(0.1)
    parameters: int = 332_295
    batch: int = 32
    servers: int = 1
    worker_bandwidth: float = math.inf
    server_bandwidth: float = math.inf
    latency: float = 0.0
    workers_per_host: int = 1
    servers_per_host: int = 1
    message_seconds: float = 0.0
    average_seconds_per_byte: float = 0.0
    apply_seconds_per_byte: float = 0.0
    decision_seconds: float = 0.0
    slow_workers: int = 0
    slow_factor: float = 1.0
    quorum: int = 0
    deadline_seconds: float = 0.0
    asynchronous: bool = False

    def __post_init__(self) -> None:
        for name in ("workers", "servers", "parameters", "batch"):
            if getattr(self, name) < 1:
                raise UsageError(f"simulation: {name} {getattr(self, name)}: must be at least 1")
        if not 0 <= self.quorum <= self.workers:
            raise UsageError(f"simulation: quorum {self.quorum}: must be 0 (all) to {self.workers}, the workers")
        if self.asynchronous and (self.quorum or self.deadline_seconds):
            raise UsageError("simulation: asynchronous updates have no quorum and no deadline; leave one side out")

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> System:
        """The inverse of `to_json`."""
        return cls(**{**values, "compute": Times(**values["compute"])})

    def to_json(self) -> dict[str, Any]:
        """By name; without infinite values, which are defaults, and which JSON does not know."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value != math.inf}

    @property
    def slice_bytes(self) -> float:
        """Of one shard."""
        return FLOAT_BYTES * self.parameters / self.servers

    @property
    def worker_slice_seconds(self) -> float:
        """Of a slice on a worker's card, alone on it."""
        return max(self.message_seconds, self.slice_bytes / self.worker_bandwidth)

    @property
    def server_slice_seconds(self) -> float:
        """Of a slice on a server's card, which it shares with the other servers of its host, all busy at once."""
        sharing = min(self.servers_per_host or self.servers, self.servers)
        return max(self.message_seconds, sharing * self.slice_bytes / self.server_bandwidth)

    def update_seconds(self, gradients: int) -> float:
        """Of averaging and applying so many gradients, on each server."""
        return self.slice_bytes * (gradients * self.average_seconds_per_byte + self.apply_seconds_per_byte)

    def factors(self) -> np.ndarray:
        """What every worker's times are multiplied by: <float64>[workers]."""
        factors = np.ones(self.workers)
        factors[: min(self.slow_workers, self.workers)] = self.slow_factor
        return factors

    def ideal_datapoints_per_s(self) -> float:
        """Of workers that never wait."""
        return float(self.batch * (1.0 / self.factors()).sum() / self.compute.mean) if self.compute.mean else math.inf


class Prediction(NamedTuple):
    """What a simulation found, after its warm-up.

    Attributes:
        workers: of the system.
        updates_per_s: versions.
        datapoints_per_s: in the gradients that were applied.
        efficiency: their share of what the workers would compute if they never waited.
        staleness_mean: versions between taking and applying a gradient.
        dropped_share: of the gradients that were computed.
        server_wait_seconds: asynchronous: that a gradient waits at a server until it is worked on, in the mean.
    """

    workers: int
    updates_per_s: float
    datapoints_per_s: float
    efficiency: float
    staleness_mean: float
    dropped_share: float
    server_wait_seconds: float = 0.0
