"""Under mpirun with ULFM, 4 ranks: what MpiTransport promises. Each rank prints one JSON line at its end."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time

import numpy as np

from ddrl.exchange.messages import Garbled, Header, Kind, Message
from ddrl.exchange.mpi import MpiTransport, leave
from ddrl.exchange.transport import Blob, Channel, PeerLost
from ddrl.placement.world import settled_world
from tests.parallel.meeting import meet

CUTS = (0, 1, 5, 70_000)  # shards of 1, 4 and many values: below and above the eager limit
GRADIENTS, LARGE, NEWEST = 30, 500_000, 60
WORDS, LONGER = 3_000, 2_000  # more than Open MPI has places for; bytes that need such a place
BLOB_SIZES = (0, 1, 100, 4_096, 70_000, 3_000_000, 0)
PATIENCE_SECONDS = 100.0


def gradient(number: int) -> np.ndarray:
    """One whose every value says which it is."""
    return (np.arange(CUTS[-1]) + 0.5 * number).astype(np.float32)


def collect(transport: MpiTransport, enough) -> list:
    """Polls until `enough(events)`; payloads are copied, as they are borrowed."""
    events, end = [], time.monotonic() + PATIENCE_SECONDS
    while not enough(events):
        assert time.monotonic() < end, f"rank {transport.rank}: only {events}"
        for event in transport.poll():
            if isinstance(event, Message) and event.payload is not None:
                event = Message(event.peer, event.header, event.payload.copy())
            events.append(event)
    return events


def slices(transport: MpiTransport) -> bool:
    """Every shard gets its slice of every gradient, in order, to the bit."""
    rank = transport.rank
    if rank == 0:
        for number in range(GRADIENTS):
            parameters, header = gradient(number), Header(Kind.GRADIENT, sender=0, step=number)
            cuts = enumerate(itertools.pairwise(CUTS))
            transport.send(Message(1 + shard, header, parameters[a:b]) for shard, (a, b) in cuts)
        return transport.flush(PATIENCE_SECONDS)
    a, b = CUTS[rank - 1], CUTS[rank]
    events = collect(transport, lambda events: len(events) == GRADIENTS)
    same = [np.array_equal(event.payload, gradient(event.header.step)[a:b]) for event in events]
    return all(same) and [event.header.step for event in events] == list(range(GRADIENTS))


def newest_only(transport: MpiTransport) -> bool:
    """A slow receiver skips to the newest version, and header and payload are of one version."""
    last = NEWEST - 1
    if transport.rank == 0:
        for number in range(NEWEST):
            header = Header(Kind.PARAMETERS, sender=0, step=number)
            transport.send([Message(1, header, np.full(LARGE, number, np.float32), newest_only=True)])
            transport.poll()
        end = time.monotonic() + PATIENCE_SECONDS
        while not any(isinstance(event, Blob) for event in transport.poll()):
            assert time.monotonic() < end
        return True
    if transport.rank > 1:
        return True
    time.sleep(0.3)
    events = collect(transport, lambda events: events and events[-1].header.step == last)
    transport.send([Blob(0, 1, b"done")])
    steps = [event.header.step for event in events]
    return (
        steps == sorted(set(steps))
        and len(steps) < NEWEST
        and all((event.payload == event.header.step).all() for event in events)
    )


def words(transport: MpiTransport) -> bool:
    """A rank that hangs keeps nothing from another one, however often it is spoken to; it hears the last word."""
    answered = lambda events: any(isinstance(event, Blob) for event in events)
    if transport.rank == 0:
        (hangs,) = (int(event.data) for event in collect(transport, answered))
        os.kill(hangs, signal.SIGSTOP)
        try:
            for number in range(WORDS):
                transport.send([Message(1, Header(Kind.WORD, step=number), newest_only=True)])
                transport.poll()
            transport.send([Blob(2, 1, b"?" * LONGER)])
            collect(transport, answered)
        finally:
            os.kill(hangs, signal.SIGCONT)
        return transport.flush(PATIENCE_SECONDS)
    if transport.rank == 1:
        transport.send([Blob(0, 1, b"%d" % os.getpid())])
        events = collect(transport, lambda events: events and events[-1].header.step == WORDS - 1)
        return len(events) < WORDS / 10  # some dozens fit into memory that is for this rank alone
    if transport.rank == 2:
        collect(transport, answered)
        transport.send([Blob(0, 1, b"yes")])
        return transport.flush(PATIENCE_SECONDS)
    return True


def blobs(transport: MpiTransport) -> bool:
    """Bytes of any length arrive whole and in order, from everyone to everyone at once."""
    peers = [rank for rank in range(4) if rank != transport.rank]
    content = lambda sender, number: bytes([sender + number]) * BLOB_SIZES[number]
    for number in range(len(BLOB_SIZES)):
        transport.send(Blob(peer, number, content(transport.rank, number)) for peer in peers)
    events = collect(transport, lambda events: len(events) == 3 * len(BLOB_SIZES))
    return transport.flush(PATIENCE_SECONDS) and all(
        [(event.topic, event.data) for event in events if event.peer == peer]
        == [(number, content(peer, number)) for number in range(len(BLOB_SIZES))]
        for peer in peers
    )


def death(transport: MpiTransport, later: list) -> bool:
    """A rank that is killed is reported once to everyone, and the others go on; `later` takes what they begin with."""
    if transport.rank == 3:  # a barrier that another rank has not left would fail with this one's death
        collect(transport, lambda events: sum(isinstance(event, Blob) and event.topic == 8 for event in events) == 3)
        os.kill(os.getpid(), signal.SIGKILL)
    transport.send([Blob(3, 8, b"out of the barrier")])
    events = collect(transport, lambda events: any(isinstance(event, PeerLost) for event in events))
    transport.send(Blob(peer, 9, b"still here") for peer in range(4) if peer != transport.rank)
    both = lambda more: sum(isinstance(event, Blob) and event.topic == 9 for event in events + more) == 2
    events += collect(transport, both)
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        events += transport.poll()
    later += filter(to_speak, events)
    return [event.peer for event in events if isinstance(event, PeerLost)] == [3]


def to_speak(event) -> bool:
    return isinstance(event, Blob) and event.topic == 10


def garbled(transport: MpiTransport, earlier: list) -> bool:
    """A header that is none ends the wait for it, and its sender is named. `earlier`: events of before."""
    if transport.rank == 0:  # whose last look at the death of rank 3 is over
        transport.send([Blob(2, 10, b"speak")])
    if transport.rank == 2:
        collect(transport, lambda events: any(map(to_speak, earlier + events)))
        transport.comm.Send(np.full(transport.format.nbytes, 200, np.uint8), 0, Kind.BLOB)
    if transport.rank > 0:
        return True
    end = time.monotonic() + PATIENCE_SECONDS
    try:
        while time.monotonic() < end:
            transport.poll()
    except Garbled as error:
        return str(error).startswith("rank 2 sent an unreadable message")
    return False


def main() -> None:
    """Runs all of it; a rank that finds something wrong says so, and the job goes on to its end."""
    comm = settled_world()
    transport = MpiTransport(comm, 1, survive=True)
    if transport.rank > 0:
        floats = CUTS[transport.rank] - CUTS[transport.rank - 1]
        transport.open([Channel(0, Kind.GRADIENT, floats), Channel(0, Kind.PARAMETERS, LARGE), Channel(0, Kind.WORD)])
    found = {}
    for check in (slices, newest_only, words, blobs):
        found[check.__name__] = check(transport)
        meet(comm)
    early: list = []
    found["death"] = death(transport, early)
    found["garbled"] = garbled(transport, early)
    found["tensorflow"] = "tensorflow" in sys.modules
    print(json.dumps({"rank": transport.rank} | found), flush=True)
    transport.close()
    leave(comm, 0, survive=True)


if __name__ == "__main__":
    main()
