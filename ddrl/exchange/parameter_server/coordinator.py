"""The chief's part of the exchange as a state machine: it closes steps, and nothing else.

A step is closed on the intersection of what all shards hold, so that every shard averages the same set of
workers; see `Quorum` for when. A step with a gradient that is not finite is refused as a whole.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

from ddrl.exchange.messages import Flag, Header, Kind, Message
from ddrl.exchange.sharding import from_bitmap, to_bitmap


@dataclasses.dataclass(frozen=True)
class Quorum:
    """When a synchronous step closes.

    Attributes:
        gradients: close as soon as this many workers' gradients are on all shards (0: all live workers).
            More than that many may be averaged, if they are there. The rest are backup workers.
        deadline_seconds: close with at least one gradient this long after the first (0: never).
    """

    gradients: int = 0
    deadline_seconds: float = 0.0

    def needed(self, live: int) -> int:
        """Gradients that close a step while `live` workers live."""
        return min(self.gradients, live) if self.gradients else live


@dataclasses.dataclass(frozen=True)
class Closed:
    """What the chief did with a step.

    Attributes:
        step: the slot that was closed.
        version: updates applied so far, this one included.
        members: worker ids whose gradients were averaged.
        samples: data-points behind them.
        refused: worker ids whose gradient was not finite; not empty means that the step was skipped.
        norm: norm of the averaged gradient before clipping (NaN where it was not computed).
        flags: of the COMMIT.
    """

    step: int
    version: int
    members: tuple[int, ...]
    samples: int
    refused: tuple[int, ...]
    norm: float
    flags: Flag


class Coordinator:
    """Decides each step's members, its learning rate, its clip scale and its flags.

    Args:
        shards: process of each shard, by shard index.
        workers: ids of the workers that train.
        learning_rate: version -> learning rate of the update that leads to the next one.
        clip_norm: clip the averaged gradient to this global norm (0: off).
    """

    def __init__(
        self,
        shards: Sequence[int],
        workers: Iterable[int],
        quorum: Quorum,
        learning_rate: Callable[[int], float],
        *,
        clip_norm: float = 0.0,
        step: int = 0,
        version: int = 0,
        asynchronous: bool = False,
    ):
        self.shards, self.live, self.quorum = tuple(shards), set(workers), quorum
        self.learning_rate, self.clip_norm = learning_rate, clip_norm
        self.step, self.version, self.asynchronous = step, version, asynchronous
        self.refused_steps = 0
        self.stopped = False
        self._flags = Flag.NONE
        self._sent_rate = learning_rate(version)
        self._have: dict[int, Header] = {}
        self._first_have: float | None = None
        self._asked_norms: int | None = None
        self._norms: dict[int, Header] = {}

    @property
    def takes_requests(self) -> bool:
        """Whether flags that are asked for now go with the update that is under way."""
        return True

    @property
    def has_requests(self) -> bool:
        """Whether flags wait for the next COMMIT."""
        return bool(self._flags)

    def missing(self) -> list[int]:
        """Processes of the shards that have not reported for the current step."""
        return [process for shard, process in enumerate(self.shards) if shard not in self._have]

    def publish(self) -> None:
        """Has the next version published: every shard keeps its slice for readers, who fetch whole versions only."""
        self.request(Flag.PUBLISH)

    def request(self, flags: Flag) -> None:
        """Adds flags (PUBLISH, CHECKPOINT, STOP) to the next COMMIT."""
        self._flags |= flags

    def worker_lost(self, worker: int) -> list[Message]:
        """Takes a dead worker out of the quorum; its gradient counts still if all shards hold it."""
        self.live.discard(worker)
        return [] if self.asynchronous else self.expect()

    def expect(self) -> list[Message]:
        """Tells the shards from how many gradients on they are to report."""
        return [Message(p, Header(Kind.EXPECT, step=self.step, count=self._reportable())) for p in self.shards]

    def handle(self, header: Header, now: float) -> list[Closed]:
        """Takes a HAVE or NORM. Asynchronous mode: each HAVE is an update that has happened already."""
        if self.asynchronous:
            return [self._applied(header)]
        if header.step == self.step:
            if header.kind == Kind.NORM:
                self._norms[header.sender] = header
            else:
                self._have[header.sender] = header
                if self._first_have is None:
                    self._first_have = now
        return []

    def poll(self, now: float) -> tuple[list[Message], Closed | None]:
        """Closes the step if its rule allows it; otherwise returns what is still to be asked, if anything."""
        if self.asynchronous or self.stopped:
            return [], None
        members = self._asked_norms if self._asked_norms is not None else self._members(now)
        if not members:
            return [], None
        refused = members & self._union("refused")
        squared_norm = float("nan")
        if self.clip_norm and not refused:
            known = self._squared_norms(members)
            if len(known) < len(self.shards):
                return self._ask_norms(members), None
            squared_norm = math.fsum(known)
        return self._close(members, refused, squared_norm)

    def rate_is_old(self) -> bool:
        """Asynchronous mode: whether the rate that the shards apply differs by 1% from the schedule's."""
        now = self.learning_rate(self.version)
        return abs(now - self._sent_rate) > 0.01 * abs(self._sent_rate)

    def close_empty(self) -> tuple[list[Message], Closed]:
        """Sends the requested flags now, closing no step: at a stop, or in asynchronous mode at any time."""
        messages = self._commits(self._take_flags() | Flag.COMMAND, members=0, scale=1.0)
        return messages, Closed(self.step, self.version, (), 0, (), float("nan"), messages[0].header.flags)

    def _reportable(self) -> int:
        return 1 if self.quorum.deadline_seconds else max(1, self.quorum.needed(len(self.live)))

    def _union(self, field: str) -> int:
        bits = 0
        for header in self._have.values():
            bits |= getattr(header, field)
        return bits

    def _members(self, now: float) -> int:
        """The intersection of what all shards hold, if that is enough to close the step; else 0."""
        if len(self._have) < len(self.shards):
            return 0
        common = -1
        for header in self._have.values():
            common &= header.members
        there = common & to_bitmap(self.live)
        enough = there.bit_count() >= max(1, self.quorum.needed(len(self.live)))
        deadline = self.quorum.deadline_seconds
        late = deadline and self._first_have is not None and now - self._first_have >= deadline
        return common if enough or (late and common) else 0

    def _squared_norms(self, members: int) -> list[float]:
        known = {}
        for answers in (self._have, self._norms):
            for shard, header in answers.items():
                if header.members == members and not math.isnan(header.value):
                    known[shard] = header.value
                elif answers is self._norms and header.members == members:
                    known[shard] = header.value  # the average itself is NaN: the step will be refused
        return list(known.values())

    def _ask_norms(self, members: int) -> list[Message]:
        if self._asked_norms is not None:
            return []
        self._asked_norms = members
        header = Header(Kind.NORM_REQUEST, step=self.step, members=members)
        return [Message(process, header) for process in self.shards]

    def _close(self, members: int, refused: int, squared_norm: float) -> tuple[list[Message], Closed]:
        norm = math.sqrt(squared_norm) if squared_norm >= 0 else float("nan")
        overflow = bool(self.clip_norm) and not refused and not math.isfinite(squared_norm)
        skip = bool(refused) or overflow
        scale = self.clip_norm / norm if self.clip_norm and not skip and norm > self.clip_norm else 1.0
        flags = self._take_flags() | (Flag.SKIP if skip else Flag.NONE)
        messages = self._commits(flags, members, scale)
        samples = self._samples(members)
        self.refused_steps += skip
        self.version += not skip
        closed = Closed(
            self.step,
            self.version,
            from_bitmap(members),
            samples,
            from_bitmap(members if overflow else refused),
            norm,
            flags,
        )
        self.step += 1
        self._have.clear()
        self._norms.clear()
        self._first_have = self._asked_norms = None
        return messages, closed

    def _samples(self, members: int) -> int:
        """Data-points behind `members`: exact where a shard held just them, else in proportion."""
        held = next((h for h in self._have.values() if h.members == members), next(iter(self._have.values())))
        return round(held.count * members.bit_count() / held.members.bit_count())

    def _take_flags(self) -> Flag:
        flags, self._flags = self._flags, Flag.NONE
        self.stopped = self.stopped or bool(flags & Flag.STOP)
        return flags

    def _commits(self, flags: Flag, members: int, scale: float) -> list[Message]:
        self._sent_rate = self.learning_rate(self.version)
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
        return [Message(process, header) for process in self.shards]

    def _applied(self, header: Header) -> Closed:
        self.step += 1
        self.version = max(self.version, header.version)
        self.refused_steps += bool(header.refused)
        members = () if header.flags & Flag.SKIP else from_bitmap(header.members)
        samples = 0 if header.flags & Flag.SKIP else header.count
        return Closed(
            header.step, self.version, members, samples, from_bitmap(header.refused), float("nan"), header.flags
        )
