"""A chief on a fake transport and a fake clock: the test plays servers, workers and evaluator."""

from __future__ import annotations

import json
import types

import numpy as np

from cluster.roles import Sizes, assign_roles
from ddrl import checkpoint as checkpoints
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.checkpoint import Checkpoint
from ddrl.config import EvaluationConfig, ExchangeConfig, OptimizerConfig, RunConfig, SamplingConfig, TrainConfig
from ddrl.exchange.messages import Flag, Header, Kind, Message
from ddrl.exchange.sharding import shard_ranges
from ddrl.exchange.transport import Blob
from ddrl.job.layout import JobContext, JobLayout
from ddrl.job.role import Topic
from ddrl.npz import encode_arrays
from ddrl.reporting.metrics import read_metrics
from ddrl.roles import budget, chief, run_log
from ddrl.roles.chief import ChiefRole, Phase
from ddrl.rundir import RESULT, STOP, read_json

SIZE = 5


class Sent:
    """A transport that keeps what is sent."""

    rank = 0

    def __init__(self):
        self.items, self.channels = [], []

    def send(self, items):
        self.items += list(items)

    def open(self, channels):
        self.channels += list(channels)

    def take(self, what):
        """What was sent since the last call: messages of a kind, or blobs of a topic."""
        of = Message if isinstance(what, Kind) else Blob
        named = {Message: lambda item: item.header.kind, Blob: lambda item: item.topic}[of]
        wanted = [item for item in self.items if isinstance(item, of) and named(item) == what]
        self.items = [item for item in self.items if item not in wanted]
        return wanted


class Play:
    """2 workers (ranks 0, 1; 0 is the chief), 2 servers (2, 3), an evaluator (4)."""

    def __init__(
        self,
        run_dir,
        monkeypatch,
        *,
        run=None,
        evaluation=None,
        exchange=None,
        sampling=None,
        version=0,
        resumed=False,
        algorithm=None,
        agent_steps=0,
        counters=None,
        evaluates_only=False,
        spent_seconds=0.0,
    ):
        self.now = 100.0
        clock = types.SimpleNamespace(monotonic=lambda: self.now)
        for module in (budget, chief, run_log):
            monkeypatch.setattr(module, "time", clock)
        config = TrainConfig(
            algorithm=algorithm or BA3CConfig(),
            run=RunConfig(**{"minutes": 0.0, "checkpoint_every_minutes": 1e6} | (run or {})),
            evaluation=EvaluationConfig(eval_every_updates=10, eval_time_share=1.0, **(evaluation or {})),
            exchange=ExchangeConfig(workers=2, parameter_servers=2, **(exchange or {})),
            sampling=SamplingConfig(**(sampling or {})),
            optimizer=OptimizerConfig(learning_rate=0.5),
        )
        self.run_dir, self.sent = run_dir, Sent()
        layout = JobLayout.from_assignments(assign_roles(Sizes(2, 2, evaluator=True)))
        slots = {name: np.full(SIZE, i + 1, np.float32) for i, name in enumerate("mv")}
        start = Checkpoint(
            version,
            version,
            agent_steps,
            7.0,
            np.arange(SIZE, dtype=np.float32),
            slots,
            version,
            (("x", (SIZE,)),),
            counters=counters or {},
            worker_states={1: {"draws": np.arange(3)}},
        )
        context = JobContext(config, run_dir, layout, evaluates_only, spent_seconds)
        self.chief = ChiefRole(context, self.sent, start, resumed)

    def have(self, members=0b11, refused=0, value=float("nan"), flags=Flag.NONE, shards=(0, 1)):
        """The servers report; returns the flags of the COMMIT that follows, or None."""
        coordinator = self.chief.coordinator
        for shard in shards:
            header = Header(
                Kind.READY,
                sender=shard,
                step=coordinator.step,
                version=coordinator.version,
                count=64,
                members=members,
                refused=refused,
                value=value,
                flags=flags,
            )
            self.chief.handle(Message(2 + shard, header))
        self.chief.advance()
        return self.commit()

    def commit(self):
        commits = self.sent.take(Kind.COMMIT)
        assert [c.peer for c in commits] in ([], [2, 3]) and len({c.header for c in commits}) <= 1
        return commits[0].header.flags if commits else None

    def snapshots(self, shards=(0, 1)):
        """The servers' parts of a checkpoint: values that name version, row and shard."""
        version = self.chief.coordinator.version
        for shard in shards:
            a, b = shard_ranges(SIZE, 2)[shard]
            rows = np.array([[version + 0.1 * row + i for i in range(a, b)] for row in range(3)], np.float32)
            header = Header(
                Kind.SNAPSHOT, sender=shard, step=self.chief.coordinator.step, version=version, count=version
            )
            self.chief.handle(Message(2 + shard, header, rows.ravel()))

    def state(self, worker, of=None):
        of = np.int64(self.chief.coordinator.step if of is None else of)
        self.chief.handle(Blob(worker, Topic.STATE, encode_arrays({"draws": np.full(2, worker), "of": of})))

    def everything(self):
        """All parts of a checkpoint arrive."""
        self.snapshots()
        self.state(0)
        self.state(1)
        self.chief.advance()

    def result(self, version, mean, unfinished=0, **more):
        request = self.request
        content = (
            request
            | {
                "mean": mean,
                "maximum": mean + 1,
                "scores": [mean],
                "games": 1,
                "seconds": 1.0,
                "stamp": {"protocol": "x"},
                "unfinished": unfinished,
                "timed_out": unfinished,
            }
            | more
        )
        assert request["version"] == version
        self.chief.handle(Blob(4, Topic.RESULT, json.dumps(content).encode()))

    @property
    def request(self):
        """The newest EVALUATE."""
        (blob,) = self.sent.take(Topic.EVALUATE)
        assert blob.peer == 4
        return json.loads(blob.data)

    def ask_to_stop(self):
        """As Ctrl-C does; the chief looks for it once a second."""
        (self.run_dir / STOP).touch()
        self.now += 1.0
        self.chief.advance()

    def events(self, name):
        return [record for record in read_metrics(self.run_dir) if record.get("name") == name]

    def files(self):
        return [path.name for path in checkpoints.list_checkpoints(self.run_dir)]

    def ended(self):
        """The result, when the chief has ended the job for everyone."""
        assert self.chief.finished and self.chief.phase is Phase.ENDED
        assert sorted(blob.peer for blob in self.sent.take(Topic.END)) == self.ranks
        return read_json(self.run_dir / RESULT)

    ranks = [0, 1, 2, 3, 4]
