"""The state machines of the exchange for workers, which send gradients, and for readers of published versions."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from ddrl.exchange.averaging import squared_norm
from ddrl.exchange.messages import Flag, Header, Kind, Message
from ddrl.exchange.statistics import Statistics
from ddrl.exchange.transport import Channel
from ddrl.exchange.vectors import empty_vector
from ddrl.types import Snapshot


class Assembler:
    """Puts the slices of all shards together into one vector, and never mixes slices with different keys (see `add`).

    Slices are received in place, in one of two vectors. A shard's next slice goes to the vector in which no earlier
    slice of that shard still waits for those of the other shards. While the shards keep step, all slices of a version
    arrive in the same vector, and nothing is copied.
    """

    def __init__(self, ranges: Sequence[tuple[int, int]]):
        self.ranges = tuple(ranges)
        self._vectors = [self._fresh(), self._fresh()]
        self._next = 0
        self._waiting: dict[int, tuple[tuple, int]] = {}
        self._posted: dict[int, int] = {}

    def channels(self, servers: Sequence[int], kind: Kind) -> list[Channel]:
        """The channels on which slices of `servers` are received in place, as messages of `kind`."""
        return [
            Channel(process, kind, stop - start, into=functools.partial(self.destination, shard))
            for shard, (process, (start, stop)) in enumerate(zip(servers, self.ranges, strict=True))
        ]

    def destination(self, shard: int) -> np.ndarray:
        """The memory <float32>[stop - start] in which to receive the next slice of `shard`."""
        which = 1 - self._waiting[shard][1] if shard in self._waiting else self._next
        self._posted[shard] = which
        return self._slice(which, shard)

    def add(self, key: tuple, shard: int, payload: np.ndarray) -> np.ndarray | None:
        """Adds one slice; returns the whole vector <float32>[N], read-only, when all shards' slices have the same key.

        Args:
            key: identifies the version; slices with equal keys belong together.
            shard: index of the slice's shard.
            payload: <float32>[stop - start].
        """
        if len(self.ranges) == 1 and not payload.flags.writeable:
            return payload  # from this same process: it is the whole vector, and nobody will write to it
        which = self._posted.get(shard, self._next)
        if not np.may_share_memory(payload, self._vectors[which]):
            self._slice(which, shard)[:] = payload
        self._waiting[shard] = (key, which)
        if len(self._waiting) < len(self.ranges) or any(k != key for k, _ in self._waiting.values()):
            return None
        if all(where == which for _, where in self._waiting.values()):
            parameters, self._vectors[which] = self._vectors[which], self._fresh()
            self._next = 1 - which
        else:  # a shard skipped a version, so receives are posted in both vectors: hand out neither of them
            parameters = np.concatenate([self._slice(self._waiting[s][1], s) for s in range(len(self.ranges))])
        self._waiting.clear()
        parameters.flags.writeable = False
        return parameters

    def missing(self) -> list[int]:
        """The shards whose slices of the newest version have not arrived yet."""
        newest = max((key for key, _ in self._waiting.values()), default=None)
        return [s for s in range(len(self.ranges)) if s not in self._waiting or self._waiting[s][0] != newest]

    def _slice(self, which: int, shard: int) -> np.ndarray:
        start, stop = self.ranges[shard]
        return self._vectors[which][start:stop]

    def _fresh(self) -> np.ndarray:
        return empty_vector(self.ranges[-1][1])


class WorkerClient:
    """Sends a worker's gradients and assembles the versions that come back.

    Args:
        worker: id of this worker.
        servers: process of each shard, by shard index.
        ranges: [start, stop) of each shard in the flat vector.
        asynchronous: whether each shard applies a gradient when it arrives and answers this worker alone, so that the
            shards' versions may differ.
        clip_norm: clip each gradient to this global norm (0: off). It is used if gradients are not averaged, and the
            gradient is clipped here because servers see only slices of it.
        statistics: position of the running statistics in a gradient, which are not clipped; None if there are none.
    """

    def __init__(
        self,
        worker: int,
        servers: Sequence[int],
        ranges: Sequence[tuple[int, int]],
        asynchronous: bool = False,
        clip_norm: float = 0.0,
        statistics: Statistics | None = None,
    ):
        self.worker, self.servers, self.asynchronous = worker, tuple(servers), asynchronous
        self.clip_norm, self.statistics = clip_norm, statistics
        self.snapshot: Snapshot | None = None
        self.flags = Flag.NONE  # of the newest snapshot
        self.dropped = 0
        self.assembler = Assembler(ranges)
        self._versions: dict[int, int] = {}  # shard -> version of its newest slice
        self._of_snapshot: dict[int, int] = {}  # the same of the slices in the snapshot

    def submit(self, gradient: np.ndarray, step: int, version: int, samples: int, finite: bool) -> list[Message]:
        """Returns the messages that carry a gradient to the shards.

        A gradient for a step that is closed already is dropped here, and counted. With asynchronous updates, each shard
        gets the version of its own slice of the parameters, by which it judges how old the gradient is.

        Args:
            gradient: <float32>[N].
            step: the step that the gradient is for.
            version: version of the parameters at which it was taken.
            samples: number of data-points in it.
            finite: whether the gradient and its norm are finite.
        """
        if self.snapshot is None or step != self.snapshot.step:
            self.dropped += 1
            return []
        flags = Flag.FINITE if finite else Flag.NONE
        header = Header(Kind.GRADIENT, sender=self.worker, step=step, version=version, flags=flags, count=samples)
        headers = [header] * len(self.servers)
        if self.asynchronous and version == self.snapshot.version:  # else newer parameters acted, see REFRESH
            headers = [header._replace(version=self._of_snapshot[shard]) for shard in range(len(self.servers))]
        gradient, parts = self._clipped(gradient), zip(self.servers, headers, self.assembler.ranges, strict=True)
        return [Message(process, header, gradient[a:b]) for process, header, (a, b) in parts]

    def handle(self, header: Header, payload: np.ndarray) -> Snapshot | None:
        """Takes a PARAMETERS message; returns the new snapshot when a version is complete.

        Args:
            header: header of the message.
            payload: <float32>[stop - start], its sender's slice.
        """
        stop = header.flags & Flag.STOP  # always the last message: it may repeat the newest version
        if self.snapshot is not None and header.step <= self.snapshot.step and not stop:
            return None
        # The key has `stop`, because one shard's STOP may have the same step as another shard's parameters from before
        # its STOP, and those two must not be joined.
        key = (header.step, -1 if self.asynchronous else header.version, header.members, int(stop))
        self._versions[header.sender] = header.version
        parameters = self.assembler.add(key, header.sender, payload)
        if parameters is None:
            return None
        self.flags = header.flags
        # With asynchronous updates the shards' versions differ, and parameters are as old as their oldest slice.
        self._of_snapshot = dict(self._versions)
        self.snapshot = Snapshot(min(self._versions.values()), header.step, parameters)
        return self.snapshot

    def _clipped(self, gradient: np.ndarray) -> np.ndarray:
        if not self.clip_norm:
            return gradient
        norm = math.sqrt(squared_norm(gradient, self.statistics))
        clipped = gradient * np.float32(self.clip_norm / norm) if norm > self.clip_norm else gradient
        if self.statistics is not None and clipped is not gradient:
            self.statistics.of(clipped)[:] = self.statistics.of(gradient)
        return clipped


class Reader:
    """Fetches a published version; used by the evaluator and by the actors of Ape-X.

    If shards publish every update, their newest versions may differ when they answer. The reader first asks the shards
    that are behind once more. If that takes longer than two updates, their versions differ again, and this could go on
    forever. So it then asks all shards for one version that is still to come, and each of them waits for it. How far
    ahead that version is doubles with each further attempt, and halves when a version arrives whole.

    Args:
        servers: process of each shard, by shard index.
        ranges: [start, stop) of each shard in the flat vector.

    Attributes:
        latest: the newest version that was read from all shards; None before the first.
    """

    def __init__(self, servers: Sequence[int], ranges: Sequence[tuple[int, int]]):
        self.servers = tuple(servers)
        self.wanted = -1
        self.assembler = Assembler(ranges)
        self._newest: dict[int, int] = {}
        self.latest: Snapshot | None = None
        self._again = False  # whether the shards that are behind were asked once more
        self._ahead = 1  # updates from the newest version to the one that all shards are asked for

    def fetch(self, version: int) -> list[Message]:
        """Asks every shard for `version`; a shard that has it no longer sends its newest version instead."""
        self.wanted, self._again = version, False
        self._newest.clear()
        return [self._request(process) for process in self.servers]

    def handle(self, header: Header, payload: np.ndarray) -> tuple[list[Message], Snapshot | None]:
        """Takes a PUBLISHED message; if all shards have answered and their versions differ, asks again.

        Args:
            header: header of the message.
            payload: <float32>[stop - start], its sender's slice.

        Returns:
            messages to send, and the new snapshot if a version is complete.
        """
        self._newest[header.sender] = header.version
        parameters = self.assembler.add((header.version,), header.sender, payload)
        if parameters is not None:
            self._newest.clear()
            self._ahead = max(1, self._ahead // 2)
            self.latest = Snapshot(header.version, -1, parameters)
            return [], self.latest
        if len(self._newest) < len(self.servers):
            return [], None
        return self._ask_again(max(self._newest.values())), None

    def _ask_again(self, newest: int) -> list[Message]:
        if self._again:
            self._ahead *= 2
            self.wanted = newest + self._ahead
            self._newest.clear()
            return [self._request(process) for process in self.servers]
        self._again, self.wanted = True, newest
        behind = [shard for shard, version in self._newest.items() if version < newest]
        for shard in behind:
            del self._newest[shard]
        return [self._request(self.servers[shard]) for shard in behind]

    def _request(self, process: int) -> Message:
        return Message(process, Header(Kind.FETCH, version=self.wanted))
