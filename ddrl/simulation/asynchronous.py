"""Asynchronous updates: every server applies each slice as it comes and answers that worker alone.

All servers see the same gradients, so one of them is simulated, event by event, and a worker's slices reach it last.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np

from ddrl.simulation.system import Prediction, System

WARM_UP_SHARE = 0.2  # of the gradients
DRAWN_AT_ONCE = 4096


def simulate_asynchronous(system: System, gradients: int, seed: int) -> Prediction:
    """Until so many gradients have come to the servers; a function of the seed."""
    server, hosts, times = _Server(system), _Hosts(system), _times(system, seed)
    # (when, which: whatever comes first stays first, worker, at the server rather than ready to send)
    factors = system.factors().tolist()
    events = [(next(times) * factor, worker, worker, False) for worker, factor in enumerate(factors)]
    heapq.heapify(events)
    taken = [0] * system.workers
    number, warm_up = system.workers, int(WARM_UP_SHARE * gradients)
    began = server.counts()
    while server.version < gradients:
        now, _, worker, arrives = heapq.heappop(events)
        number += 1
        if not arrives:
            heapq.heappush(events, (hosts.send(worker, now), number, worker, True))
            continue
        if server.version == warm_up:
            began = server.counts()
        sent = server.handle(now, taken[worker])
        taken[worker] = server.version
        ready = hosts.receive(worker, sent)
        heapq.heappush(events, (ready + factors[worker] * next(times), number, worker, False))
    elapsed, applied, staleness, waited = server.counts() - began
    rate = applied / elapsed
    efficiency = rate * system.batch / system.ideal_datapoints_per_s()
    return Prediction(system.workers, rate, rate * system.batch, efficiency, staleness / applied, 0.0, waited / applied)


def _times(system: System, seed: int) -> Iterator[float]:
    generator = np.random.default_rng(seed)
    while True:
        yield from system.compute.draw(generator, DRAWN_AT_ONCE).tolist()


class _Hosts:
    """The cards of the workers' hosts; a worker's slices are one transfer."""

    def __init__(self, system: System):
        self._per_host = system.workers_per_host or system.workers
        count = -(-system.workers // self._per_host)
        self._sends, self._receives = [0.0] * count, [0.0] * count
        self._slice, self._all = system.worker_slice_seconds, system.servers * system.worker_slice_seconds
        self._latency = system.latency

    def send(self, worker: int, now: float) -> float:
        """When the first byte of the last slice comes to its server."""
        host = worker // self._per_host
        self._sends[host] = max(now, self._sends[host]) + self._all
        return self._sends[host] - self._slice + self._latency

    def receive(self, worker: int, sent: float) -> float:
        """When all slices are there whose first bytes were sent at that time."""
        host = worker // self._per_host
        self._receives[host] = max(sent + self._latency, self._receives[host]) + self._all
        return self._receives[host]


class _Server:
    """One shard: receiving card, processor, sending card."""

    def __init__(self, system: System):
        self.version = 0
        self._slice, self._worker_slice = system.server_slice_seconds, system.worker_slice_seconds
        self._work, self._reply = system.message_seconds + system.update_seconds(1), system.decision_seconds
        self._receives = self._works = self._sends = self._waited = 0.0
        self._staleness = 0

    def handle(self, now: float, taken: int) -> float:
        """A gradient of version `taken` whose first byte comes now: when its answer begins to be sent."""
        self._receives = max(max(now, self._receives) + self._slice, now + self._worker_slice)
        start = max(self._receives, self._works)
        self._waited += start - self._receives
        self._staleness += self.version - taken
        self.version += 1
        self._works = start + self._work
        begins = max(self._works, self._sends)
        self._sends = begins + self._slice
        return begins + self._slice - self._worker_slice + self._reply

    def counts(self) -> np.ndarray:
        """Seconds, applied, sum of staleness, sum of waits, so far."""
        return np.array([self._works, self.version, self._staleness, self._waited])
