"""The role of a replica: the parameters of an all-reduce, in a worker's process beside the worker. No TensorFlow."""

from __future__ import annotations

import time

from ddrl.errors import UsageError
from ddrl.exchange.allreduce.replica import Replica
from ddrl.exchange.messages import Kind, Message
from ddrl.exchange.optimizers import make_optimizer, rate_of
from ddrl.exchange.transport import Blob, Channel, Event, PeerLost, Transport
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.roles.job import Setting, Topic, Wait, end_of_job, essential_lost, first_word, json_blob

ACTIVITIES = {Kind.GRADIENT: "send", Kind.SLICE: "average", Kind.AVERAGE: "apply"}
HANDLED = (*ACTIVITIES, Kind.COMMIT, Kind.LOAD, Kind.FETCH, Kind.REGROUP, Kind.OUTCOME, Kind.RESUME)


class ReplicaRole:
    """Exchanges its worker's gradients with the other replicas until END.

    Args:
        worker: id of the worker in this process.
        size: float32 values in the parameter vector.

    Raises:
        UsageError: more workers than parameters.
    """

    def __init__(self, setting: Setting, transport: Transport, worker: int, size: int):
        config, cast = setting.config, setting.cast
        if len(cast.workers) > size:
            raise UsageError(f"--workers {len(cast.workers)}: the network has {size} parameters; use at most that many")
        self.setting, self.transport = setting, transport
        self.finished = False
        self.metrics = RankMetrics("replica", worker)
        self._first_step = -1  # of this part of the run
        self._dropped = 0
        self._next_report = time.monotonic() + config.run.log_every_seconds
        self.replica = Replica(
            worker,
            cast.workers,
            cast.chief,
            size,
            make_optimizer(config.optimizer, size),
            rate_of(config),
            clip_norm=config.optimizer.clip_global_norm,
        )
        transport.open(self._channels(size))

    def handle(self, event: Event) -> None:
        essential_lost(event, self.setting.cast)
        if isinstance(event, PeerLost):
            for worker, process in self.setting.cast.workers.items():
                if process == event.peer:
                    self.transport.send(self.replica.worker_lost(worker))
        elif isinstance(event, Blob):
            self.finished = self.finished or event.topic == Topic.END
        elif event.header.kind in HANDLED:
            self._answer(event)

    def advance(self) -> None:
        now = time.monotonic()
        if now >= self._next_report:
            self._next_report = now + self.setting.config.run.log_every_seconds
            self._report()

    def due(self) -> bool:
        return bool(self.replica.missing()[1])

    def waits(self) -> Wait | None:
        replica = self.replica
        if not replica.loaded:
            return first_word(self.setting)
        if replica.stopped:
            return end_of_job(self.setting)
        what, peers = replica.missing()
        once = self.setting.config.run.start_seconds
        patience = once if replica.step == self._first_step else 0.0
        return Wait(f"{what} step {replica.step}", tuple(peers), patience) if peers else None

    def _answer(self, event: Message) -> None:
        with self.metrics.timer(ACTIVITIES.get(event.header.kind, "control")):
            answers = self.replica.handle(event.peer, event.header, event.payload)
        if event.header.kind == Kind.LOAD:
            self._first_step = self.replica.step
        with self.metrics.timer("send"):
            self.transport.send(answers)

    def _channels(self, size: int) -> list[Channel]:
        """A slice is longest where two members share the vector."""
        cast, replica = self.setting.cast, self.replica
        others = [process for process in cast.workers.values() if process != cast.servers[0]]
        longest = (size + 1) // 2
        channels = [Channel(p, kind, longest) for p in others for kind in (Kind.SLICE, Kind.AVERAGE)]
        if replica.is_chiefs:
            channels += [Channel(process, Kind.OUTCOME, size) for process in others]
            return channels + ([Channel(cast.evaluator, Kind.FETCH)] if cast.evaluator is not None else [])
        channels += [Channel(cast.chief, Kind.LOAD, (1 + len(replica.optimizer.slots)) * size)]
        return channels + [Channel(cast.chief, Kind.REGROUP), Channel(cast.chief, Kind.RESUME, size)]

    def _report(self) -> None:
        self.metrics.count("gradients_dropped", self.replica.dropped - self._dropped)
        self._dropped = self.replica.dropped
        self.transport.send([json_blob(self.setting.cast.chief, Topic.REPORT, self.metrics.report())])
