"""Replicas of an all-reduce under the real protocol and a fake network: a test chooses what happens next.

Messages of one channel (sender, receiver, tag) stay in order, as in MPI; everything else may happen in any order. What
a dead process has sent arrives at a receiver until that one notices the death, so it may have reached some only.
"""

from __future__ import annotations

import numpy as np

from ddrl.exchange.allreduce.coordinator import LockstepCoordinator
from ddrl.exchange.allreduce.replica import Replica
from ddrl.exchange.messages import CHANNEL, Flag, Header, Kind, Message
from tests.exchange.fake import RATE, PlainSgd, constant_rate

AT_END = Flag.STOP | Flag.CHECKPOINT | Flag.PUBLISH


class Replicas:
    """Processes 0..W-1, each with a worker and its replica; process 0 has the chief too.

    Args:
        end: what the chief asks for with step `steps - 1`.
    """

    def __init__(self, workers=2, steps=2, clip=0.0, bad=frozenset(), command=False, size=None, end=AT_END):
        self.steps, self.bad, self.may_command, self.end = steps, bad, command, end
        self.size = size or workers
        processes = {w: w for w in range(workers)}
        self.replicas = [
            Replica(w, processes, 0, self.size, PlainSgd(), constant_rate, clip_norm=clip) for w in processes
        ]
        self.coordinator = LockstepCoordinator(0, processes, constant_rate)
        self.channels: dict[tuple[int, int, int], list[Message]] = {}
        self.seen: list[dict[int, tuple]] = [{} for _ in processes]  # step -> what it made of that step
        self.newest: list[Header | None] = [None] * workers  # PARAMETERS that the worker has
        self.submitted = [-1] * workers
        self.saves: list[int] = [0] * workers  # how often each worker was told to send its state
        self.closed, self.snapshots = [], []
        self.dead: set[int] = set()
        self.unaware: set[tuple[int, int]] = set()  # (observer, dead worker) still to be told
        start = np.arange(self.size, dtype=np.float32)
        self._handle(0, Message(0, Header(Kind.LOAD, value=RATE), start))
        self._open()

    def gradient(self, worker, step):
        """A gradient that names its worker and step; NaN where the test says so."""
        value = np.nan if (worker, step) in self.bad else 1.0 + worker + 10.0 * step
        return np.full(self.size, value, np.float32)

    def events(self, may_die=()):
        """Everything that can happen next."""
        possible = [("deliver", key) for key, queue in self.channels.items() if queue and key[1] not in self.dead]
        for worker, header in enumerate(self.newest):
            if worker in self.dead:
                continue
            if header is not None and header.step > self.submitted[worker] and not header.flags & Flag.STOP:
                possible.append(("submit", worker))
            if worker in may_die:
                possible.append(("die", worker))
        possible += [("notice", pair) for pair in self.unaware if pair[0] not in self.dead]
        return possible + ([("command", None)] if self.may_command else [])

    def do(self, event):
        """Makes one event happen."""
        name, what = event
        getattr(self, f"_{name}")(what)

    def _deliver(self, key):
        self._handle(key[1], self.channels[key].pop(0))

    def _submit(self, worker):
        header = self.newest[worker]
        self.submitted[worker] = header.step
        gradient = self.gradient(worker, header.step)
        flags = Flag.FINITE if np.isfinite(gradient).all() else Flag.NONE
        header = Header(Kind.GRADIENT, 0, worker, header.step, header.version, flags, 10 + worker)
        self._handle(worker, Message(worker, header, gradient))

    def _die(self, worker):
        self.dead.add(worker)
        self.unaware |= {(other, worker) for other in range(len(self.replicas)) if other not in self.dead}

    def _notice(self, pair):
        observer, worker = pair
        self.unaware.discard(pair)
        for key in self.channels:
            if key[:2] == (worker, observer):
                self.channels[key] = []
        if observer == 0:
            self.coordinator.worker_lost(worker)
        self._send(observer, self.replicas[observer].worker_lost(worker))

    def _command(self, _):
        self.may_command = False
        self.coordinator.request(AT_END)
        self._send(0, self.coordinator.command()[0])

    def _send(self, sender, messages):
        for message in messages:
            payload = None if message.payload is None else np.array(message.payload)
            if message.peer == sender:
                self._handle(sender, Message(sender, message.header, message.payload))
            elif message.peer not in self.dead:
                key = (sender, message.peer, int(CHANNEL[message.header.kind]))
                self.channels.setdefault(key, []).append(Message(sender, message.header, payload))

    def _handle(self, process, message):
        header = message.header
        if header.kind == Kind.READY:
            self.closed += self.coordinator.handle(header, 0.0)
            self._open()
        elif header.kind == Kind.SNAPSHOT:
            self.snapshots.append((header.step, header.version, tuple(message.payload)))
        elif header.kind == Kind.PARAMETERS:
            self.newest[process] = header
            self.saves[process] += bool(header.flags & Flag.CHECKPOINT)
            self.seen[process][header.step] = (header.version, header.members, header.flags, tuple(message.payload))
        else:
            self._send(process, self.replicas[process].handle(message.peer, header, message.payload))

    def _open(self):
        if self.coordinator.takes_requests and self.coordinator.step == self.steps - 1:
            self.coordinator.request(self.end)
        self._send(0, self.coordinator.poll(0.0)[0])

    def key(self):
        """Everything that decides what can happen from here, for not walking the same state twice."""
        queues = [(k, [_plain(m) for m in q]) for k, q in sorted(self.channels.items()) if q and k[1] not in self.dead]
        replicas = [
            (
                r.generation,
                r.step,
                r.version,
                r.regrouping,
                r.stopped,
                r.members,
                tuple(r.parameters),
                r._outcome,
                sorted((k, h, tuple(p)) for k, (h, p) in r._slices.items()),
                sorted(r._norms.items()),
                tuple(r._spare),
                sorted(r._outcomes),
                [_plain(m) for m in r._early],
                r._gradient is None,
                r._command,
            )
            for w, r in enumerate(self.replicas)
            if w not in self.dead
        ]
        workers = (self.newest, self.submitted, self.saves, self.snapshots, self.may_command)
        return repr((queues, replicas, workers, sorted(self.dead), sorted(self.unaware), self.coordinator._opened))


def _plain(message):
    return message.header, None if message.payload is None else tuple(message.payload)
