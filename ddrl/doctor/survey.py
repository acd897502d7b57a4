"""What the ranks found (Survey), what the settings ask for (Need), and a line of the report (Finding)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

from cluster.roles import COMPUTES, Assignment, Sizes
from ddrl.doctor.facts import RankFacts

Level = Literal["problem", "warning", "fine"]
LEVELS: tuple[Level, ...] = ("problem", "warning", "fine")


class Finding(NamedTuple):
    """One line of the report: what was looked at, what was found, and what to do about it."""

    level: Level
    check: str
    found: str
    remedy: str = ""


Findings = list[Finding]


class LinkSpeed(NamedTuple):
    """What two ranks measured: half the time of a round trip, seconds, and bytes/s one way (medians)."""

    a: int
    b: int
    latency: float
    bandwidth: float


@dataclasses.dataclass(frozen=True)
class Need:
    """What the settings of the run ask for.

    Attributes:
        sizes: numbers of the roles; None when no settings were given: then any rank may be a worker.
        roles: role of each rank, as `examine` casts them.
        memory: assignments -> bytes of memory of each rank, by the settings; None: its role alone says how much.
        rank_bytes: what `memory` says of the ranks that there are; empty if it says nothing.
        survive: go on without a dead worker.
        gpus_per_node: GPUs that each node must show; 0: those that the job was given.
        existing: the run goes on in a directory that is there (--resume).
        outside: why the ranks that were started are not the user's job; empty if they are.
    """

    sizes: Sizes | None = None
    roles: tuple[str, ...] = ()
    memory: Callable[[Sequence[Assignment]], Sequence[float]] | None = None
    rank_bytes: tuple[float, ...] = ()
    survive: bool = True
    gpus_per_node: int = 0
    existing: bool = False
    outside: str = ""

    def heavy(self, rank: int) -> bool:
        """Whether a rank runs TensorFlow and emulators."""
        return not self.roles or self.roles[rank] in COMPUTES

    def trains(self, rank: int) -> bool:
        """Whether a rank computes all the time (an evaluator sleeps between its games)."""
        return not self.roles or self.roles[rank] == "worker"


@dataclasses.dataclass(frozen=True)
class Survey:
    """Facts of all ranks, and what they found out together.

    Attributes:
        ranks: the facts, in the order of the ranks.
        unresolved: host -> names that have no address there.
        tensorflow_gpus: host -> GPUs that TensorFlow can use there, where that was asked; -1: no answer.
        links: measured pairs of ranks.
        skews: host -> its clock minus that of rank 0's host, seconds.
        token_unseen: ranks that did not see rank 0's file in the run directory.
        file_unseen: ranks whose file rank 0 did not see.
    """

    ranks: tuple[RankFacts, ...]
    unresolved: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    tensorflow_gpus: dict[str, int] = dataclasses.field(default_factory=dict)
    links: tuple[LinkSpeed, ...] = ()
    skews: dict[str, float] = dataclasses.field(default_factory=dict)
    token_unseen: tuple[int, ...] = ()
    file_unseen: tuple[int, ...] = ()

    @property
    def nodes(self) -> dict[str, list[RankFacts]]:
        """host -> facts of its ranks."""
        return grouped(self.ranks, lambda facts: facts.host)


def grouped(ranks: Iterable[RankFacts], key: Callable[[RankFacts], str]) -> dict[str, list[RankFacts]]:
    """Key -> the ranks that have it, in their order."""
    groups: dict[str, list[RankFacts]] = {}
    for facts in ranks:
        groups.setdefault(key(facts), []).append(facts)
    return groups
