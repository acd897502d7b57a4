"""A fake network under the real protocol: a test chooses which event happens next.

Messages of one channel (sender, receiver, tag) stay in order, as in MPI; everything else may happen in any
order. A worker's two sends are two events, and it may die between them; then what is under way from it may
still arrive, or not.
"""

from __future__ import annotations

import numpy as np

from ddrl.exchange.client import WorkerClient
from ddrl.exchange.messages import CHANNEL, Header, Kind, Message
from ddrl.exchange.parameter_server.coordinator import Quorum, QuorumCoordinator
from ddrl.exchange.parameter_server.server_shard import ServerShard
from ddrl.exchange.sharding import shard_ranges

CHIEF = 0
RATE = 0.5


def constant_rate(version):
    """The learning rate of every update; a function of this module, so that worlds can be pickled."""
    return RATE


class PlainSgd:
    """The simplest optimizer with the interface of the real ones."""

    def __init__(self):
        self.slots, self.count, self.statistics = {}, 0, None
        self.accepted = 0

    def apply(self, parameters, gradient, learning_rate, scale=1.0, out=None):
        self.count += 1
        np.subtract(parameters, np.float32(learning_rate * scale) * sum(gradient), out=out)

    def prepare(self, parameters, gradient, learning_rate, scale):
        self.count -= 1
        out = np.empty_like(parameters)
        self.apply(parameters, gradient, learning_rate, scale, out)
        return out

    def accept(self):
        self.count += 1
        self.accepted += 1


