"""A parameter server's shard as a state machine: messages in, messages out; no process, clock or MPI here.

Synchronous: it holds the gradients of the current step, tells the chief whose they are (HAVE), and
averages exactly the members that the chief commits, in the order of their worker ids, so that all shards
apply the same set and the result does not depend on arrival (Adamski et al. 2018, section 2.3.3, with the
backup workers of Chen et al. 2016). Asynchronous: it applies each gradient on arrival (section 2.3.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ddrl.exchange.averaging import average_of
from ddrl.exchange.messages import Flag, Header, Kind, Message
from ddrl.exchange.published import Published
from ddrl.exchange.sharding import from_bitmap, to_bitmap
from ddrl.exchange.vectors import empty_vector

if TYPE_CHECKING:
    from ddrl.exchange.optimizers import Optimizer


class Shard:
    """One slice of the parameters and the optimizer on it.

    Args:
        index: of this shard among the servers.
        size: float32 values in the slice.
        optimizer: applies an averaged gradient in place.
        workers: process of each worker, by worker id.
        chief: process of the chief.
        asynchronous: apply each gradient on arrival.
        needs_norm: send the squared norm with every HAVE, because the chief clips by it.
        max_staleness: asynchronous: drop gradients more than this many versions old (0: unbounded).
        delay: versions by which a gradient may trail the step's version, as the schedule declares.
    """

    def __init__(
        self,
        index: int,
        size: int,
        optimizer: Optimizer,
        workers: Mapping[int, int],
        chief: int,
        *,
        asynchronous: bool = False,
        needs_norm: bool = False,
        max_staleness: int = 0,
        delay: int = 0,
    ):
        self.index, self.optimizer, self.chief = index, optimizer, chief
        self.workers = dict(workers)
        self.asynchronous, self.needs_norm = asynchronous, needs_norm
        self.max_staleness, self.delay = max_staleness, delay
        self.parameters = np.zeros(size, np.float32)
        self.step = self.version = 0
        self.learning_rate = float("nan")
        self.loaded = False
        self.stopped = False
        self.expected = len(self.workers)
        self.dropped = 0
        self.accepted = 0  # updates that were computed ahead
        self._next_rate = float("nan")
        self._prepared: tuple[tuple[int, float, float], np.ndarray] | None = None
        self._held: dict[int, tuple[Header, np.ndarray]] = {}
        self._average: tuple[int, np.ndarray, float] | None = None  # members, their average, its squared norm
        self._sum = np.empty(size if needs_norm else 0, np.float32)
        self._published = Published(index)

    @property
    def held(self) -> int:
        """Bitmap of the workers whose gradient for the current step is here."""
        return to_bitmap(self._held)

    def handle(self, peer: int, header: Header, payload: np.ndarray | None) -> list[Message]:
        """Takes one message and returns the messages that answer it.

        A gradient's payload stays referenced until the step is committed.
        """
        if header.kind == Kind.GRADIENT:
            return self._on_gradient(header, payload)
        if header.kind == Kind.COMMIT:
            return self._on_commit(header)
        if header.kind == Kind.NORM_REQUEST:
            return [self._norm(Kind.NORM, header.members)]
        if header.kind == Kind.EXPECT:
            self.expected = header.count
            return self._have()
        if header.kind == Kind.FETCH:
            return self._published.fetch(peer, header.version)
        if header.kind == Kind.LOAD:
            return self._on_load(header, payload)
        raise ValueError(f"shard {self.index} cannot handle a {header.kind.name}")

    def work_ahead(self) -> None:
        """Computes the update that is to be expected, while the chief has not yet committed it.

        It is done when all workers' gradients are here and finite; a COMMIT of something else discards it.
        """
        whole = len(self._held) == len(self.workers) > 0
        if self.asynchronous or self.needs_norm or self.stopped or self._prepared is not None or not whole:
            return
        if all(header.flags & Flag.FINITE for header, _ in self._held.values()):
            members, scale = self.held, 1.0 / len(self._held)
            parameters = self.optimizer.prepare(self.parameters, self._gradients(members), self._next_rate, scale)
            parameters.flags.writeable = False
            self._prepared = (members, self._next_rate, scale), parameters

    def publish(self) -> list[Message]:
        """Publishes the parameters as they are; what readers waited for."""
        return self._published.add(self.version, self.version, self.parameters)

    def worker_lost(self, worker: int) -> None:
        """Sends that worker nothing more. A gradient that is already here stays: others may hold it too."""
        self.workers.pop(worker, None)

    def _on_load(self, header: Header, payload: np.ndarray) -> list[Message]:
        parts = payload.reshape(1 + len(self.optimizer.slots), -1)
        self.parameters = parts[0].copy()
        for slot, values in zip(self.optimizer.slots.values(), parts[1:], strict=True):
            slot[:] = values
        self.optimizer.count = header.count
        self.step, self.version = header.step, header.version
        self.learning_rate = self._next_rate = header.value
        self.loaded = True
        return self._parameters_to(self.workers, Flag.NONE, members=0)

    def _on_gradient(self, header: Header, payload: np.ndarray) -> list[Message]:
        if self.asynchronous:
            return self._apply_on_arrival(header, payload)
        late = header.step != self.step or header.version != max(0, self.version - self.delay)
        if late or self.stopped:
            self.dropped += 1
            return []
        self._held[header.sender] = (header, payload)
        return self._have()

    def _have(self) -> list[Message]:
        if self.asynchronous or not self._held or len(self._held) < self.expected:
            return []
        return [self._norm(Kind.HAVE, self.held) if self.needs_norm else self._report(Kind.HAVE, self.held)]

    def _report(self, kind: Kind, members: int, squared_norm: float = float("nan")) -> Message:
        refused = to_bitmap(w for w, (h, _) in self._held.items() if not h.flags & Flag.FINITE)
        samples = sum(h.count for h, _ in self._held.values())
        header = Header(
            kind,
            sender=self.index,
            step=self.step,
            version=self.version,
            count=samples,
            value=squared_norm,
            members=members,
            refused=refused,
        )
        return Message(self.chief, header)

    def _norm(self, kind: Kind, members: int) -> Message:
        if self._average is None or self._average[0] != members:
            self._average = (members, *average_of(self._gradients(members), out=self._sum))
        return self._report(kind, members, self._average[2])

    def _gradients(self, members: int) -> list[np.ndarray]:
        return [self._held[worker][1] for worker in from_bitmap(members)]

    def _on_commit(self, header: Header) -> list[Message]:
        self.learning_rate = header.value
        if header.flags & Flag.COMMAND:
            return self._command(header)
        if header.step != self.step:
            raise ValueError(f"shard {self.index} is at step {self.step}; the chief commits {header.step}")
        skip = bool(header.flags & Flag.SKIP)
        if not skip:
            self._commit(header.members, header.value, header.scale / header.members.bit_count())
        self._prepared = None
        self._next_rate = header.value if skip else header.ahead
        self.dropped += (self.held & ~header.members).bit_count()
        self._held.clear()
        self._average = None
        self.step += 1
        self.expected = header.count
        return self._parameters_to(self.workers, header.flags, header.members) + self._side_effects(header)

    def _commit(self, members: int, learning_rate: float, scale: float) -> None:
        if self._prepared is not None and self._prepared[0] == (members, learning_rate, scale):
            self.optimizer.accept()
            self.parameters = self._prepared[1]
            self.version += 1
            self.accepted += 1
        elif self._average is not None and self._average[0] == members:
            self._apply([self._average[1]], learning_rate, scale * members.bit_count())
        else:
            self._apply(self._gradients(members), learning_rate, scale)

    def _apply(self, gradients: list[np.ndarray], learning_rate: float, scale: float) -> None:
        """The next version, in a new array: the old one may still be on its way to a straggler or a reader."""
        parameters = empty_vector(self.parameters.size)
        self.optimizer.apply(self.parameters, gradients, learning_rate, scale, out=parameters)
        parameters.flags.writeable = False
        self.parameters = parameters
        self.version += 1

    def _command(self, header: Header) -> list[Message]:
        """Flags without a step: the asynchronous mode's only COMMIT, and the last one of a run without gradients."""
        answers = self._parameters_to(self.workers, header.flags, 0) if header.flags & Flag.STOP else []
        return answers + self._side_effects(header)

    def _side_effects(self, header: Header) -> list[Message]:
        messages = []
        self.stopped = self.stopped or bool(header.flags & Flag.STOP)
        if header.flags & Flag.CHECKPOINT:
            everything = np.concatenate([self.parameters, *self.optimizer.slots.values()])
            snapshot = Header(
                Kind.SNAPSHOT, sender=self.index, step=self.step, version=self.version, count=self.optimizer.count
            )
            messages.append(Message(self.chief, snapshot, everything))
        if header.flags & Flag.PUBLISH:
            # In asynchronous mode shards differ in version: a publication carries the chief's number for it.
            name = header.version if self.asynchronous else self.version
            messages += self._published.add(name, self.version, self.parameters)
        return messages

    def _parameters_to(self, workers: Mapping[int, int], flags: Flag, members: int) -> list[Message]:
        header = Header(
            Kind.PARAMETERS,
            sender=self.index,
            step=self.step,
            version=self.version,
            flags=flags & (Flag.SKIP | Flag.CHECKPOINT | Flag.STOP | Flag.REFRESH),
            members=members,
        )
        return [Message(process, header, self.parameters, newest_only=True) for process in workers.values()]

    def _refuses(self, header: Header) -> bool:
        """Asynchronous: whether a gradient is too old, or not finite."""
        too_old = self.max_staleness > 0 and self.version - header.version > self.max_staleness
        return too_old or not header.flags & Flag.FINITE

    def _apply_on_arrival(self, header: Header, payload: np.ndarray) -> list[Message]:
        staleness = self.version - header.version
        if self.stopped:
            return []
        flags = Flag.NONE
        if self._refuses(header):
            self.dropped += 1
            flags = Flag.SKIP
        else:
            self._apply([payload], self.learning_rate, 1.0)
        worker = header.sender
        if worker not in self.workers:
            return []
        # The worker matches its shards' answers by its own step: versions differ between shards here.
        reply = Header(Kind.PARAMETERS, sender=self.index, step=header.step + 1, version=self.version, flags=flags)
        refused = 0 if header.flags & Flag.FINITE else to_bitmap([worker])
        status = Header(
            Kind.HAVE,
            sender=self.index,
            step=header.step,
            version=self.version,
            count=header.count,
            value=float(staleness),
            members=to_bitmap([worker]),
            refused=refused,
            flags=flags,
        )
        answers = [Message(self.workers[worker], reply, self.parameters, newest_only=True)]
        if self.index == 0:
            answers.append(Message(self.chief, status))
        return answers
