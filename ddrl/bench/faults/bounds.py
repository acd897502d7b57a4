"""What must become of a run after a fault, and within which time: docs/failures.md in numbers.

The seconds are the time limits in ddrl's own code, made for a busy machine; an idle one takes a tenth of them.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from ddrl.apex.known_shards import SILENT_SECONDS
from ddrl.apex.sampler import SAVE_SECONDS
from ddrl.bench.faults.draws import STALL_SECONDS, SYSTEMS, Draw, System
from ddrl.checkpoint import GATHER_SECONDS
from ddrl.job.watchdog import ANSWER_SECONDS, LEAVE_SECONDS, LOOK_SECONDS
from ddrl.launch.supervisor import GONE_SECONDS, KILL_SECONDS, LOST_SECONDS, STOP_SECONDS, UNSAID_SECONDS
from ddrl.roles.chief import LAST_COMMIT_SECONDS
from ddrl.roles.main import ABORT_SECONDS

BEGIN_SECONDS = 180.0  # to load TensorFlow and begin to train: 5 s on an idle machine, minutes on a very busy one
CURVE_SECONDS = 30.0  # for the launcher to draw the learning curve, its last work
SETTLE_SECONDS = 0.7  # a death is seen after 0.2 s; updates later than this were made without the dead process
SLOW_SECONDS = 10.0  # for what takes no time on an idle machine
HOLD_SECONDS = STALL_SECONDS + ANSWER_SECONDS + 2.0  # a process stays stopped so long that the others notice
FULL_SECONDS = 4.0  # how long the disk stays full

STALLED = STALL_SECONDS + LOOK_SECONDS + 2 * ANSWER_SECONDS + ABORT_SECONDS + KILL_SECONDS
ASKED = STOP_SECONDS + KILL_SECONDS + CURVE_SECONDS
ALONE = LAST_COMMIT_SECONDS + GATHER_SECONDS + LEAVE_SECONDS
AGAIN = LOST_SECONDS + KILL_SECONDS + BEGIN_SECONDS

Becomes = Literal["ends", "goes on", "either"]
ANY = (0, 1, 2, 130, -2, -9, -15)
FAILED, WELL = (1,), (0,)


@dataclasses.dataclass(frozen=True)
class Bound:
    """What must become of a run after a fault.

    Attributes:
        becomes: whether the run ends or goes on.
        seconds: the time within which that must be seen.
        statuses: exit statuses with which `ddrl train` may end; negative: the signal that ended it.
        why: where the seconds come from.
        again: the run goes on by starting all ranks again.
        saves: the run saves a checkpoint before it ends, so that no updates since the last one are lost.
        held: the victim stays stopped for HOLD_SECONDS; `seconds` count from the end of that time.
    """

    becomes: Becomes
    seconds: float
    statuses: tuple[int, ...]
    why: str
    again: bool = False
    saves: bool = False
    held: bool = False


GOES_ON = Bound("goes on", SLOW_SECONDS + SETTLE_SECONDS, FAILED, "the others do without it")
STARTS_AGAIN = Bound(
    "goes on", AGAIN, FAILED, "all ranks end (15 s) and start again from the last checkpoint", again=True
)
STALLS = Bound("ends", STALLED, FAILED, "--stall-seconds, 4 s for the stacks, then MPI's abort and the launcher's kill")
STOPS = Bound("ends", ASKED, WELL, "asked to stop: 90 s for the ranks, 5 s to kill them, then the curve", saves=True)
LEFT_ALONE = Bound("ends", ALONE, (-9,), "the ranks see that the launcher is gone, save and leave", saves=True)
FAILS = Bound("ends", ASKED, FAILED, "a worker's exception: checkpoint, then the run fails", saves=True)
FILLS = Bound(
    "either", HOLD_SECONDS + AGAIN, (0, 1, 2), "a checkpoint fails and training goes on, or the job is aborted"
)
STAYS_FULL = Bound("ends", FULL_SECONDS + ASKED, (1, 2), "asked to stop; the last checkpoint is tried for 40 s")
BEGINS = Bound(
    "either",
    UNSAID_SECONDS + GONE_SECONDS + AGAIN,
    ANY,
    "a death is seen after 15 s at most; the ranks begin meanwhile",
)
BEGINS_ASKED = Bound("ends", BEGIN_SECONDS + ASKED, ANY, "a stop is seen once the chief has begun")
BEGINS_ALONE = Bound("ends", BEGIN_SECONDS + ALONE, (-9,), "that the launcher is gone is seen once the chief has begun")


def bound(draw: Draw) -> Bound:
    """What must become of a run to which this fault happens."""
    system = SYSTEMS[draw.system]
    if draw.starting:
        return _starting(draw.kind)
    by_kind = {
        "rank-term": STOPS,
        "mpirun-kill": dataclasses.replace(STARTS_AGAIN, becomes="either"),
        "mpirun-term": dataclasses.replace(STARTS_AGAIN, becomes="either", statuses=(0, 1), seconds=ASKED),
        "launcher-kill": LEFT_ALONE,
        "launcher-term": STOPS,
        "launcher-int": STOPS,
        "disk-full": FILLS,
        "disk-stays-full": STAYS_FULL,
    }
    if draw.kind in by_kind:
        return by_kind[draw.kind]
    if draw.kind.startswith("child"):
        return _child(system, draw)
    return _stopped(system, draw) if draw.kind == "rank-stop" else _killed(system, draw.victim)


def _starting(kind: str) -> Bound:
    if kind == "launcher-kill":
        return BEGINS_ALONE
    return BEGINS_ASKED if kind.startswith("launcher") else BEGINS


def _killed(system: System, role: str) -> Bound:
    if role in ("chief", "server") or system.restarts_for_all:
        return STARTS_AGAIN
    if role == "evaluator":
        return GOES_ON
    # A run that has survived earlier faults may lose the last rank of this role, and then starts again.
    return dataclasses.replace(STARTS_AGAIN, becomes="either", again=False)


def _stopped(system: System, draw: Draw) -> Bound:
    if system.single:
        return _silent(draw)  # no other process waits for it
    if draw.victim in ("chief", "server") or (draw.victim == "worker" and system.waits_for_workers):
        return STALLS
    silent = _silent(draw)
    if draw.victim == "worker" and "central_store" in system.arguments and draw.wakes:
        return dataclasses.replace(silent, becomes="either", seconds=silent.seconds + STALLED, why="it may hold a lock")
    return silent


def _silent(draw: Draw) -> Bound:
    """The bound for a stopped process whose silence does not end the run."""
    if draw.wakes:
        seconds = SILENT_SECONDS + GOES_ON.seconds
        return dataclasses.replace(GOES_ON, seconds=seconds, held=True, why="the others do without it until it wakes")
    statuses = (0, 1) if draw.victim == "worker" else WELL
    seconds = SAVE_SECONDS + STOPS.seconds  # the 90 s of a run with a replay begin when that is saved
    return dataclasses.replace(STOPS, seconds=seconds, statuses=statuses, held=True, why=f"one is silent; {STOPS.why}")


def _child(system: System, draw: Draw) -> Bound:
    if system.children == "simulator":
        unmoved = dataclasses.replace(GOES_ON, why="a simulator process leaves signals that ask for a stop to its rank")
        return {"child-stop": STALLS, "child-kill": FAILS, "child-term": unmoved}[draw.kind]
    return _silent(draw) if draw.kind == "child-stop" else GOES_ON
