"""A worker's and a reader's part of the exchange as state machines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ddrl.exchange.messages import Flag, Header, Kind, Message
from ddrl.types import Snapshot

ASSEMBLIES_KEPT = 3  # versions that may be incomplete at once: a straggler skips to the newest


class Assembler:
    """Puts slices from all shards into one vector, and never mixes slices of different headers."""

    def __init__(self, ranges: Sequence[tuple[int, int]]):
        self.ranges = tuple(ranges)
        self._partial: dict[tuple, tuple[np.ndarray, set[int]]] = {}

    def add(self, key: tuple, shard: int, payload: np.ndarray) -> np.ndarray | None:
        """Adds one slice; returns the whole vector <float32>[N], read-only, when it is complete.

        Args:
            key: everything in which slices of one vector must agree; compared for its order too.
        """
        start, stop = self.ranges[shard]
        if key not in self._partial:
            self._partial[key] = (np.empty(self.ranges[-1][1], np.float32), set())
        vector, present = self._partial[key]
        vector[start:stop] = payload
        present.add(shard)
        if len(present) < len(self.ranges):
            while len(self._partial) > ASSEMBLIES_KEPT:
                del self._partial[min(self._partial)]
            return None
        for old in [k for k in self._partial if k <= key]:
            del self._partial[old]
        vector.flags.writeable = False
        return vector


class WorkerClient:
    """Sends a worker's gradients and assembles the versions that come back.

    Args:
        worker: id of this worker.
        servers: process of each shard, by shard index.
        ranges: [start, stop) of each shard in the flat vector.
        asynchronous: shards answer this worker alone, and their versions differ.
    """

    def __init__(
        self, worker: int, servers: Sequence[int], ranges: Sequence[tuple[int, int]], asynchronous: bool = False
    ):
        self.worker, self.servers, self.asynchronous = worker, tuple(servers), asynchronous
        self.snapshot: Snapshot | None = None
        self.flags = Flag.NONE  # of the newest snapshot
        self.dropped = 0
        self._assembler = Assembler(ranges)
        self._versions: dict[int, list[int]] = {}

    def submit(self, gradient: np.ndarray, step: int, version: int, samples: int, finite: bool) -> list[Message]:
        """The messages that carry a gradient <float32>[N] for `step`, taken at parameters `version`.

        A gradient for a step that is closed already is dropped here, and counted.
        """
        if self.snapshot is None or step != self.snapshot.step:
            self.dropped += 1
            return []
        flags = Flag.FINITE if finite else Flag.NONE
        header = Header(
            Kind.GRADIENT, sender=self.worker, step=step, version=version, flags=flags, count=samples
        )
        ranges = self._assembler.ranges
        return [Message(p, header, gradient[a:b]) for p, (a, b) in zip(self.servers, ranges, strict=True)]

    def handle(self, header: Header, payload: np.ndarray) -> Snapshot | None:
        """Takes a PARAMETERS message; returns the new snapshot when a version is complete."""
        stop = header.flags & Flag.STOP  # always the last message: it may repeat the newest version
        if self.snapshot is not None and header.step <= self.snapshot.step and not stop:
            return None
        key = (header.step, -1 if self.asynchronous else header.version, header.members)
        versions = self._versions.setdefault(header.step, [])
        versions.append(header.version)
        vector = self._assembler.add(key, header.sender, payload)
        if vector is None:
            return None
        self.flags = header.flags
        # Asynchronous: a gradient is as stale as its oldest slice.
        self.snapshot = Snapshot(min(versions), header.step, vector)
        self._versions = {s: v for s, v in self._versions.items() if s > header.step}
        return self.snapshot


class Reader:
    """Fetches a published version; used by the evaluator (and by whoever acts without learning)."""

    def __init__(self, servers: Sequence[int], ranges: Sequence[tuple[int, int]]):
        self.servers = tuple(servers)
        self.wanted = -1
        self._assembler = Assembler(ranges)
        self._newest: dict[int, int] = {}

    def fetch(self, version: int) -> list[Message]:
        """Asks every shard for `version`, or for its newest where that one is gone already."""
        self.wanted = version
        self._newest.clear()
        return [self._request(process) for process in self.servers]

    def handle(self, header: Header, payload: np.ndarray) -> tuple[list[Message], Snapshot | None]:
        """Takes a PUBLISHED message; asks again where a shard answered with an older version than another."""
        self._newest[header.sender] = header.version
        vector = self._assembler.add((header.version,), header.sender, payload)
        if vector is not None:
            return [], Snapshot(header.version, -1, vector)
        self.wanted = max(self.wanted, header.version)
        behind = [shard for shard, version in self._newest.items() if version < self.wanted]
        for shard in behind:
            del self._newest[shard]
        return [self._request(self.servers[shard]) for shard in behind], None

    def _request(self, process: int) -> Message:
        return Message(process, Header(Kind.FETCH, version=self.wanted))
