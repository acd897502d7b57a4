"""Which rank has which role, cores and GPU: pure functions of the topology and of the sizes asked for."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, NamedTuple

from cluster.topology import ROLE_VARIABLE, Seat
from cluster.wording import counted

Role = Literal["worker", "chief", "parameter_server", "evaluator", "actor", "replay_shard"]
WISHES: tuple[Role, ...] = ("worker", "parameter_server", "evaluator", "actor", "replay_shard")
"""What a rank may ask for with DDRL_ROLE."""
COMPUTES: tuple[Role, ...] = ("worker", "actor", "evaluator")
"""Roles with TensorFlow and simulators."""


class Assignment(NamedTuple):
    """What one rank does.

    Attributes:
        rank: rank in the world that was started.
        role: worker (trains), chief (a dedicated one that only coordinates), parameter_server, evaluator; of Ape-X
            actor (acts, and does not train) and replay_shard.
        index: its number among those of its role: worker_id of a worker, shard index of a parameter server.
        is_chief: True for the one rank that coordinates; a worker unless the chief is dedicated.
        host: its node.
        cores: processors that it should count on; 1 for the roles without TensorFlow.
        gpu: the one that it computes on, as CUDA_VISIBLE_DEVICES names it, or empty.
    """

    rank: int
    role: Role
    index: int  # type: ignore[assignment] # hides tuple.index
    is_chief: bool = False
    host: str = ""
    cores: int = 1
    gpu: str = ""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How many ranks of each role a job has.

    Attributes:
        workers: at least 1.
        parameter_servers: 0: a single process, or workers that exchange among themselves.
        dedicated_chief: one rank more, which only coordinates.
        evaluator: one rank more, which plays games with published versions.
        actors, replay_shards: of Ape-X, which has one worker, the learner.

    Raises:
        ValueError: when they make no job.
    """

    workers: int
    parameter_servers: int
    dedicated_chief: bool = False
    evaluator: bool = False
    actors: int = 0
    replay_shards: int = 0

    def __post_init__(self) -> None:
        if self.workers < 1 or self.parameter_servers < 0:
            sizes = f"{counted(self.workers, 'worker')} and {counted(self.parameter_servers, 'parameter server')}"
            raise ValueError(f"{sizes} do not make a job")
        if self.parameter_servers == 0 and self.dedicated_chief:
            raise ValueError("without a parameter server, a worker is the chief")
        if min(self.actors, self.replay_shards) < 0 or bool(self.actors) != bool(self.replay_shards):
            sizes = f"{counted(self.actors, 'actor')} and {counted(self.replay_shards, 'replay shard')}"
            raise ValueError(f"{sizes} do not make a job")
        if self.actors and (self.workers > 1 or self.dedicated_chief):
            raise ValueError("with actors, one worker learns, and is the chief")

    def count(self, role: Role) -> int:
        """Ranks of this role."""
        if self.parameter_servers == 0 and self.workers == 1 and not self.actors:
            return int(role == "worker")
        return {
            "chief": int(self.dedicated_chief),
            "worker": self.workers,
            "parameter_server": self.parameter_servers,
            "evaluator": int(self.evaluator),
            "actor": self.actors,
            "replay_shard": self.replay_shards,
        }[role]

    @property
    def ranks(self) -> int:
        """Ranks of the job."""
        return self.count("chief") + sum(map(self.count, WISHES))

    def check_world(self, ranks: int) -> None:
        """Raises ValueError when a job of `ranks` ranks is not what these sizes need."""
        if ranks != self.ranks:
            raise ValueError(
                f"this job has {counted(ranks, 'rank')} and the settings need {self.ranks}: {self}; "
                f"start {counted(self.ranks, 'rank')}, or change the numbers"
            )

    def __str__(self) -> str:
        numbers = {
            "worker": self.workers, "parameter server": self.parameter_servers, "actor": self.actors,
            "replay shard": self.replay_shards, "dedicated chief": self.count("chief"),
            "evaluator": self.count("evaluator"),
        }  # fmt: skip
        return " + ".join(counted(number, noun) for noun, number in numbers.items() if number)