class World:
    """W workers, S shards and a chief (a process of its own here), and the network between them."""

    def __init__(self, workers=2, shards=2, steps=2, quorum=0, clip=0.0, size=4, bad=frozenset()):
        self.steps, self.bad = steps, bad
        self.ranges = shard_ranges(size, shards)
        self.shard_ids = [1 + s for s in range(shards)]
        self.worker_ids = {w: 1 + shards + w for w in range(workers)}
        self.shards = [
            ServerShard(s, b - a, PlainSgd(), self.worker_ids, CHIEF, needs_norm=bool(clip))
            for s, (a, b) in enumerate(self.ranges)
        ]
        self.coordinator = QuorumCoordinator(
            self.shard_ids, range(workers), Quorum(quorum), constant_rate, clip_norm=clip
        )
        self.clients = {w: WorkerClient(w, self.shard_ids, self.ranges) for w in range(workers)}
        self.channels: dict[tuple[int, int, int], list[Message]] = {}
        self.outbox: dict[int, list[Message]] = {w: [] for w in range(workers)}
        self.submitted: dict[int, int] = dict.fromkeys(range(workers), -1)
        self.dead: set[int] = set()
        self.unaware: set[tuple[int, int]] = set()  # (observer, dead worker) still to be told
        self.commits: list = []
        self.history: list[list] = [[] for _ in range(shards)]
        self._send(CHIEF, self.coordinator.expect())
        for process, (a, b) in zip(self.shard_ids, self.ranges):
            start = np.arange(size, dtype=np.float32)[a:b]
            self._send(CHIEF, [Message(process, Header(Kind.LOAD, value=0.5), start)])

    def _send(self, sender, messages):
        for message in messages:
            if message.peer in {self.worker_ids[w] for w in self.dead}:
                continue
            payload = None if message.payload is None else np.array(message.payload)
            key = (sender, message.peer, int(CHANNEL[message.header.kind]))
            queue = self.channels.setdefault(key, [])
            if message.newest_only and len(queue) > 1:
                queue.pop()
            queue.append(Message(sender, message.header, payload))
            self._land(key)

    def _land(self, key):
        """The first message of a channel lies in the posted receive before the receiver looks at it, as in MPI."""
        destination = self._destination(key)
        if destination is not None and self.channels[key]:
            destination[:] = self.channels[key][0].payload

    def _destination(self, key):
        sender, receiver, tag = key
        worker = next((w for w, process in self.worker_ids.items() if process == receiver), None)
        if worker is None or tag != Kind.PARAMETERS:
            return None
        assembler, shard = self.clients[worker].assembler, sender - 1
        if shard not in assembler._posted:
            assembler.destination(shard)
        return assembler._slice(assembler._posted[shard], shard)

    def gradient(self, worker, step):
        """A gradient that names its worker and step; NaN where the test says so."""
        value = np.nan if (worker, step) in self.bad else 1.0 + worker + 10.0 * step
        return np.full(self.ranges[-1][1], value, np.float32)

    def before(self, step, shard):
        """First value of a shard's parameters before a step."""
        return self.history[shard][step - 1][3][0] if step else float(self.ranges[shard][0])

    def events(self, may_die=()):
        """Everything that can happen next."""
        possible = [("deliver", key) for key, queue in self.channels.items() if queue]
        for worker, client in self.clients.items():
            if worker in self.dead:
                continue
            if self.outbox[worker]:
                possible.append(("send", worker))
            elif client.snapshot and self.submitted[worker] < client.snapshot.step < self.steps:
                possible.append(("submit", worker))
            if worker in may_die:
                possible.append(("die", worker))
        possible += [("notice", pair) for pair in self.unaware]
        return possible

    def do(self, event):
        """Makes one event happen."""
        name, what = event
        actions = {
            "deliver": self._deliver,
            "submit": self._submit,
            "send": self._send_one,
            "die": self._die,
            "notice": self._notice,
        }
        actions[name](what)

    def _submit(self, worker):
        snapshot = self.clients[worker].snapshot
        gradient = self.gradient(worker, snapshot.step)
        finite = bool(np.isfinite(gradient).all())
        self.submitted[worker] = snapshot.step
        self.outbox[worker] += self.clients[worker].submit(
            gradient, snapshot.step, snapshot.version, 10 + worker, finite
        )

    def _send_one(self, worker):
        self._send(self.worker_ids[worker], [self.outbox[worker].pop(0)])

    def _die(self, worker):
        self.dead.add(worker)
        self.outbox[worker] = []
        self.unaware |= {(process, worker) for process in [CHIEF, *self.shard_ids]}

    def _notice(self, pair):
        """An observer learns of the death; what was still under way to it from the dead one is lost."""
        observer, worker = pair
        self.unaware.discard(pair)
        for key in list(self.channels):
            if key[0] == self.worker_ids[worker] and key[1] == observer:
                self.channels[key] = []
        if observer == CHIEF:
            self._send(CHIEF, self.coordinator.worker_lost(worker))
            self._poll_chief()
        else:
            self.shards[observer - 1].worker_lost(worker)

    def _deliver(self, key):
        sender, receiver, _ = key
        message = self.channels[key].pop(0)
        if receiver == CHIEF:
            self.coordinator.handle(message.header, 0.0)
            self._poll_chief()
        elif receiver in self.shard_ids:
            shard = self.shards[receiver - 1]
            before = shard.step
            self._send(receiver, shard.handle(sender, message.header, message.payload))
            shard.work_ahead()
            if shard.step > before:
                record = (shard.version, message.header.members, message.header.flags, tuple(shard.parameters))
                self.history[shard.index].append(record)
        else:
            worker = next(w for w, process in self.worker_ids.items() if process == receiver)
            if worker not in self.dead:
                client = self.clients[worker]
                client.handle(message.header, self._destination(key))
                client.assembler.destination(sender - 1)
                self._land(key)

    def _poll_chief(self):
        messages, closed = self.coordinator.poll(0.0)
        self._send(CHIEF, messages)
        if closed:
            self.commits.append(closed)

    def key(self):
        """Everything that decides what can happen from here, for not walking the same state twice."""
        queues = tuple(
            (k, tuple((m.header, None if m.payload is None else tuple(m.payload)) for m in q))
            for k, q in sorted(self.channels.items())
            if q
        )
        shards = tuple(
            (s.step, s.version, s.held, s.expected, tuple(s.parameters), tuple(sorted(s.workers))) for s in self.shards
        )
        clients = tuple(
            (
                c.snapshot.step if c.snapshot else -1,
                self.submitted[w],
                len(self.outbox[w]),
                tuple(sorted(c.assembler._waiting.items())),
            )
            for w, c in self.clients.items()
        )
        chief = self.coordinator
        have = tuple(sorted((s, h.members, h.refused) for s, h in chief._ready.items()))
        norms = tuple(sorted((s, h.members) for s, h in chief._norms.items()))
        state = (chief.step, chief.version, have, norms, chief._asked_norms, tuple(chief.live))
        return repr((queues, shards, clients, state, sorted(self.dead), sorted(self.unaware)))
