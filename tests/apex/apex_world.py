"""Ape-X without MPI, processes and TensorFlow: the real roles on a network where a test chooses what happens next.

Messages of one channel (sender, receiver, tag) stay in order, as in MPI; everything else may happen in any order.
What is sent is read when it arrives, so that a buffer which is used again too early shows.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from ddrl.algorithms import preset
from ddrl.apex.actor import ActorRole
from ddrl.apex.child import Frame, Received
from ddrl.apex.remote_replay import RemoteReplay
from ddrl.apex.replay_shard import ReplayShardRole
from ddrl.apex.sampler import Sampler
from ddrl.apex.segment import SegmentFormat
from ddrl.config import TrainConfig
from ddrl.exchange.messages import CHANNEL, Header, Kind, Message
from ddrl.exchange.transport import Blob, PeerLost
from ddrl.job.layout import JobContext, JobLayout
from ddrl.job.role import Topic
from ddrl.npz import decode_arrays
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.types import Discrete, Machine, Snapshot
from tests.apex.segments import noise

LEARNER = 0
SEEDS = range(2)
FORMAT = SegmentFormat((3,), "float32", Discrete(4), n_step=2, length=4)
PARAMETERS = 6


def config_of(**groups: dict) -> TrainConfig:
    """Small settings of Ape-X; `groups` are changes by group."""
    config = preset("smoke", None, Machine(2, 1 << 40), "apex-dqn")
    changes = {
        "optimizer": {"batch_size": 8},
        "replay": {"replay_capacity": 160, "replay_minimum": 24},
        "apex": {"segment_length": FORMAT.length, "segments_in_flight": 3, "trim_every_updates": 5, "prefetch": 4},
    }
    for name, values in groups.items():
        changes[name] = changes.get(name, {}) | values
    groups = {name: dataclasses.replace(getattr(config, name), **values) for name, values in changes.items()}
    return dataclasses.replace(config, **groups)


class Port:
    """A process' end of the network; see `ddrl.exchange.transport.Transport`."""

    remote = True

    def __init__(self, net: Net, rank: int):
        self.net, self.rank, self.into = net, rank, {}

    def open(self, channels):
        for channel in channels:
            self.into[channel.peer, channel.kind] = channel.into

    def send(self, items):
        for item in items:
            tag = -1 if isinstance(item, Blob) else CHANNEL[item.header.kind]
            if item.peer not in self.net.dead and self.rank not in self.net.dead:
                self.net.queues.setdefault((self.rank, item.peer, tag), []).append(item)


class Net:
    """The messages that are under way."""

    def __init__(self):
        self.queues, self.dead = {}, set()

    def waiting(self):
        return [key for key, queue in self.queues.items() if queue]

    def take(self, key, port):
        """The next message of a channel as its receiver sees it."""
        sender, item = key[0], self.queues[key].pop(0)
        if isinstance(item, Blob):
            return Blob(sender, item.topic, item.data)
        payload = item.payload
        if payload is not None:
            make = port.into.get((sender, item.header.kind))
            place = make() if make else np.empty_like(payload)
            place[:] = payload
            payload = place
        return Message(sender, item.header, payload)


class FakeChild:
    """Acts at once: parameters, then as many segments as anyone reads."""

    def __init__(self, random, actor, run_id, agent_steps):
        self.random, self.actor, self.run_id, self.agent_steps = random, actor, run_id, agent_steps
        self.version, self.acted, self.asked, self.exit_status, self.ended = -1, 0, False, None, False
        self.taken, self.last = 0, []

    def last_words(self):
        return self.last

    def send(self, kind, number, data=b""):
        if kind == Frame.TAKEN:
            assert number == self.taken + 1 <= self.acted
            self.taken = number
            return
        assert kind == Frame.PARAMETERS and number > self.version
        assert set(np.frombuffer(data, np.float32)) == {float(number)}, "two versions were mixed"
        self.version, self.asked = number, False

    def flush(self):
        pass

    def receive(self):
        if self.exit_status is not None:
            return None
        if not self.asked and (self.version < 0 or self.random.random() < 0.2):
            self.asked = True
            return Received(Frame.REFRESH, self.version, b"")
        if self.version < 0 or self.random.random() < 0.3:
            return None
        segment = noise(
            FORMAT, self.random, actor=self.actor, run_id=self.run_id, first_step=self.acted * FORMAT.length
        )
        self.acted += 1
        return Received(Frame.SEGMENT, 0, FORMAT.encode(segment))

    def status(self):
        return self.exit_status

    def end(self):
        self.ended = True


class Parameters:
    """The learner's parameter server, as far as actors see it: every published version is made of its number."""

    def __init__(self, port: Port):
        self.port, self.version, self.wanted = port, 0, {}

    def publish(self, version):
        self.version = version
        for peer, wanted in list(self.wanted.items()):
            if version >= wanted:
                del self.wanted[peer]
                payload = np.full(PARAMETERS, version, np.float32)
                self.port.send([Message(peer, Header(Kind.PUBLISHED, version=version), payload)])

    def handle(self, message):
        self.wanted[message.peer] = message.header.version
        self.publish(self.version)