def assign_roles(sizes: Sizes) -> tuple[Assignment, ...]:
    """The roles on one machine: the chief is rank 0, then the other workers or actors, the servers, the replay shards,
    the evaluator."""
    return place((Seat(),) * sizes.ranks, sizes)


def place(seats: Sequence[Seat], sizes: Sizes) -> tuple[Assignment, ...]:
    """One Assignment per rank.

    The chief is rank 0. A rank with a wish (DDRL_ROLE) has it. The servers are spread: no node has two while
    another has a rank to spare and none; where there are GPUs, a rank to spare is one more than they are. So are
    the replay shards. The evaluator goes to the node with most processors for each rank, but not the chief's if there
    is another. Within a node the workers come first, then the servers, the replay shards, the evaluator; where there
    are actors, they are what other ranks are not, as workers are elsewhere. Indices follow the ranks.

    One worker without servers is a single process, which evaluates in line: no rank of its own for that. Several
    workers without servers exchange among themselves.

    Args:
        seats: of the ranks, by rank.
        sizes: of the job.

    Raises:
        ValueError: for another number of ranks, wishes that contradict them.
    """
    sizes.check_world(len(seats))
    _check_wishes(seats, sizes)
    roles = _cast(seats, sizes)
    cores, gpus = share_cores(seats, roles), share_gpus(seats, roles)
    seen: Counter[str] = Counter()
    assignments = []
    for rank, role in enumerate(roles):
        index = seen[role]
        seen[role] += 1
        assignments.append(Assignment(rank, role, index, rank == 0, seats[rank].host, cores[rank], gpus[rank]))
    return tuple(assignments)


def _check_wishes(seats: Sequence[Seat], sizes: Sizes) -> None:
    for rank, seat in enumerate(seats):
        if seat.wish and seat.wish not in WISHES:
            raise ValueError(
                f"{ROLE_VARIABLE}={seat.wish!r} on rank {rank} ({seat.host}): use one of {', '.join(WISHES)}, "
                "or unset it"
            )
    if seats[0].wish not in ("", "worker"):
        raise ValueError(
            f"{ROLE_VARIABLE}={seats[0].wish} on rank 0 ({seats[0].host}), which is the chief: "
            "start the workers' component first"
        )
    wishes = Counter(seat.wish for seat in seats[1:])
    wishes["worker"] += not sizes.dedicated_chief  # any other chief is one, whether it asks for that or not
    for role in WISHES:
        if wishes[role] > sizes.count(role):
            chief = ", the chief included" if role == "worker" and not (seats[0].wish or sizes.dedicated_chief) else ""
            raise ValueError(
                f"{counted(wishes[role], 'rank')} with {ROLE_VARIABLE}={role}{chief}, and the settings need "
                f"{sizes.count(role)}: change the numbers, or start as many"
            )


@dataclasses.dataclass
class _Host:
    """A node while its ranks are cast. Ranks that are still free count as workers, or actors where there are some."""

    free: list[int]
    processors: int
    room: Fraction  # processors for each rank
    gpus: int
    workers: int
    servers: int
    replay_shards: int
    evaluators: int
    is_chiefs: bool
    cast: list[Role] = dataclasses.field(default_factory=list)

    def share(self) -> Fraction:
        """Processors for each rank that computes."""
        return Fraction(self.processors, max(1, self.workers + self.evaluators))

    def take(self, role: Role) -> None:
        """Gives one of the free ranks another role than worker."""
        self.cast.append(role)
        self.workers -= 1
        self.servers += role == "parameter_server"
        self.replay_shards += role == "replay_shard"
        self.evaluators += role == "evaluator"


