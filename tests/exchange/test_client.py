"""Assembling versions in place."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ddrl.exchange.client import Assembler, Reader, WorkerClient
from ddrl.exchange.messages import Flag, Header, Kind
from ddrl.exchange.published import Published


class Landing:
    """Receives that are posted in an assembler; a payload may land long before the assembler is told."""

    def __init__(self, assembler):
        self.assembler = assembler
        self.posted = [assembler.destination(shard) for shard in range(len(assembler.ranges))]

    def land(self, shard, value):
        self.posted[shard][:] = value

    def tell(self, shard, version):
        parameters = self.assembler.add((version,), shard, self.posted[shard])
        self.posted[shard] = self.assembler.destination(shard)
        return parameters


def test_versions_in_step_are_not_copied():
    receive = Landing(Assembler([(0, 2), (2, 4)]))
    for version in range(6):
        posted = list(receive.posted)
        for shard in (version % 2, 1 - version % 2):
            receive.land(shard, version)
            parameters = receive.tell(shard, version)
        np.testing.assert_array_equal(parameters, [version] * 4)
        assert all(np.shares_memory(parameters, view) for view in posted)
        assert not any(np.shares_memory(parameters, view) for view in receive.posted)


def test_slice_that_has_landed_early_is_not_overwritten_when_a_shard_skips_versions():
    receive = Landing(Assembler([(0, 2), (2, 4)]))
    for version in (2, 3):
        receive.land(0, version)
        assert receive.tell(0, version) is None
    receive.land(0, 4)
    receive.land(1, 3)
    third = receive.tell(1, 3)
    np.testing.assert_array_equal(third, [3] * 4)
    assert not any(np.shares_memory(third, view) for view in receive.posted)
    assert receive.tell(0, 4) is None
    receive.land(1, 4)
    np.testing.assert_array_equal(receive.tell(1, 4), [4] * 4)
    np.testing.assert_array_equal(third, [3] * 4)


def test_what_a_server_of_this_process_sends_is_not_copied():
    parameters = np.arange(4, dtype=np.float32)
    assert Assembler([(0, 4)]).add((1,), 0, parameters) is not parameters
    parameters.flags.writeable = False
    assert Assembler([(0, 4)]).add((1,), 0, parameters) is parameters


@pytest.mark.parametrize("updates_per_way", [0, 1, 3, 20])
def test_a_reader_gets_whole_versions_however_fast_they_change(updates_per_way):
    """Two shards publish every update; requests and answers take some updates, those of shard 1 one more."""
    reader, shards = Reader([0, 1], [(0, 2), (2, 4)]), [Published(0), Published(1)]
    requests, answers, versions = [], [], []

    def ask(messages, now):
        requests.extend((now + updates_per_way + message.peer, message) for message in messages)

    ask(reader.fetch(0), 0)
    for now in range(1_000):
        for index, shard in enumerate(shards):
            came = shard.add(now, now, np.full(2, now, np.float32))
            for due, request in list(requests):
                if due <= now and request.peer == index:
                    requests.remove((due, request))
                    came += shard.fetch(9, request.header.version)
            answers += [(now + updates_per_way, message) for message in came]
        while answers and answers[0][0] <= now:
            message = answers.pop(0)[1]
            again, snapshot = reader.handle(message.header, message.payload.copy())
            if snapshot is not None:
                assert (snapshot.parameters == snapshot.version).all(), "two versions were mixed"
                versions.append(snapshot.version)
                again = reader.fetch(snapshot.version + 1)
            ask(again, now)
    assert len(versions) >= 5 and versions == sorted(versions)
    assert versions[-1] >= 1_000 - 12 * (updates_per_way + 2)


def test_an_asynchronous_version_is_that_of_the_oldest_slice():
    client = WorkerClient(0, (1, 2), [(0, 2), (2, 4)], asynchronous=True)
    for shard, version in ((0, 7), (1, 5)):
        header = Header(Kind.PARAMETERS, sender=shard, step=3, version=version)
        snapshot = client.handle(header, np.full(2, version, np.float32))
    assert (snapshot.version, snapshot.step) == (5, 3)
    np.testing.assert_array_equal(snapshot.parameters, [7, 7, 5, 5])


@pytest.mark.parametrize(("asynchronous", "versions"), [(True, (7, 5)), (False, (7, 7))])
def test_each_shard_gets_the_version_of_its_own_slice(asynchronous, versions):
    client, gradient = WorkerClient(0, (1, 2), [(0, 2), (2, 4)], asynchronous), np.ones(4, np.float32)
    for shard, version in enumerate(versions):
        client.handle(Header(Kind.PARAMETERS, sender=shard, step=3, version=version), np.zeros(2, np.float32))
    stop = Header(Kind.PARAMETERS, sender=0, step=3, version=9, flags=Flag.STOP)
    assert client.handle(stop, np.zeros(2, np.float32)) is None, "it waits for that of the other shard"
    sent = client.submit(gradient, 3, min(versions), 10, True)
    assert tuple(message.header.version for message in sent) == versions
    newer = client.submit(gradient, 3, 8, 10, True)
    assert [message.header.version for message in newer] == [8, 8], "newer parameters that only acted"


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("order", sorted(set(itertools.permutations((0, 0, 1, 1)))), ids=str)
def test_a_stop_right_after_the_first_parameters_is_never_lost(order, asynchronous):
    """Each shard sends both, of the same step and version; one of them may have sent both before the other begins."""
    client, flags = WorkerClient(0, (1, 2), [(0, 2), (2, 4)], asynchronous), {0: Flag.NONE, 1: Flag.NONE}
    for shard in order:
        header = Header(Kind.PARAMETERS, sender=shard, step=3, version=3, flags=flags[shard])
        client.handle(header, np.full(2, shard, np.float32))
        flags[shard] = Flag.STOP
    assert client.flags == Flag.STOP, "the worker goes on after the end"
    np.testing.assert_array_equal(client.snapshot.parameters, [0, 0, 1, 1])


def test_a_gradient_for_a_step_that_is_closed_is_dropped_and_counted():
    client, gradient = WorkerClient(0, (1,), [(0, 2)]), np.ones(2, np.float32)
    assert client.submit(gradient, 0, 0, 10, True) == [] and client.dropped == 1, "it has no parameters yet"
    client.handle(Header(Kind.PARAMETERS, step=4, version=4), np.zeros(2, np.float32))
    assert client.submit(gradient, 3, 3, 10, True) == [] and client.dropped == 2
    (message,) = client.submit(gradient, 4, 4, 10, True)
    assert message.header.step == 4 and client.dropped == 2
