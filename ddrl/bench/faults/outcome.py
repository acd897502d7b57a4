"""What came of a fault, and whether that is as it must be."""

from __future__ import annotations

import dataclasses

from ddrl.bench.faults.bounds import Bound
from ddrl.bench.faults.systems import INTERVAL_UPDATES

NEITHER = "neither"


@dataclasses.dataclass
class Outcome:
    """One fault and what came of it.

    Attributes:
        index, system, kind, victim, starting: of its draw.
        became: "ended", "went on", or "neither" within its bound.
        seconds: until that was seen, from the fault (from the request to end, where a process stays silent).
        status: with which `ddrl train` ended, or None.
        processes_left: that the run left behind.
        files_left: names of files that it left behind.
        unsound: checkpoints that cannot be resumed from.
        resumed: whether the run, once it had ended, trained again; None: it went on by itself.
        updates_lost: at that resume, or where all ranks started again by themselves.
        lag: updates by which checkpoints and lines of the metrics came late; these may be lost in addition.
        caught: where a process was killed while it saved: a part of a file was there.
        trouble: what else was wrong.
        directory: of the run, where it was kept.
        whole_seconds: that the fault took altogether.
    """

    index: int
    system: str
    kind: str
    victim: str
    starting: bool = False
    became: str = NEITHER
    seconds: float = 0.0
    status: int | None = None
    processes_left: int = 0
    files_left: list[str] = dataclasses.field(default_factory=list)
    unsound: list[str] = dataclasses.field(default_factory=list)
    resumed: bool | None = None
    updates_lost: int = 0
    lag: int = 0
    caught: bool = False
    trouble: list[str] = dataclasses.field(default_factory=list)
    directory: str = ""
    whole_seconds: float = 0.0
    bad: list[str] = dataclasses.field(default_factory=list)


def judge(outcome: Outcome, bound: Bound) -> list[str]:
    """What is wrong with an outcome: one short text each."""
    wrong = list(outcome.trouble)
    if outcome.became == NEITHER and not wrong:
        wrong.append(f"neither ended nor went on within {bound.seconds:.0f} s")
    elif outcome.seconds > bound.seconds:
        wrong.append(f"{outcome.became} after {outcome.seconds:.0f} s, and {bound.seconds:.0f} s are its bound")
    if (outcome.became, bound.becomes) in (("ended", "goes on"), ("went on", "ends")):
        wrong.append(f"{outcome.became}, and the run {bound.becomes} after such a fault")
    if outcome.became == "ended" and outcome.status not in bound.statuses:
        wrong.append(f"exit status {outcome.status}, not {' or '.join(map(str, bound.statuses))}")
    if outcome.processes_left:
        wrong.append(f"{outcome.processes_left} processes left")
    if outcome.files_left:
        wrong.append(f"files left: {', '.join(outcome.files_left)}")
    if outcome.unsound:
        wrong.append(f"unsound: {'; '.join(outcome.unsound)}")
    if outcome.resumed is False or (outcome.became == "ended" and outcome.resumed is None):
        wrong.append("does not train again when it is resumed")
    interval = 0 if bound.saves else INTERVAL_UPDATES
    if outcome.updates_lost > interval + outcome.lag:
        what = f"the {interval} of an interval" if interval else "none, as the run saves when it ends so,"
        wrong.append(f"{outcome.updates_lost} updates lost, more than {what} + {outcome.lag}")
    return wrong
