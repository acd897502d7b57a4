"""A shard alone: the order in which it adds, and which gradients it takes when it waits for nobody."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ddrl.exchange.client import WorkerClient
from ddrl.exchange.messages import Flag, Header, Kind
from ddrl.exchange.parameter_server.server_shard import ServerShard
from tests.exchange.fake import CHIEF, PlainSgd

WORKERS = {0: 10, 1: 11, 2: 12}


def loaded(version=0, **options):
    shard = ServerShard(0, 1, PlainSgd(), WORKERS, CHIEF, **options)
    shard.handle(CHIEF, Header(Kind.LOAD, step=version, version=version, value=1.0), np.zeros(1, np.float32))
    return shard


def give(shard, worker, value, step=0, version=0, flags=Flag.FINITE):
    header = Header(Kind.GRADIENT, sender=worker, step=step, version=version, flags=flags, count=1)
    return shard.handle(WORKERS[worker], header, np.full(1, value, np.float32))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_order_that_overtakes_the_load_is_carried_out_after_it(asynchronous):
    """It has no payload, and so comes first over a network; what is saved before the load are zeros."""
    shard = ServerShard(0, 1, PlainSgd(), WORKERS, CHIEF, asynchronous=asynchronous)
    flags = Flag.COMMAND | Flag.STOP | Flag.CHECKPOINT | Flag.PUBLISH
    assert shard.handle(CHIEF, Header(Kind.COMMIT, step=5, version=5, flags=flags, value=1.0), None) == []
    assert shard.handle(9, Header(Kind.FETCH, version=5), None) == []
    load = Header(Kind.LOAD, step=5, version=5, count=5, value=1.0)
    messages = shard.handle(CHIEF, load, np.full(1, 7.0, np.float32))
    by_kind = {kind: [m for m in messages if m.header.kind == kind] for kind in Kind}
    (snapshot,), (published,) = by_kind[Kind.SNAPSHOT], by_kind[Kind.PUBLISHED]
    assert (snapshot.header.step, snapshot.header.version, snapshot.header.count) == (5, 5, 5)
    assert snapshot.payload[0] == published.payload[0] == 7.0 and published.header.version == 5
    told = [message.header.flags for message in by_kind[Kind.PARAMETERS]]
    assert told == [Flag.NONE] * 3 + [Flag.STOP | Flag.CHECKPOINT] * 3 and shard.stopped


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("needs_norm", [False, True])
@pytest.mark.parametrize("arrival", list(itertools.permutations(WORKERS)), ids=str)
def test_gradients_are_added_in_the_order_of_the_worker_ids_whatever_comes_first(arrival, needs_norm, ahead):
    """In float32 1 + 1e8 - 1e8 is 0 in this order, and 1 where the 1 comes last."""
    shard = loaded(needs_norm=needs_norm)
    for worker in arrival:
        give(shard, worker, (1.0, 1e8, -1e8)[worker])
    if ahead:
        shard.work_ahead()
    shard.handle(CHIEF, Header(Kind.COMMIT, step=0, value=1.0, scale=1.0, members=0b111, count=3), None)
    assert shard.version == 1 and shard.parameters[0] == 0.0


@pytest.mark.parametrize(("staleness", "limit", "taken"), [(2, 2, True), (3, 2, False), (3, 0, True)])
def test_asynchronous_gradients_are_taken_up_to_the_limit_of_their_staleness(staleness, limit, taken):
    shard = loaded(version=5, asynchronous=True, max_staleness=limit)
    answer, told = give(shard, 1, 4.0, step=5, version=5 - staleness)
    assert (shard.version, shard.parameters[0], shard.dropped) == ((6, -4.0, 0) if taken else (5, 0.0, 1))
    assert answer.payload[0] == shard.parameters[0] and answer.header.version == shard.version
    assert told.header.value == staleness and bool(told.header.flags & Flag.SKIP) is not taken


def test_an_asynchronous_gradient_that_is_not_finite_changes_nothing_and_is_named():
    shard = loaded(asynchronous=True)
    _, told = give(shard, 2, np.nan, flags=Flag.NONE)
    assert (shard.version, shard.parameters[0], shard.dropped) == (0, 0.0, 1) and told.header.refused == 0b100


def test_a_shard_judges_a_gradient_by_the_version_of_its_own_slice():
    """Shard 1 drops a gradient that shard 0 applies, and is a version behind from then on."""
    options = {"asynchronous": True, "max_staleness": 1}
    shards = [ServerShard(index, 1, PlainSgd(), WORKERS, CHIEF, **options) for index in (0, 1)]
    clients = {w: WorkerClient(w, (0, 1), [(0, 1), (1, 2)], asynchronous=True) for w in WORKERS}

    def deliver(messages):
        for message in messages:
            if message.header.kind == Kind.PARAMETERS:
                worker = next(w for w, process in WORKERS.items() if process == message.peer)
                clients[worker].handle(message.header, message.payload.copy())

    def gradient(worker):
        version, step, _ = clients[worker].snapshot
        return clients[worker].submit(np.ones(2, np.float32), step, version, 1, True)

    def arrive(*messages):
        for message in messages:
            process = WORKERS[message.header.sender]
            deliver(shards[message.peer].handle(process, message.header, message.payload))

    for shard in shards:
        deliver(shard.handle(CHIEF, Header(Kind.LOAD, value=1.0), np.zeros(1, np.float32)))
    slow = gradient(1)
    arrive(*gradient(0))
    fast = gradient(0)
    arrive(slow[0], fast[0], fast[1], slow[1])
    assert [(shard.version, shard.dropped) for shard in shards] == [(3, 0), (2, 1)]
    fast = gradient(0)
    arrive(*gradient(1))
    arrive(*fast)
    assert [(shard.version, shard.dropped) for shard in shards] == [(5, 0), (4, 1)], "one was within the limit"
