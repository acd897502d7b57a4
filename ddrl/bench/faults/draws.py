"""Draws the faults: which run is broken, how, and when. Fault I of a seed is always the same draw."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

INTERVAL_UPDATES = 100  # between checkpoints
STALL_SECONDS = 5.0  # after which a silent rank ends its job
START_SECONDS = 120.0  # in which all ranks must have begun, whatever else the machine does
COMMON = (
    "--minutes", "30", "--no-video", "--log-every-seconds", "0.3", "--checkpoint-every-updates", str(INTERVAL_UPDATES),
    "--stall-seconds", f"{STALL_SECONDS:g}", "--start-seconds", f"{START_SECONDS:g}", "--max-restarts", "20",
)  # fmt: skip
"""Settings of all runs. Runs live far shorter here than their budget of minutes; it ends one that was left behind."""


@dataclasses.dataclass(frozen=True)
class System:
    """A configuration of `ddrl train` whose runs are broken.

    Attributes:
        name: its name on the command line.
        arguments: the arguments of `ddrl train`.
        roles: the roles of its ranks; "worker" is a worker that is not the chief.
        children: the kind of child processes that its ranks start: "actor", "simulator", or "" for none.
        waits_for_workers: whether every step needs all workers, so that a silent one ends the job.
        replays: the roles that write replay files.
        turns_with: a system whose place among the draws it takes every other time, so that no other draw changes.
    """

    name: str
    arguments: tuple[str, ...]
    roles: tuple[str, ...]
    children: str = ""
    waits_for_workers: bool = True
    replays: tuple[str, ...] = ()
    turns_with: str = ""

    @property
    def single(self) -> bool:
        """Whether it is one process without mpirun."""
        return len(self.roles) == 1

    @property
    def restarts_for_all(self) -> bool:
        """Whether the death of any rank starts all of them again."""
        return "restart" in self.arguments


def _ba3c(name: str, *arguments: str, roles: str, **facts: Any) -> System:
    options = ("--eval-every-updates", "300", "--eval-games", "2") if "evaluator" in roles else ("--no-evaluator",)
    return System(name, ("ba3c", "--preset", "smoke", *arguments, *options), tuple(roles.split()), **facts)


def _of(algorithm: str, *arguments: str) -> tuple[str, ...]:
    return (algorithm, "--preset", "smoke", *arguments, "--no-evaluator")


TWO_SERVERS = ("--parameter-servers", "2")
TWO_WORKERS = ("--workers", "2", "--parameter-servers", "1")
TWO_SHARDS = ("--replay-shards", "2")

_ALL = (
    _ba3c("sync", *TWO_SERVERS, roles="chief worker server evaluator"),
    _ba3c("async", "--updates", "asynchronous", *TWO_SERVERS, roles="chief worker server", waits_for_workers=False),
    _ba3c("quorum", "--quorum", "1", roles="chief worker server", waits_for_workers=False),
    _ba3c("deadline", "--quorum-deadline-seconds", "0.1", roles="chief worker server", waits_for_workers=False),
    _ba3c("dedicated", "--chief", "dedicated", roles="chief worker server"),
    _ba3c("restart", "--on-worker-loss", "restart", roles="chief worker server evaluator"),
    _ba3c("allreduce", "--exchange", "allreduce", roles="chief worker"),
    _ba3c("local-sgd", "--exchange", "local_sgd", "--local-steps", "4", roles="chief worker", turns_with="allreduce"),
    _ba3c("store", "--exchange", "central_store", roles="chief worker", waits_for_workers=False),
    _ba3c("local", "--exchange", "central_store", "--local-steps", "4", roles="chief worker", waits_for_workers=False),
    _ba3c("single", "--workers", "1", "--parameter-servers", "0", roles="chief"),
    System("dqn", _of("dqn", *TWO_WORKERS), ("chief", "worker", "server"), replays=("chief", "worker")),
    System(
        "ppo", _of("ppo", *TWO_WORKERS, "--groups", "1", "--simulator-processes", "1"), ("chief", "worker", "server"),
        children="simulator",
    ),
    System("hts", _of("hts-a2c", *TWO_WORKERS), ("chief", "worker", "server")),
    System(
        "apex-dqn", ("apex-dqn", "--preset", "smoke", *TWO_SHARDS, "--eval-every-updates", "500", "--eval-games", "2"),
        ("chief", "actor", "shard", "evaluator"), children="actor", waits_for_workers=False, replays=("shard",),
    ),
    System(
        "apex-dpg", _of("apex-dpg", *TWO_SHARDS, "--parameter-servers", "1"), ("chief", "actor", "server", "shard"),
        children="actor", waits_for_workers=False, replays=("shard",),
    ),
)  # fmt: skip
SYSTEMS = {system.name: system for system in _ALL}
"""Every exchange, schedule and kind of replay, in a small run of its own."""

# faults ---------------------------------------------------------------------------------------------------------------

BLOCK = 5  # consecutive faults of one system: a run that survives one of them is broken again
STARTING_SHARE = 0.12  # share of the faults in STARTING that happen while the ranks start
LONGEST_SECONDS = 1.5  # longest delay of a fault after the run was seen to train
LONGEST_START_SECONDS = 6.0  # longest delay of a fault after the launcher was started
WAKES_SHARE = 0.7  # share of the stopped processes that are woken; the others stay stopped until the run ends

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
"""Kind of fault -> its explanation. A full disk is emulated by a limit of file sizes (RLIMIT_FSIZE of all Python
processes of the run), which needs no privileges."""
SHARES = {"disk-stays-full": 0.3}
"""Weights of the kinds that are drawn less often than the others (1.0): this one takes 40 s."""
STARTING = ("rank-kill", "rank-term", "mpirun-kill", "mpirun-term", "launcher-kill", "launcher-term", "launcher-int")
"""Kinds that may happen while the ranks start."""


@dataclasses.dataclass(frozen=True)
class Draw:
    """One fault as it was drawn.

    Attributes:
        index: the number of the fault.
        system: the name of the system.
        kind: one of KINDS.
        victim: the role of a rank; "actor" or "simulator" for a child process; or "mpirun", "launcher", "all".
        which: picks one of several victims, in [0, 1).
        starting: whether it happens while the ranks start; else while they train.
        delay: seconds after the launcher was started, or after the run was seen to train.
        wakes: whether a stopped process is woken before the run ends.
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
    """The possible victims of a kind of fault, as in `Draw.victim`; empty if it cannot happen to this system."""
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
    """Draws fault `index` of a seed.

    All systems take turns, in an order that is drawn anew for each round; two of them may share a place.

    Args:
        seed: seed of the draws.
        index: number of the fault.
        systems: names of the systems to draw from; those to which none of the kinds can happen are left out.
        kinds: kinds of faults to draw from.

    Raises:
        ValueError: no system is left.
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