class World:
    """A learner, actors and shards. `step` does one thing, drawn at random.

    Attributes:
        reported: blobs that reached the chief, by topic.
        versions: updates so far.
    """

    def __init__(self, tmp_path, seed=0, actors=2, shards=2, state=None, agent_steps=0, **groups):
        self.random = np.random.default_rng(seed)
        apex = {"actors": actors, "replay_shards": shards} | groups.pop("apex", {})
        self.config = config_of(apex=apex, **groups)
        ranks = range(1, 1 + actors), range(1 + actors, 1 + actors + shards)
        self.layout = JobLayout(LEARNER, {0: LEARNER}, (LEARNER,), None, 1 + actors + shards, *map(tuple, ranks))
        self.context, self.net = JobContext(self.config, tmp_path, self.layout), Net()
        self.ports = {rank: Port(self.net, rank) for rank in range(self.layout.size)}
        self.schedule = RemoteReplay(self._targets, 10, RankMetrics("learner", 0), lambda: None)
        self.sampler = Sampler(self.context, self.ports[LEARNER], self.schedule, FORMAT, PARAMETERS)
        self.parameters = Parameters(self.ports[LEARNER])
        self.children, self.reported, self.version, self.keys = {}, {}, 0, set()
        self.roles = {}
        for index, rank in enumerate(self.layout.actors):
            self.roles[rank] = ActorRole(self.context, self.ports[rank], index, self._start(rank, index))
        for index, rank in enumerate(self.layout.replay_shards):
            self.roles[rank] = ReplayShardRole(self.context, self.ports[rank], index)
        self.sampler.begin(state or {}, agent_steps)

    @property
    def shards(self):
        return [self.roles[rank] for rank in self.layout.replay_shards if rank not in self.net.dead]

    @property
    def actors(self):
        return [self.roles[rank] for rank in self.layout.actors if rank not in self.net.dead]

    def step(self):
        """A message arrives, a role gets its turn, or the learner learns."""
        waiting = self.net.waiting()
        choice = self.random.integers(len(waiting) + len(self.roles) + 2)
        if choice < len(waiting):
            self.deliver(waiting[choice])
        elif choice < len(waiting) + len(self.roles):
            rank = list(self.roles)[choice - len(waiting)]
            if rank not in self.net.dead:
                self.roles[rank].advance()
        elif choice == len(waiting) + len(self.roles):
            self.sampler.advance()
        else:
            self.learn()

    def steps(self, count):
        for _ in range(count):
            self.step()

    def settle(self):
        """Delivers all that is under way, and nobody acts meanwhile."""
        for _ in range(20_000):
            if not (waiting := self.net.waiting()):
                return
            self.deliver(waiting[0])
            for rank in self.layout.replay_shards:
                if rank not in self.net.dead:
                    self.roles[rank].advance()
        raise AssertionError("the messages do not end")

    def deliver(self, key):
        sender, receiver, _ = key
        event = self.net.take(key, self.ports[receiver])
        if receiver in self.net.dead:
            return
        if receiver != LEARNER:
            self.roles[receiver].handle(event)
        elif isinstance(event, Blob) and event.topic != Topic.SAVED:
            self.reported.setdefault(event.topic, []).append(event)
        elif isinstance(event, Message) and event.header.kind == Kind.FETCH:
            self.parameters.handle(event)
        else:
            self.sampler.handle(event)

    def learn(self):
        """One update, if a batch is ready."""
        if not self.schedule.ready:
            return False
        snapshot, batch = self.schedule.next_batch(lambda: Snapshot(self.version, self.version, self.version))
        assert np.isfinite(batch.observation).all() and (batch.weight > 0).all() and (batch.weight <= 1).all()
        self.keys.update(batch.key.tolist())
        self.schedule.learned(batch, self.random.exponential(size=len(batch.key)).astype(np.float32))
        self.version = self.sampler.version = self.version + 1
        self.parameters.publish(self.version)
        return True

    def kill(self, rank):
        """What is under way from it may still arrive; everyone hears of it."""
        self.net.dead.add(rank)
        if rank in self.children:
            self.children[rank].exit_status = -9
        for other, role in self.roles.items():
            if other not in self.net.dead:
                role.handle(PeerLost(rank))
        self.sampler.handle(PeerLost(rank))

    def save(self):
        """The state of a checkpoint, as the learner sends it."""
        self.settle()
        saved = []
        self.sampler.save(self.version, self.schedule.get_state(), saved.append)
        self.settle()
        (state,) = saved
        return state

    def events(self):
        """Names of the events that the chief was told of."""
        import json

        return [json.loads(blob.data)["name"] for blob in self.reported.get(Topic.EVENT, [])]

    def _start(self, rank, index):
        def start(run_id, agent_steps):
            assert run_id > getattr(self.children.get(rank), "run_id", -1)
            self.children[rank] = FakeChild(self.random, index, run_id, agent_steps)
            return self.children[rank]

        return start

    def _targets(self, parameters, batch):
        return np.zeros(len(batch.reward), np.float32)


def manifest(data: bytes) -> dict[str, np.ndarray]:
    """A blob's arrays."""
    return decode_arrays(data)
