"""The central store behind the asynchronous protocol: coordinator, clients and doors, without processes."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from ddrl.errors import UsageError
from ddrl.exchange.asynchronous import AsynchronousCoordinator
from ddrl.exchange.central_store.server import StoreServer
from ddrl.exchange.client import Reader, WorkerClient
from ddrl.exchange.interface import Setup
from ddrl.exchange.messages import Flag, Header, Kind, Message
from ddrl.exchange.settings import ExchangeConfig
from tests.exchange.central_store.test_multistep_adam import ADAM, RATE, adam_of, problem

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the store's locks are Linux's")
CHIEF, SIZE = 0, 50  # worker w and its door live in process w; worker 0 and the chief share one


def make_door(path, worker, workers=2, size=SIZE, patience_seconds=60.0, **settings):
    """The door of a worker, in a process of the same number."""
    config = ExchangeConfig(exchange="central_store", workers=workers, **settings)
    processes = {w: w for w in range(workers)}
    setup = Setup(config, ADAM, lambda version: RATE, path, CHIEF, processes, servers=(worker,))
    return StoreServer(setup, worker, size, path / "store", patience_seconds)


class World:
    """A chief, some workers with a door each, and messages that arrive at once."""

    def __init__(self, path, theta, workers=2, **settings):
        self.doors = [make_door(path, w, workers, theta.size, 5.0, **settings) for w in range(workers)]
        self.clients = [WorkerClient(w, [w], [(0, theta.size)], asynchronous=True) for w in range(workers)]
        self.reader = Reader([0], [(0, theta.size)])
        self.coordinator = AsynchronousCoordinator(
            range(workers), range(workers), lambda version: RATE, holders=[CHIEF], step=3, version=7
        )
        self.closed, self.snapshots, self.published = [], [], []
        self.to_doors(self.coordinator.begin(theta, [np.zeros_like(theta)] * 2, 0))

    def to_doors(self, messages):
        for message in messages:
            door = self.doors[message.peer]
            self.deliver(message.peer, door.handle(CHIEF, message.header, message.payload))

    def deliver(self, sender, messages):
        for peer, header, payload, _ in messages:
            if header.kind == Kind.PARAMETERS:
                self.clients[peer].handle(header, np.array(payload))
            elif header.kind == Kind.READY:
                assert peer == CHIEF
                self.closed += [(header, closed) for closed in self.coordinator.handle(header, 0.0)]
            elif header.kind == Kind.LOAD:
                self.to_doors([Message(peer, header)])
            elif header.kind == Kind.SNAPSHOT:
                self.snapshots.append((sender, header, np.array(payload)))
            else:
                self.published.append(self.reader.handle(header, np.array(payload))[1])

    def submit(self, worker, gradient, finite=True, version=None):
        client = self.clients[worker]
        version = client.snapshot.version if version is None else version
        for message in client.submit(gradient, client.snapshot.step, version, 32, finite):
            self.deliver(worker, self.doors[message.peer].handle(worker, message.header, message.payload))

    def command(self, flags):
        self.coordinator.request(flags)
        self.to_doors(self.coordinator.command()[0])


def test_gradients_of_all_workers_meet_in_the_store(tmp_path):
    theta, gradients = problem(SIZE, 6)
    world = World(tmp_path, theta)
    assert [client.snapshot.version for client in world.clients] == [7, 7]
    for i, gradient in enumerate(gradients):
        world.submit(i % 2, gradient)
    expected, _ = adam_of(ADAM, theta, gradients)
    np.testing.assert_array_equal(world.clients[1].snapshot.parameters, expected)
    assert [client.snapshot.version for client in world.clients] == [12, 13]
    assert [client.snapshot.step for client in world.clients] == [6, 6]
    assert world.coordinator.version == 13
    assert [header.value for header, _ in world.closed] == [0, 1, 1, 1, 1, 1]  # staleness
    assert [closed.members for _, closed in world.closed] == [(0,), (1,)] * 3
    assert {closed.samples for _, closed in world.closed} == {32}


def test_the_main_door_answers_for_the_store_and_stop_reaches_all(tmp_path):
    theta, gradients = problem(SIZE, 2)
    world = World(tmp_path, theta)
    world.submit(0, gradients[0])
    world.command(Flag.PUBLISH)
    published = world.clients[0].snapshot.parameters
    world.submit(1, gradients[1])
    world.command(Flag.CHECKPOINT)
    expected, optimizer = adam_of(ADAM, theta, gradients)
    ((sender, header, state),) = world.snapshots
    assert sender == 0 and header.version == 9 and header.count == 2
    np.testing.assert_array_equal(state, np.concatenate([expected, *optimizer.slots.values()]))
    for message in world.reader.fetch(8):
        world.deliver(0, world.doors[0].handle(5, message.header, None))
    np.testing.assert_array_equal(world.published[0].parameters, published)
    world.command(Flag.STOP | Flag.CHECKPOINT | Flag.PUBLISH)
    assert all(client.flags & Flag.STOP and client.flags & Flag.CHECKPOINT for client in world.clients)
    assert len(world.snapshots) == 2
    world.submit(1, gradients[0])
    assert world.coordinator.version == 9  # nothing is applied any more


def test_a_reader_waits_for_a_publication(tmp_path):
    world = World(tmp_path, problem(SIZE, 1)[0])
    messages = [m for request in world.reader.fetch(7) for m in world.doors[0].handle(5, request.header, None)]
    assert messages == []
    world.command(Flag.PUBLISH)
    assert world.published[0].version == 7


def test_local_steps_reach_the_store_at_every_nth_and_at_the_end(tmp_path):
    theta, gradients = problem(SIZE, 4)
    world = World(tmp_path, theta, workers=1, local_steps=3)
    for gradient in gradients:
        world.submit(0, gradient)
    expected, _ = adam_of(ADAM, theta, gradients)
    snapshot = world.clients[0].snapshot
    np.testing.assert_allclose(snapshot.parameters, expected, rtol=1e-5, atol=1e-6)
    assert snapshot.version == world.coordinator.version == 11
    assert [header.value for header, _ in world.closed] == [0, 0, 0, 0]
    world.command(Flag.CHECKPOINT)
    assert world.snapshots[0][1].version == 10  # the fourth step is still the worker's own
    world.command(Flag.STOP | Flag.CHECKPOINT)
    _, header, state = world.snapshots[1]
    assert header.version == 11 and header.count == 4
    np.testing.assert_allclose(state[:SIZE], expected, rtol=1e-5, atol=1e-6)


def test_gradients_that_are_old_or_not_finite_are_dropped_and_answered_with_the_newest(tmp_path):
    theta, gradients = problem(SIZE, 4)
    world = World(tmp_path, theta, max_staleness=1)
    world.submit(0, np.full(SIZE, np.nan, np.float32), finite=False)
    assert world.closed[-1][1].refused == (0,) and world.coordinator.version == 7
    for gradient in gradients[:2]:
        world.submit(0, gradient)
    world.submit(1, gradients[2], version=7)  # two versions old
    header, closed = world.closed[-1]
    assert closed.members == () and world.coordinator.version == 9
    assert header.value == 2 and header.flags & Flag.SKIP
    assert [door.dropped for door in world.doors] == [1, 1]
    np.testing.assert_array_equal(world.clients[1].snapshot.parameters, world.clients[0].snapshot.parameters)
    world.submit(1, gradients[3])
    assert world.closed[-1][1].members == (1,) and world.coordinator.version == 10


def test_torn_updates_are_counted_by_the_main_door_alone(tmp_path):
    theta, gradients = problem(SIZE, 1)
    world = World(tmp_path, theta)

    def fail(chunk):
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        world.doors[1].learner.store.update(fail)
    world.submit(0, gradients[0])
    assert [door.counts().get("torn_updates") for door in world.doors] == [1, None]


def test_a_pull_brings_newer_parameters_under_the_same_step(tmp_path):
    theta, gradients = problem(SIZE, 1)
    world = World(tmp_path, theta)
    world.submit(0, gradients[0])
    (message,) = world.doors[1].pull()
    assert (message.peer, message.header.step, message.header.version) == (1, 3, 8)
    np.testing.assert_array_equal(message.payload, world.clients[0].snapshot.parameters)
    world.command(Flag.STOP)
    assert world.doors[1].pull() == []


@pytest.mark.parametrize("workers", [1, 2])
def test_the_name_is_gone_once_all_have_opened_the_store(tmp_path, workers):
    theta, gradients = problem(SIZE, 1)
    world = World(tmp_path, theta, workers)
    world.submit(0, gradients[0])
    assert list(tmp_path.iterdir()) == []


def test_closing_removes_the_name_if_not_all_came(tmp_path):
    theta, _ = problem(SIZE, 1)
    door = make_door(tmp_path, 0)
    door.handle(CHIEF, Header(Kind.LOAD, value=RATE), np.concatenate([theta, theta, theta]))
    assert (tmp_path / "store").exists()
    door.close()
    assert list(tmp_path.iterdir()) == []


def test_stop_may_come_before_the_parameters(tmp_path):
    door = make_door(tmp_path, 1)
    (answer,) = door.handle(CHIEF, Header(Kind.COMMIT, flags=Flag.STOP | Flag.COMMAND), None)
    assert isinstance(answer, Message) and answer.peer == 1 and answer.header.flags & Flag.STOP
    assert door.handle(CHIEF, Header(Kind.LOAD, value=RATE), None) == []
    door.close()


def test_a_rate_that_comes_before_the_parameters_is_kept(tmp_path):
    """The others do not wait for a worker that comes late, and the chief tells of each rate only once."""
    theta, _ = problem(SIZE, 1)
    main, late = make_door(tmp_path, 0), make_door(tmp_path, 1)
    main.handle(CHIEF, Header(Kind.LOAD, value=RATE), np.concatenate([theta, theta, theta]))
    assert late.handle(CHIEF, Header(Kind.COMMIT, flags=Flag.COMMAND, value=2 * RATE), None) == []
    late.handle(CHIEF, Header(Kind.LOAD, value=RATE), None)
    assert main.learning_rate == RATE and late.learning_rate == 2 * RATE
    for door in (late, main):
        door.close()


def test_networks_of_two_sizes_are_refused(tmp_path):
    theta, _ = problem(SIZE, 1)
    doors = [make_door(tmp_path, w, size=size) for w, size in enumerate((SIZE, SIZE + 1))]
    doors[0].handle(CHIEF, Header(Kind.LOAD, value=RATE), np.concatenate([theta, theta, theta]))
    with pytest.raises(UsageError, match="holds 50 parameters, this worker's network has 51"):
        doors[1].handle(CHIEF, Header(Kind.LOAD, value=RATE), None)
    doors[0].close()