def _cast(seats: Sequence[Seat], sizes: Sizes) -> list[Role]:
    """The role of each rank."""
    fixed: list[str] = [seat.wish for seat in seats]
    fixed[0] = "chief" if sizes.dedicated_chief else "worker"
    hosts = [_host(name, seats, fixed) for name in dict.fromkeys(seat.host for seat in seats)]
    for _ in range(sizes.count("parameter_server") - fixed.count("parameter_server")):
        # Where processors are fewest: its workers set the pace of all, and have more of them then. The chief's
        # node is the first of equals, since its worker has most to do.
        host = min(_with_room(hosts), key=lambda host: (host.servers, host.share()))
        host.take("parameter_server")
    for _ in range(sizes.count("replay_shard") - fixed.count("replay_shard")):
        # Likewise; the learner's node has most to do already.
        host = min(_with_room(hosts), key=lambda host: (host.replay_shards, host.is_chiefs, host.servers, host.share()))
        host.take("replay_shard")
    for _ in range(sizes.count("evaluator") - fixed.count("evaluator")):
        host = min(_with_room(hosts), key=lambda host: (host.is_chiefs, -host.room, host.servers))
        host.take("evaluator")
    rest = "actor" if sizes.actors else "worker"
    for host in hosts:
        roles = [rest] * (len(host.free) - len(host.cast)) + host.cast
        for rank, role in zip(host.free, roles):
            fixed[rank] = role
    return fixed  # type: ignore[return-value] # every place has a role by now


def _host(name: str, seats: Sequence[Seat], fixed: list[str]) -> _Host:
    ranks = [rank for rank, seat in enumerate(seats) if seat.host == name]
    roles = Counter(fixed[rank] for rank in ranks)
    processors = len({core for rank in ranks for core in seats[rank].cores})
    return _Host(
        free=[rank for rank in ranks if not fixed[rank]],
        processors=processors,
        room=Fraction(processors, len(ranks)),
        gpus=gpus_of_node([seats[rank] for rank in ranks]),
        workers=roles["worker"] + roles["actor"] + roles[""],
        servers=roles["parameter_server"],
        replay_shards=roles["replay_shard"],
        evaluators=roles["evaluator"],
        is_chiefs=0 in ranks,
    )


def _with_room(hosts: list[_Host]) -> list[_Host]:
    """Nodes with a free rank; those where a worker less leaves no GPU unused, if there are any."""
    free = [host for host in hosts if len(host.free) > len(host.cast)]
    return [host for host in free if host.workers > host.gpus] or free


def gpus_of_node(seats: Sequence[Seat]) -> int:
    """How many GPUs the ranks of one node see together."""
    own = sum(len(seat.gpus) for seat in seats if seat.own_gpus)
    return own + len({gpu for seat in seats if not seat.own_gpus for gpu in seat.gpus})


def share_cores(seats: Sequence[Seat], roles: Sequence[Role]) -> list[int]:
    """Processors that each rank should count on, at least 1.

    A processor is shared equally by the workers whose affinity masks have it: so a worker that the launcher
    bound apart has its whole mask, and unbound ones divide their node. Actors divide likewise what no worker may use;
    beside the learner each has one processor, and the learner the rest. An evaluator plays a small part of the
    time, so it counts the others beside it, and they do not count it.
    """
    users = Counter(
        (seat.host, core) for seat, role in zip(seats, roles) if role in ("worker", "actor") for core in seat.cores
    )
    learners = {(seat.host, core) for seat, role in zip(seats, roles) if role == "worker" for core in seat.cores}
    shares = []
    for seat, role in zip(seats, roles):
        sleeps = int(role == "evaluator")
        mask = {(seat.host, core) for core in seat.cores}
        share: Fraction | int = sum(Fraction(1, users[core] + sleeps) for core in mask) if role in COMPUTES else 1
        if role == "actor" and mask & learners:
            share = 1
        elif role == "worker" and "actor" in roles:
            share = len(mask) - sum(
                other == "actor" and any((theirs.host, core) in mask for core in theirs.cores)
                for theirs, other in zip(seats, roles)
            )
        shares.append(max(1, int(share)))
    return shares


def share_gpus(seats: Sequence[Seat], roles: Sequence[Role]) -> list[str]:
    """The GPU of each worker, empty for the other roles: one each, and shared only when there are too few."""
    users: Counter[tuple[str, str]] = Counter()
    chosen = []
    for seat, role in zip(seats, roles):
        gpu = ""
        if role == "worker" and seat.gpus:
            gpu = seat.gpus[0] if seat.own_gpus else min(seat.gpus, key=lambda name: users[seat.host, name])
            users[seat.host, gpu] += 1
        chosen.append(gpu)
    return chosen
