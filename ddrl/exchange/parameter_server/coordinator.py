"""The chief's part of synchronous updates by parameter servers, as a state machine that closes steps.

A step is closed on the intersection of what all shards hold, so that every shard averages the gradients of the same
workers; `Quorum` says when. A step with a gradient that is not finite is refused as a whole.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ddrl.exchange.averaging import refused_by
from ddrl.exchange.interface import Closed, Coordinator
from ddrl.exchange.messages import Flag, Header, Kind, Message
from ddrl.exchange.sharding import from_bitmap, to_bitmap


@dataclasses.dataclass(frozen=True)
class Quorum:
    """The rule that says when a synchronous step closes.

    Attributes:
        gradients: close as soon as all shards have the gradients of this many workers (0: of all live workers). If more
            are there, they are averaged, too. The other workers are backup workers.
        deadline_seconds: close this long after the first report, with at least one gradient (0: no deadline).
    """

    gradients: int = 0
    deadline_seconds: float = 0.0

    def needed(self, live: int) -> int:
        """The number of gradients that close a step when `live` workers are alive."""
        return min(self.gradients, live) if self.gradients else live


class QuorumCoordinator(Coordinator):
    """Decides each step's members, its learning rate, its clip scale and its flags.

    Args:
        servers: process of each shard, by shard index.
        workers: ids of the workers that train.
        quorum: when a step closes.
        learning_rate: version -> learning rate of the update that leads to the next version.
        clip_norm: clip the averaged gradient to this global norm (0: off).
        step: the first step.
        version: number of updates before that step.
    """

    def __init__(
        self,
        servers: Sequence[int],
        workers: Iterable[int],
        quorum: Quorum,
        learning_rate: Callable[[int], float],
        *,
        clip_norm: float = 0.0,
        step: int = 0,
        version: int = 0,
    ):
        super().__init__(servers, workers, learning_rate, step=step, version=version)
        self.quorum, self.clip_norm = quorum, clip_norm
        self._ready: dict[int, Header] = {}
        self._first_ready: float | None = None
        self._asked_norms: int | None = None
        self._norms: dict[int, Header] = {}

    @property
    def next_version(self) -> int:
        return self.version + 1

    def begin(self, parameters: np.ndarray, slots: Sequence[np.ndarray], count: int) -> list[Message]:
        return super().begin(parameters, slots, count) + self.expect()

    def missing(self) -> list[int]:
        return [process for shard, process in enumerate(self.servers) if shard not in self._ready]

    def worker_lost(self, worker: int) -> list[Message]:
        """Removes a dead worker from the quorum; its gradient is still averaged if all shards hold it."""
        return super().worker_lost(worker) + self.expect()

    def expect(self) -> list[Message]:
        """Tells the shards how many gradients they must hold before they report."""
        return [Message(p, Header(Kind.EXPECT, step=self.step, count=self._reportable())) for p in self.servers]

    def handle(self, header: Header, now: float) -> list[Closed]:
        """Takes a READY or a NORM; it closes nothing, since `poll` closes the step."""
        if header.step == self.step:
            if header.kind == Kind.NORM:
                self._norms[header.sender] = header
            else:
                self._ready[header.sender] = header
                if self._first_ready is None:
                    self._first_ready = now
        return []

    def poll(self, now: float) -> tuple[list[Message], Closed | None]:
        """Closes the step if the quorum allows it; if only norms are missing for that, asks all shards once."""
        if self.stopped:
            return [], None
        members = self._asked_norms if self._asked_norms is not None else self._members(now)
        if not members:
            return [], None
        refused = members & self._union("refused")
        squared_norm = float("nan")
        if self.clip_norm and not refused:
            known = self._squared_norms(members)
            if len(known) < len(self.servers):
                return self._ask_norms(members), None
            squared_norm = math.fsum(known)
            refused = refused_by(squared_norm, members)
        return self._close(members, refused, squared_norm)

    def command(self) -> tuple[list[Message], Closed]:
        """Sends the requested flags now, without closing a step."""
        messages = self._commits(self._take_flags() | Flag.COMMAND, members=0, scale=1.0)
        return messages, Closed(self.step, self.version, (), 0, (), float("nan"), messages[0].header.flags)

    def _reportable(self) -> int:
        return 1 if self.quorum.deadline_seconds else max(1, self.quorum.needed(len(self.live)))

    def _union(self, field: str) -> int:
        bits = 0
        for header in self._ready.values():
            bits |= getattr(header, field)
        return bits

    def _members(self, now: float) -> int:
        """Bitmap of the workers whose gradients all shards hold, if they are enough to close the step; else 0."""
        if len(self._ready) < len(self.servers):
            return 0
        common = -1
        for header in self._ready.values():
            common &= header.members
        there = common & to_bitmap(self.live)
        enough = there.bit_count() >= max(1, self.quorum.needed(len(self.live)))
        deadline = self.quorum.deadline_seconds
        late = deadline and self._first_ready is not None and now - self._first_ready >= deadline
        return common if enough or (late and common) else 0

    def _squared_norms(self, members: int) -> list[float]:
        told = {s: h.value for s, h in self._ready.items() if h.members == members and not math.isnan(h.value)}
        # In a NORM, a NaN is not a missing norm, but that of an average that is NaN itself: the step will be refused.
        answered = {s: h.value for s, h in self._norms.items() if h.members == members}
        return list((told | answered).values())

    def _ask_norms(self, members: int) -> list[Message]:
        if self._asked_norms is not None:
            return []
        self._asked_norms = members
        header = Header(Kind.NORM_REQUEST, step=self.step, members=members)
        return [Message(process, header) for process in self.servers]

    def _close(self, members: int, refused: int, squared_norm: float) -> tuple[list[Message], Closed]:
        norm = math.sqrt(squared_norm) if squared_norm >= 0 else float("nan")
        skip = bool(refused)
        scale = self.clip_norm / norm if self.clip_norm and not skip and norm > self.clip_norm else 1.0
        waits = skip and self._flags & Flag.WITH_UPDATE
        flags = (Flag.NONE if waits else self._take_flags()) | (Flag.SKIP if skip else Flag.NONE)
        messages = self._commits(flags, members, scale)
        samples = self._samples(members)
        self.refused_steps += skip
        self.version += not skip
        closed = Closed(self.step, self.version, from_bitmap(members), samples, from_bitmap(refused), norm, flags)
        self.step += 1
        self._ready.clear()
        self._norms.clear()
        self._first_ready = self._asked_norms = None
        return messages, closed

    def _samples(self, members: int) -> int:
        """The number of data-points in the gradients of `members`.

        It is exact if one of the shards held just these gradients; else it is estimated in proportion.
        """
        held = next((h for h in self._ready.values() if h.members == members), next(iter(self._ready.values())))
        return round(held.count * members.bit_count() / held.members.bit_count())

    def _commits(self, flags: Flag, members: int, scale: float) -> list[Message]:
        header = Header(
            Kind.COMMIT,
            step=self.step,
            version=self.version,
            flags=flags,
            count=self._reportable(),
            value=self.learning_rate(self.version),
            ahead=self.learning_rate(self.version + 1),
            scale=scale,
            members=members,
        )
        return [Message(process, header) for process in self.servers]
