"""The ranks of a job tell rank 0 what they see, and measure clocks and links in pairs: MPI without blocking calls.

Rank 0 speaks to each rank alone: gather facts, hand out what to find out together, gather that, then lead pairs of
ranks one after another through their measurements, and end. Whoever does not answer in time is named.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import secrets
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from mpi4py import MPI

from ddrl.doctor import facts as local
from ddrl.doctor.facts import RankFacts
from ddrl.doctor.probe import RANK_0_FILE, Probe, rank_file
from ddrl.doctor.survey import LinkSpeed, Survey

TAG_JSON, TAG_PING = 1, 2
POLL_SECONDS = 0.001
RESOLVE_SECONDS = 10.0
NAMES = 64  # looked up by each node, at most
ALL_PAIRS = 8  # nodes of which every pair is measured; of more, neighbors in two rings
INNER_PAIRS = 16  # nodes within which a pair is measured
PINGS, BLOCKS = 40, 12
BLOCK_BYTES = 1 << 20  # about a slice of the parameters
GPU_SHARE = 0.8  # of the timeout, for TensorFlow to look for GPUs
PAIR_SECONDS = 1.0  # a slow link is left after that with the rounds that it did


class Silent(Exception):
    """Ranks that did not answer in time: `ranks`, and `waiting` says for what."""

    def __init__(self, ranks: list[int], waiting: str):
        super().__init__(f"ranks {ranks}: {waiting}")
        self.ranks, self.waiting = ranks, waiting


class Talk:
    """JSON between ranks; every wait ends at the deadline."""

    def __init__(self, comm: MPI.Comm, timeout_seconds: float):
        self.comm, self.rank, self.timeout_seconds = comm, comm.Get_rank(), timeout_seconds
        self._sends: list[tuple[MPI.Request, int, np.ndarray]] = []

    def send(self, peer: int, content: Any) -> None:
        """Starts sending; `flush` waits."""
        data = np.frombuffer(json.dumps(content).encode(), np.uint8)
        self._sends.append((self.comm.Isend([data, MPI.BYTE], peer, TAG_JSON), peer, data))

    def gather(self, peers: Iterable[int], waiting: str, seconds: float | None = None) -> dict[int, Any]:
        """The next message of each peer.

        Args:
            peers: their ranks.
            waiting: what they are to tell, for the error.
            seconds: for all of them (None: the timeout).

        Raises:
            Silent: for those that did not come in time.
        """
        answers: dict[int, Any] = {}
        missing, status = list(peers), MPI.Status()
        end = time.monotonic() + (self.timeout_seconds if seconds is None else seconds)
        while missing:
            for peer in list(missing):
                if self.comm.Iprobe(peer, TAG_JSON, status):
                    answers[peer] = self._read(peer, status.Get_count(MPI.BYTE), end)
                    missing.remove(peer)
            if missing and time.monotonic() > end:
                raise Silent(missing, waiting)
            time.sleep(POLL_SECONDS)
        return answers

    def receive(self, peer: int, waiting: str) -> Any:
        """The next message of one peer."""
        return self.gather([peer], waiting)[peer]

    def flush(self) -> None:
        """Waits until everything is sent."""
        end = time.monotonic() + self.timeout_seconds
        for request, peer, _ in self._sends:
            self.wait(request, end, peer, "to take a message")
        self._sends.clear()

    def wait(self, request: MPI.Request, end: float, peer: int, waiting: str, status: MPI.Status | None = None) -> None:
        """Tests until it is done, and gives the core away in between.

        Args:
            request: under way.
            end: of the patience, in time.monotonic's seconds.
            peer: its other side.
            waiting: for what, for the error.
            status: is filled in.

        Raises:
            Silent: naming the peer, when the time is over.
        """
        while not request.Test(status):
            if time.monotonic() > end:
                raise Silent([peer], waiting)
            os.sched_yield()

    def _read(self, peer: int, size: int, end: float) -> Any:
        data = np.empty(size, np.uint8)
        self.wait(self.comm.Irecv([data, MPI.BYTE], peer, TAG_JSON), end, peer, "the rest of a message")
        return json.loads(data.tobytes())


@dataclasses.dataclass(frozen=True)
class Measured:
    """One pair: half a round trip in seconds, bytes/s one way (0: not asked), other clock minus this one, seconds."""

    latency: float
    bandwidth: float
    offset: float


def lead(talk: Talk, own: RankFacts, probe: Probe, begin_seconds: float, began: Callable[[], None]) -> Survey:
    """Rank 0's part.

    Args:
        talk: with all ranks.
        own: facts of this rank.
        probe: of this rank.
        begin_seconds: time for all ranks to tell their facts.
        began: called when they have.

    Raises:
        Silent: when a rank does not answer.
    """
    others = range(1, own.world)
    told = talk.gather(others, "what it sees of its machine", begin_seconds)
    ranks = (own, *(RankFacts.from_json(told[rank]) for rank in others))
    began()
    leaders = [group[0].rank for group in Survey(ranks).nodes.values()]
    token = secrets.token_hex(8)
    plan: dict[str, Any] = {"token": token, "names": list(Survey(ranks).nodes)[:NAMES]}
    probe.write_token(token)
    for rank in others:
        talk.send(rank, plan | {"leader": rank in leaders})
    written = {rank_file(facts.rank): facts.nonce for facts in ranks if not facts.base.error}
    unseen = written.keys() - probe.sees(written)
    answers = {0: explore(plan | {"leader": True}, own, probe, talk.timeout_seconds)}
    answers |= talk.gather(others, "what it finds out about the others")
    clocks = {rank: _pair(talk, 0, rank, blocks=0) for rank in leaders[1:]}
    links = _links(talk, pairs(ranks))
    for rank in others:
        talk.send(rank, {"end": True})
    talk.flush()
    by_host = {ranks[rank].host: answers[rank] for rank in leaders}
    return Survey(
        ranks,
        unresolved={host: answer["unresolved"] for host, answer in by_host.items()},
        tensorflow_gpus={host: answer["gpus"] for host, answer in by_host.items() if answer["gpus"] is not None},
        links=links,
        skews={ranks[rank].host: measured.offset for rank, measured in clocks.items()},
        token_unseen=tuple(rank for rank, answer in answers.items() if not answer["token_seen"]),
        file_unseen=tuple(facts.rank for facts in ranks if rank_file(facts.rank) in unseen),
    )


def follow(talk: Talk, own: RankFacts, probe: Probe, began: Callable[[], None]) -> None:
    """The part of every other rank.

    Args:
        talk: with rank 0.
        own: facts of this rank.
        probe: of this rank.
        began: called when rank 0 has those of all.

    Raises:
        Silent: when rank 0 does not answer.
    """
    talk.send(0, dataclasses.asdict(own))
    plan = talk.receive(0, "rank 0's plan")
    began()
    talk.send(0, explore(plan, own, probe, talk.timeout_seconds))
    while not (order := talk.receive(0, "rank 0's next order")).get("end"):
        if order["ping"]:
            talk.send(0, dataclasses.asdict(ping(talk, order["peer"], order["blocks"])))
        else:
            echo(talk, order["peer"])
    talk.flush()


def explore(plan: dict[str, Any], own: RankFacts, probe: Probe, timeout_seconds: float) -> dict[str, Any]:
    """What a rank finds out when it knows of the others; names and TensorFlow once on each node.

    Args:
        plan: rank 0's message: the token of its file, names of hosts, and whether this rank speaks for its node.
        own: facts of this rank.
        probe: of this rank.
        timeout_seconds: of a wait; TensorFlow's look at the GPUs gets a share of it.
    """
    leader = plan["leader"]
    return {
        "token_seen": not own.base.error and bool(probe.sees({RANK_0_FILE: plan["token"]})),
        "unresolved": local.unresolved(plan["names"], RESOLVE_SECONDS) if leader else [],
        "gpus": local.tensorflow_gpus(GPU_SHARE * timeout_seconds) if leader and own.seat.gpus else None,
    }


def pairs(ranks: tuple[RankFacts, ...]) -> list[tuple[int, int]]:
    """Ranks to measure between: the first of every node with each other, or in rings; the first two of a node."""
    nodes = list(Survey(ranks).nodes.values())
    leaders = [group[0].rank for group in nodes]
    count = len(leaders)
    if count <= ALL_PAIRS:
        between = list(itertools.combinations(leaders, 2))
    else:
        ring = [(i, (i + step) % count) for step in (1, count // 2) for i in range(count)]
        between = sorted({(leaders[min(pair)], leaders[max(pair)]) for pair in ring})
    within = [(group[0].rank, group[1].rank) for group in nodes if len(group) > 1]
    return between + within[:INNER_PAIRS]


def _links(talk: Talk, wanted: list[tuple[int, int]]) -> tuple[LinkSpeed, ...]:
    """One pair after another, as many as the timeout allows."""
    links, end = [], time.monotonic() + talk.timeout_seconds
    for a, b in wanted:
        if time.monotonic() < end:
            measured = _pair(talk, a, b, BLOCKS)
            links.append(LinkSpeed(a, b, measured.latency, measured.bandwidth))
    return tuple(links)


def _pair(talk: Talk, a: int, b: int, blocks: int) -> Measured:
    """Leads a pair through its measurement; rank 0 may be one of the two, the first then."""
    talk.send(b, {"ping": False, "peer": a})
    if a == 0:
        return ping(talk, b, blocks)
    talk.send(a, {"ping": True, "peer": b, "blocks": blocks})
    return Measured(**talk.receive(a, f"its measurement with rank {b}"))


def ping(talk: Talk, peer: int, blocks: int) -> Measured:
    """Measures with a peer that echoes: small messages, then blocks. The first of each kind only warms up.

    Args:
        talk: with all ranks.
        peer: the rank that runs `echo`.
        blocks: large messages; 0: only small ones.
    """
    trips = list(_trips(talk, peer, PINGS, 8))
    offset = min(trips)[1]  # of the quickest trip, which knows best
    large = [seconds for seconds, _ in _trips(talk, peer, blocks, BLOCK_BYTES)] if blocks else []
    _send_block(talk, peer, np.zeros(0, np.uint8))
    bandwidth = 2 * BLOCK_BYTES / statistics.median(large) if large else 0.0
    return Measured(statistics.median(seconds for seconds, _ in trips) / 2, bandwidth, offset)


def _trips(talk: Talk, peer: int, count: int, size: int) -> Iterable[tuple[float, float]]:
    """(seconds, clock of the peer minus ours) of round trips."""
    block = np.zeros(size, np.uint8)
    end = time.monotonic() + PAIR_SECONDS
    for number in range(count + 1):
        start, began = time.perf_counter(), local.wall_clock()
        _send_block(talk, peer, block)
        _receive_block(talk, peer, block)
        seconds = time.perf_counter() - start
        if number:
            yield seconds, float(block[:8].view(np.float64)[0]) - (began + seconds / 2)
        if number > 2 and time.monotonic() > end:
            return


def echo(talk: Talk, peer: int) -> None:
    """Sends back what comes, with this clock's time in front, until an empty message comes."""
    block = np.zeros(BLOCK_BYTES, np.uint8)
    while size := _receive_block(talk, peer, block):
        block[:8].view(np.float64)[0] = local.wall_clock()
        _send_block(talk, peer, block[:size])


def _send_block(talk: Talk, peer: int, block: np.ndarray) -> None:
    end = time.monotonic() + talk.timeout_seconds
    talk.wait(talk.comm.Isend([block, MPI.BYTE], peer, TAG_PING), end, peer, "to take a ping")


def _receive_block(talk: Talk, peer: int, block: np.ndarray) -> int:
    end, status = time.monotonic() + talk.timeout_seconds, MPI.Status()
    talk.wait(talk.comm.Irecv([block, MPI.BYTE], peer, TAG_PING), end, peer, "a ping", status)
    return status.Get_count(MPI.BYTE)
