"""A parameter server's shard as a state machine, which takes and returns messages, and knows no process, clock or MPI.

With synchronous updates, it holds the gradients of the current step, tells the chief whose they are (READY), and
averages exactly those of the members that the chief commits, in the order of their worker ids. So all shards apply the
same gradients, and the result does not depend on the order of arrival (Adamski et al. 2018, section 2.3.3, with the
backup workers of Chen et al. 2016). With asynchronous updates, it applies each gradient on arrival (section 2.3.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ddrl.exchange.asynchronous import refuses, report
from ddrl.exchange.averaging import average_of
from ddrl.exchange.interface import Due, Server, everything, load
from ddrl.exchange.messages import TO_WORKER, Flag, Header, Kind, Message, Payload
from ddrl.exchange.published import Published
from ddrl.exchange.sharding import from_bitmap, to_bitmap
from ddrl.exchange.transport import Channel
from ddrl.exchange.vectors import empty_vector

if TYPE_CHECKING:
    from ddrl.exchange.optimizers import Optimizer


class ServerShard(Server):
    """The server of one slice of the parameters, with the optimizer that updates it.

    Args:
        index: index of this shard among the servers.
        size: float32 values in the slice.
        optimizer: the slice's optimizer; each update writes the new parameters to a new array.
        workers: process of each worker, by worker id.
        chief: process of the chief.
        asynchronous: whether to apply each gradient on arrival.
        needs_norm: whether to send the squared norm with every READY, because the chief clips by it.
        max_staleness: with asynchronous updates, drop gradients more than this many versions old (0: no limit).

    Attributes:
        dropped: number of gradients that came too late or, with asynchronous updates, were too old or not finite.
    """

    role = "parameter_server"
    activities = {
        Kind.GRADIENT: "receive",
        Kind.COMMIT: "apply",
        Kind.NORM_REQUEST: "receive",
        Kind.EXPECT: "receive",
        Kind.FETCH: "receive",
        Kind.LOAD: "receive",
    }

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
    ):
        self.index, self.optimizer, self.chief = index, optimizer, chief
        self.workers = dict(workers)
        self.asynchronous, self.needs_norm = asynchronous, needs_norm
        self.max_staleness = max_staleness
        self.parameters = np.zeros(size, np.float32)
        self.learning_rate = float("nan")
        self.expected = len(self.workers)
        self.dropped = 0
        self._next_rate = float("nan")
        self._prepared: tuple[tuple[int, float, float], np.ndarray] | None = None
        self._held: dict[int, tuple[Header, np.ndarray]] = {}
        self._average: tuple[int, np.ndarray, float] | None = None  # members, their average, its squared norm
        self._sum = np.empty(size if needs_norm else 0, np.float32)
        self._published = Published(index)
        self._early: list[Header] = []  # orders that overtook the LOAD, whose payload takes longer

    @property
    def held(self) -> int:
        """Bitmap of the workers whose gradients for the current step this shard holds."""
        return to_bitmap(self._held)

    def channels(self, readers: Sequence[int]) -> list[Channel]:
        size, slots = self.parameters.size, len(self.optimizer.slots)
        gradients = [Channel(process, Kind.GRADIENT, size) for process in self.workers.values()]
        orders = [Channel(self.chief, Kind.COMMIT), Channel(self.chief, Kind.LOAD, (1 + slots) * size)]
        return gradients + orders + [Channel(process, Kind.FETCH) for process in readers]

    def handle(self, peer: int, header: Header, payload: Payload) -> list[Message]:
        if header.kind == Kind.GRADIENT:
            return self._on_gradient(header, payload)
        if header.kind == Kind.COMMIT:
            return self._on_commit(header)
        if header.kind == Kind.NORM_REQUEST:
            return [self._norm(Kind.NORM, header.members)]
        if header.kind == Kind.EXPECT:
            self.expected = header.count
            return self._ready()
        if header.kind == Kind.FETCH:
            return self._published.fetch(peer, header.version)
        if header.kind == Kind.LOAD:
            return self._on_load(header, payload)
        raise ValueError(f"shard {self.index} cannot handle a {header.kind.name}")

    def work_ahead(self) -> None:
        """Computes the update that the chief will most likely commit, before its COMMIT arrives.

        It does so if the gradients of all workers are here and finite. A COMMIT that differs discards this update.
        """
        whole = len(self._held) == len(self.workers) > 0
        if self.asynchronous or self.needs_norm or self.stopped or self._prepared is not None or not whole:
            return
        if all(header.flags & Flag.FINITE for header, _ in self._held.values()):
            members, scale = self.held, 1.0 / len(self._held)
            parameters = self.optimizer.prepare(self.parameters, self._gradients(members), self._next_rate, scale)
            parameters.flags.writeable = False
            self._prepared = (members, self._next_rate, scale), parameters

    def worker_lost(self, worker: int) -> list[Message]:
        """Sends a dead worker nothing more. Its gradient stays, if it is here: the other shards may hold it, too."""
        self.workers.pop(worker, None)
        return []

    def advance(self, now: float) -> list[Message]:
        self.work_ahead()
        return []

    def due(self) -> bool:
        return True  # a gradient may come at any time

    def waits(self) -> Due | None:
        if self.asynchronous:
            gradient = f"a gradient after version {self.version} ({self.dropped} dropped)"
            return Due(gradient, (*self.workers.values(),), may_compile=True)
        absent = tuple(process for worker, process in self.workers.items() if not self.held >> worker & 1)
        if self.held.bit_count() >= max(1, self.expected) or not absent:
            return Due(f"the decision on step {self.step}", (self.chief,))
        return Due(f"gradients of step {self.step}", absent)

    def counts(self) -> dict[str, int]:
        """Counts dropped gradients in shard 0 only, because all shards drop nearly the same ones."""
        return {"gradients_dropped": self.dropped} if self.index == 0 else {}

    def _on_load(self, header: Header, payload: np.ndarray) -> list[Message]:
        self.parameters = load(payload, header, self.optimizer)
        self.step, self.version = header.step, header.version
        self.learning_rate = self._next_rate = header.value
        self.loaded = True
        published = self._published.add(self.version, self.version, self.parameters)
        messages = self._to_workers(Flag.NONE, members=0) + published
        early, self._early = self._early, []
        return messages + [answer for order in early for answer in self._on_commit(order)]

    def _on_gradient(self, header: Header, payload: np.ndarray) -> list[Message]:
        if self.asynchronous:
            return self._apply_on_arrival(header, payload)
        late = header.step != self.step or header.version != self.version
        if late or self.stopped:
            self.dropped += 1
            return []
        self._held[header.sender] = (header, payload)
        return self._ready()

    def _ready(self) -> list[Message]:
        if self.asynchronous or not self._held or len(self._held) < self.expected:
            return []
        return [self._norm(Kind.READY, self.held) if self.needs_norm else self._report(Kind.READY, self.held)]

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
            average = average_of(self._gradients(members), out=self._sum, statistics=self.optimizer.statistics)
            self._average = (members, *average)
        return self._report(kind, members, self._average[2])

    def _gradients(self, members: int) -> list[np.ndarray]:
        return [self._held[worker][1] for worker in from_bitmap(members)]

    def _on_commit(self, header: Header) -> list[Message]:
        if not self.loaded:  # there is nothing to save or to publish yet, and nothing to send at the end
            self._early.append(header)
            return []
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
        return self._to_workers(header.flags, header.members) + self._side_effects(header)

    def _commit(self, members: int, learning_rate: float, scale: float) -> None:
        if self._prepared is not None and self._prepared[0] == (members, learning_rate, scale):
            self.optimizer.accept()
            self.parameters = self._prepared[1]
            self.version += 1
        elif self._average is not None and self._average[0] == members:
            self._apply([self._average[1]], learning_rate, scale * members.bit_count())
        else:
            self._apply(self._gradients(members), learning_rate, scale)

    def _apply(self, gradients: list[np.ndarray], learning_rate: float, scale: float) -> None:
        """Makes the next version in a new array, since the old one may still be on its way to a straggler or reader."""
        parameters = empty_vector(self.parameters.size)
        self.optimizer.apply(self.parameters, gradients, learning_rate, scale, out=parameters)
        parameters.flags.writeable = False
        self.parameters = parameters
        self.version += 1

    def _command(self, header: Header) -> list[Message]:
        """Carries out a COMMIT that has flags and closes no step.

        With asynchronous updates every COMMIT is of this sort; with synchronous ones, only that of a run that ends
        without another step.
        """
        answers = self._to_workers(header.flags, members=0) if header.flags & Flag.STOP else []
        return answers + self._side_effects(header)

    def _side_effects(self, header: Header) -> list[Message]:
        messages: list[Message] = []
        self.stopped = self.stopped or bool(header.flags & Flag.STOP)
        if header.flags & Flag.CHECKPOINT:
            snapshot = Header(
                Kind.SNAPSHOT, sender=self.index, step=self.step, version=self.version, count=self.optimizer.count
            )
            messages.append(Message(self.chief, snapshot, everything(self.parameters, self.optimizer)))
        if header.flags & Flag.PUBLISH:
            # With asynchronous updates the shards' versions differ, so they publish under the chief's number.
            name = header.version if self.asynchronous else self.version
            messages += self._published.add(name, self.version, self.parameters)
        return messages

    def _to_workers(self, flags: Flag, members: int) -> list[Message]:
        header = Header(
            Kind.PARAMETERS,
            sender=self.index,
            step=self.step,
            version=self.version,
            flags=flags & TO_WORKER,
            members=members,
        )
        return [Message(process, header, self.parameters, newest_only=True) for process in self.workers.values()]

    def _apply_on_arrival(self, header: Header, payload: np.ndarray) -> list[Message]:
        staleness = self.version - header.version
        if self.stopped:
            return []
        flags = Flag.NONE
        if refuses(header, self.version, self.max_staleness):
            self.dropped += 1
            flags = Flag.SKIP
        else:
            self._apply([payload], self.learning_rate, 1.0)
        worker = header.sender
        if worker not in self.workers:
            return []
        # The worker joins the shards' answers by its own step, since their versions differ here.
        reply = Header(Kind.PARAMETERS, sender=self.index, step=header.step + 1, version=self.version, flags=flags)
        answers = [Message(self.workers[worker], reply, self.parameters, newest_only=True)]
        if self.index == 0:
            answers.append(Message(self.chief, report(header, self.version, staleness, flags)))
        return answers
