"""What happens to whom, and when: fault I of a seed is the same draw always."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from ddrl.bench.faults.systems import SYSTEMS, System

BLOCK = 5  # faults that follow each other in one system: what survives them is broken again
STARTING_SHARE = 0.12  # of the faults that can, happen while the ranks begin
LONGEST_SECONDS = 1.5  # after the run was seen to train
LONGEST_START_SECONDS = 6.0  # after the launcher was started
WAKES_SHARE = 0.7  # of the processes that are stopped; the others still are when the run is asked to end

KINDS = {
    "rank-kill": "SIGKILL of a rank",
    "rank-term": "SIGTERM of a rank",
    "rank-stop": "SIGSTOP of a rank",
    "child-kill": "SIGKILL of a child of a rank: an actor's process or a simulator process",
    "child-term": "SIGTERM of one",
    "child-stop": "SIGSTOP of one",
    "mpirun-kill": "SIGKILL of mpirun",
    "mpirun-term": "SIGTERM of mpirun",
    "launcher-kill": "SIGKILL of `ddrl train`",
    "launcher-term": "SIGTERM of it",
    "launcher-int": "SIGINT of it (Ctrl-C)",
    "saving-kill": "SIGKILL of a rank that writes a checkpoint or its replay",
    "disk-full": "no more room in files for some seconds",
    "disk-stays-full": "the same, until the run has ended",
}
"""Kind -> what it is. A disk that is full is a limit of the sizes of files (RLIMIT_FSIZE of all Python processes of the
run), which needs no privileges."""
SHARES = {"disk-stays-full": 0.3}
"""Of kinds that are drawn less often than the others: this one takes 40 s."""
STARTING = ("rank-kill", "rank-term", "mpirun-kill", "mpirun-term", "launcher-kill", "launcher-term", "launcher-int")
"""Kinds that may happen while the ranks begin."""


@dataclasses.dataclass(frozen=True)
class Draw:
    """One fault.

    Attributes:
        index: of the fault.
        system: name of the run.
        kind: of KINDS.
        victim: role of a rank, "actor" or "simulator" of a child, or "mpirun", "launcher", "all".
        which: picks one of several victims, in [0, 1).
        starting: while the ranks begin; else while they train.
        delay: seconds after the run has begun, or trains.
        wakes: a process that is stopped is woken again before the run ends.
    """

    index: int
    system: str
    kind: str
    victim: str
    which: float
    starting: bool
    delay: float
    wakes: bool


def victims(system: System, kind: str) -> tuple[str, ...]:
    """Whom a fault may happen to; nobody where the system has none of those."""
    what = kind.partition("-")[0]
    if what == "rank":
        return system.roles
    if what == "child":
        return (system.children,) if system.children else ()
    if what == "mpirun":
        return () if system.single else ("mpirun",)
    if what == "saving":
        return tuple(dict.fromkeys(("chief", *system.replays)))
    return ("launcher",) if what == "launcher" else ("all",)


def draw(seed: int, index: int, systems: Sequence[str], kinds: Sequence[str]) -> Draw:
    """Fault `index`: all systems come in turn, in an order that is drawn anew each time; two of them may share a place.

    Args:
        systems, kinds: to draw from; systems to which none of the kinds can happen are left out.

    Raises:
        ValueError: nothing is left.
    """
    possible = [name for name in systems if any(victims(SYSTEMS[name], kind) for kind in kinds)]
    if not possible:
        raise ValueError("none of these kinds can happen to these systems")
    sharing = {SYSTEMS[name].turns_with: name for name in possible if SYSTEMS[name].turns_with in possible}
    places = [name for name in possible if name not in sharing.values()]
    turn, place = divmod(index // BLOCK, len(places))
    random.Random(f"{seed} turn {turn}").shuffle(places)
    name = places[place]
    system = SYSTEMS[sharing.get(name, name) if turn % 2 else name]
    rng = random.Random(f"{seed} fault {index}")
    able = [kind for kind in kinds if victims(system, kind)]
    (kind,) = rng.choices(able, [SHARES.get(kind, 1.0) for kind in able])
    starting = rng.random() < STARTING_SHARE and kind in STARTING
    return Draw(
        index=index,
        system=system.name,
        kind=kind,
        victim=rng.choice(victims(system, kind)),
        which=rng.random(),
        starting=starting,
        delay=round(rng.uniform(0.0, LONGEST_START_SECONDS if starting else LONGEST_SECONDS), 3),
        wakes=rng.random() < WAKES_SHARE or system.single,
    )
