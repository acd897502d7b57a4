"""Workers of local SGD under the real protocol and a fake network, whose events happen in a random order.

Messages of one channel (sender, receiver, tag) stay in order, as in MPI. Gradients are those of a quadratic for each
worker, so that the steps of a round depend on each other.
"""

from __future__ import annotations

import random

import numpy as np

from ddrl.exchange.allreduce.coordinator import LockstepCoordinator
from ddrl.exchange.local_sgd.server import LocalSgdServer
from ddrl.exchange.messages import CHANNEL, Flag, Header, Kind, Message
from ddrl.exchange.optimizers import make_optimizer
from ddrl.exchange.statistics import Moments, packed

SIZE = 7
AT_END = Flag.STOP | Flag.CHECKPOINT | Flag.PUBLISH


def gradient(worker, theta):
    """Of worker's own loss at theta <float>[SIZE]."""
    chance = np.random.default_rng(worker)
    return chance.uniform(0.5, 2.0, theta.size) * (theta - chance.normal(size=theta.size))


class World:
    """Processes 0..W-1, each with a worker and its server; process 0 has the chief too.

    Args:
        start: (parameters, slots, count, step, version).
        last: step from which on the chief has the run end.
        bad: (worker, step) whose gradient is not finite.
        statistics: behind SIZE parameters; each gradient has seen its worker's id, once.
        end: what the chief asks for then.
    """

    def __init__(
        self,
        config,
        start,
        *,
        workers=2,
        steps=4,
        last=8,
        rate=lambda version: 0.1,
        bad=frozenset(),
        seed=0,
        statistics=None,
        end=AT_END,
    ):
        self.last, self.bad, self.end, self.chance = last, bad, end, random.Random(seed)
        self.size, self.statistics = start[0].size, statistics
        parameters, slots, count, step, version = start
        processes = {w: w for w in range(workers)}
        optimizers = [make_optimizer(config, self.size, statistics=statistics) for _ in processes]
        self.servers = [LocalSgdServer(w, processes, 0, optimizers[w], rate, steps) for w in processes]
        self.coordinator = LockstepCoordinator(0, processes, rate, step=step, version=version, updates_per_step=steps)
        self.channels: dict[tuple[int, int, int], list[Message]] = {}
        self.newest: list[Message | None] = [None] * workers  # PARAMETERS
        self.submitted = [-1] * workers
        self.seen: list[dict[int, tuple]] = [{} for _ in processes]  # step -> version and parameters
        self.told: list[Flag] = [Flag.NONE] * workers
        self.closed, self.snapshots, self.published = [], [], []
        self.dead: set[int] = set()
        self._send(0, self.coordinator.begin(parameters, slots, count))
        self._open()

    def events(self):
        """Everything that can happen next."""
        possible = [("deliver", key) for key, queue in self.channels.items() if queue and key[1] not in self.dead]
        for worker, message in enumerate(self.newest):
            if message is None or worker in self.dead or self.told[worker] & Flag.STOP:
                continue
            if message.header.step > self.submitted[worker]:
                possible.append(("submit", worker))
        return possible

    def run(self, until=lambda world: False, at_most=10_000):
        """Lets everything happen that can, at most so many events, or until a condition holds."""
        while (events := self.events()) and not until(self) and at_most:
            self.do(*self.chance.choice(events))
            at_most -= 1

    def do(self, name, what):
        """Makes one event happen."""
        if name == "deliver":
            self._handle(what[1], self.channels[what].pop(0))
            return
        header, payload = self.newest[what].header, self.newest[what].payload
        self.submitted[what] = header.step
        vector = gradient(what, payload[:SIZE]).astype(np.float32)
        if self.statistics is not None:
            vector = np.concatenate([vector, packed(Moments(1.0, np.array([float(what)]), np.zeros(1)))])
        finite = (what, header.step) not in self.bad
        flags = Flag.FINITE if finite else Flag.NONE
        header = Header(Kind.GRADIENT, 0, what, header.step, header.version, flags, 10)
        self._handle(what, Message(what, header, vector if finite else vector * np.nan))

    def die(self, worker):
        """Nothing of it is under way any more, and all others notice."""
        self.dead.add(worker)
        self.channels = {key: [] if worker in key[:2] else queue for key, queue in self.channels.items()}
        self.coordinator.worker_lost(worker)
        for other in range(len(self.servers)):
            if other not in self.dead:
                self._send(other, self.servers[other].worker_lost(worker))

    def command(self):
        """The chief has the run end between two steps."""
        self.coordinator.request(AT_END)
        self._send(0, self.coordinator.command()[0])

    def fetch(self, version):
        """A reader asks for a version."""
        self._send(0, self.servers[0].handle(9, Header(Kind.FETCH, version=version), None))

    def _send(self, sender, messages):
        for message in messages:
            if message.peer == sender:
                self._handle(sender, message._replace(peer=sender))
            elif message.peer == 9:
                self.published.append((message.header.version, np.array(message.payload)))
            elif message.peer not in self.dead:
                payload = None if message.payload is None else np.array(message.payload)
                key = (sender, message.peer, int(CHANNEL[message.header.kind]))
                self.channels.setdefault(key, []).append(Message(sender, message.header, payload))

    def _handle(self, process, message):
        header, payload = message.header, message.payload
        if header.kind == Kind.READY:
            self.closed += self.coordinator.handle(header, 0.0)
            self._open()
        elif header.kind == Kind.SNAPSHOT:
            self.snapshots.append((header, np.array(payload).reshape(-1, self.size)))
        elif header.kind == Kind.PARAMETERS:
            assert self.newest[process] is None or header.step > self.newest[process].header.step or header.flags
            self.newest[process], self.told[process] = message, self.told[process] | header.flags
            self.seen[process][header.step] = header.version, np.array(payload)
        else:
            self._send(process, self.servers[process].handle(message.peer, header, payload))

    def _open(self):
        if self.coordinator.takes_requests and self.coordinator.step + self.coordinator.updates_per_step >= self.last:
            self.coordinator.request(self.end)
        self._send(0, self.coordinator.poll(0.0)[0])
