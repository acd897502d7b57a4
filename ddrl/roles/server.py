"""The role of a parameter server: one shard of the parameters behind a transport. It imports no TensorFlow."""

from __future__ import annotations

import json
import time

from ddrl.exchange.messages import Kind, Message
from ddrl.exchange.optimizers import make_optimizer
from ddrl.exchange.parameter_server.server_shard import Shard
from ddrl.exchange.sharding import shard_ranges
from ddrl.exchange.transport import Blob, Channel, Event, PeerLost, Transport
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.roles.job import Setting, Topic, Wait, end_of_job, essential_lost, first_word, json_blob

HANDLED = (Kind.GRADIENT, Kind.COMMIT, Kind.NORM_REQUEST, Kind.EXPECT, Kind.FETCH, Kind.LOAD)


class ServerRole:
    """Waits for the chief's SETUP, then answers workers, chief and readers until END.

    Args:
        index: of the server.
        size: float32 values in the parameter vector, where this one has all, in the process of the one worker; then it
            waits for no SETUP.
    """

    name = "parameter_server"

    def __init__(self, setting: Setting, transport: Transport, index: int, size: int = 0):
        self.setting, self.transport, self.index = setting, transport, index
        self.finished = False
        self.shard: Shard | None = None
        self._first_step = -1  # of this part of the run
        self.metrics = RankMetrics(self.name, index)
        self._dropped = 0
        self._next_report = 0.0
        if size:
            self._set_up(size)

    def handle(self, event: Event) -> None:
        cast = self.setting.cast
        essential_lost(event, cast)
        if isinstance(event, PeerLost):
            for worker, process in cast.workers.items():
                if process == event.peer and self.shard:
                    self.shard.worker_lost(worker)
        elif isinstance(event, Blob):
            if event.topic == Topic.SETUP and self.shard is None:
                self._set_up(json.loads(event.data)["parameters"])
            self.finished = self.finished or event.topic == Topic.END
        elif event.header.kind in HANDLED:  # a worker in this process is spoken to, too
            self._answer(event)

    def advance(self) -> None:
        now = time.monotonic()
        if self.shard is None:
            return
        if self.transport.remote:  # in one process the chief's word is there at the same time
            self.shard.work_ahead()
        if now < self._next_report:
            return
        self._next_report = now + self.setting.config.run.log_every_seconds
        self._report()

    def busy(self) -> bool:
        """It works when messages come only; see `ddrl.exchange.local.Hosted`."""
        return False

    def due(self) -> bool:
        return self.shard is not None  # a gradient may come at any time

    def waits(self) -> Wait | None:
        shard, cast = self.shard, self.setting.cast
        if shard is None or not shard.loaded:
            return first_word(self.setting)
        if shard.stopped:
            return end_of_job(self.setting)
        if cast.actors:
            return None  # the learner waits for its replay at times, and says so itself
        once = self.setting.config.run.start_seconds
        patience = once if shard.step == self._first_step else 0.0
        if shard.asynchronous:
            what = f"a gradient after version {shard.version} ({shard.dropped} dropped)"
            return Wait(what, (*shard.workers.values(),), once)
        absent = tuple(process for worker, process in shard.workers.items() if not shard.held >> worker & 1)
        if shard.held.bit_count() >= max(1, shard.expected) or not absent:
            return Wait(f"the decision on step {shard.step}", (cast.chief,), patience)
        return Wait(f"gradients of step {shard.step}", absent, patience)

    def _answer(self, event: Message) -> None:
        activity = "apply" if event.header.kind == Kind.COMMIT else "receive"
        with self.metrics.timer(activity):
            answers = self.shard.handle(event.peer, event.header, event.payload)
        if event.header.kind == Kind.LOAD:
            self._first_step = self.shard.step
            if self.setting.cast.actors:
                answers += self.shard.publish()
        with self.metrics.timer("send"):
            self.transport.send(answers)

    def _set_up(self, parameters: int) -> None:
        config, cast = self.setting.config, self.setting.cast
        start, stop = shard_ranges(parameters, len(cast.servers))[self.index]
        optimizer = make_optimizer(config.optimizer, stop - start)
        self.shard = Shard(
            self.index,
            stop - start,
            optimizer,
            cast.workers,
            cast.chief,
            asynchronous=config.exchange.asynchronous,
            needs_norm=config.optimizer.clip_global_norm > 0,
            max_staleness=config.exchange.max_staleness,
        )
        channels = [Channel(process, Kind.GRADIENT, stop - start) for process in cast.workers.values()]
        channels += [Channel(cast.chief, Kind.COMMIT), Channel(cast.chief, Kind.FETCH)]
        channels += [Channel(cast.chief, Kind.LOAD, (1 + len(optimizer.slots)) * (stop - start))]
        if cast.evaluator is not None:
            channels.append(Channel(cast.evaluator, Kind.FETCH))
        channels += [Channel(process, Kind.FETCH) for process in cast.actors]
        self.transport.open(channels)

    def _report(self) -> None:
        self._count()
        self.transport.send([json_blob(self.setting.cast.chief, Topic.REPORT, self.metrics.report())])

    def _count(self) -> None:
        if self.index == 0:  # all shards drop the same gradients, or nearly
            self.metrics.count("gradients_dropped", self.shard.dropped - self._dropped)
            self._dropped = self.shard.dropped
