"""The outcome of a fault, whether it is as it must be, and a table of many outcomes."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from ddrl.bench.faults.bounds import Bound
from ddrl.bench.faults.draws import INTERVAL_UPDATES
from ddrl.wording import counted

NEITHER = "neither"
COLUMNS = (
    "faults", "ended", "went on", "median s", "most s", "bound s", "processes left", "files left", "unsound", "resumed",
    "trained again", "updates lost", "bad",
)  # fmt: skip
OF_BAD = ("index", "system", "kind", "victim", "directory")


@dataclasses.dataclass
class Outcome:
    """One fault and what came of it.

    Attributes:
        index, system, kind, victim, starting: those of its draw.
        became: "ended", "went on", or "neither" of them within its bound.
        seconds: time until that was seen, from the fault; if a process was held stopped, from the moment when it was
            woken or the run was asked to end.
        status: exit status of `ddrl train`, or None if it did not end.
        processes_left: number of processes that the run left behind.
        files_left: names of files that it left behind.
        unsound: for each checkpoint that cannot be resumed from, why.
        resumed: whether the run, once it had ended, trained again when resumed; None: it went on by itself.
        updates_lost: updates lost at that resume, or when all ranks started again by themselves.
        lag: updates by which checkpoints and lines of the metrics came late; these may be lost in addition.
        caught: whether a process that was killed while it saved left a partly written file.
        trouble: what else was wrong.
        directory: the run directory, if it was kept; else empty.
        whole_seconds: the time that the fault took altogether.
        bad: all that is wrong, as `judge` returned it; empty for a good outcome.
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
    """Lists what is wrong with an outcome, one short text for each point."""
    wrong = list(outcome.trouble)
    if outcome.became == NEITHER and not wrong:
        wrong.append(f"neither ended nor went on within {bound.seconds:.0f} s")
    elif outcome.seconds > bound.seconds:
        wrong.append(f"{outcome.became} after {outcome.seconds:.0f} s; the bound is {bound.seconds:.0f} s")
    if (outcome.became, bound.becomes) in (("ended", "goes on"), ("went on", "ends")):
        wrong.append(f"{outcome.became}, but after such a fault a run {bound.becomes}")
    if outcome.became == "ended" and outcome.status not in bound.statuses:
        wrong.append(f"exit status {outcome.status}, not {' or '.join(map(str, bound.statuses))}")
    if outcome.processes_left:
        wrong.append(f"{counted(outcome.processes_left, 'process')} left")
    if outcome.files_left:
        wrong.append(f"files left: {', '.join(outcome.files_left)}")
    if outcome.unsound:
        wrong.append(f"unsound: {'; '.join(outcome.unsound)}")
    if outcome.resumed is False or (outcome.became == "ended" and outcome.resumed is None):
        wrong.append("does not train again when it is resumed")
    interval = 0 if bound.saves else INTERVAL_UPDATES
    if outcome.updates_lost > interval + outcome.lag:
        since = f"{interval} between checkpoints" if interval else "none, as such an end saves"
        bound_text = f"the bound is {interval + outcome.lag} ({since}, and a lag of {outcome.lag})"
        wrong.append(f"{counted(outcome.updates_lost, 'update')} lost; {bound_text}")
    return wrong


def summary(outcomes: Sequence[Outcome], bounds: Sequence[float]) -> dict[str, Any]:
    """The figures of the table, by kind and for all faults, and the bad outcomes.

    Args:
        outcomes: the outcomes of all faults.
        bounds: the bound in seconds of each.
    """
    pairs = list(zip(outcomes, bounds, strict=True))
    kinds = list(dict.fromkeys(outcome.kind for outcome in outcomes))
    rows = {kind: _row([pair for pair in pairs if pair[0].kind == kind]) for kind in sorted(kinds)}
    systems = sorted({outcome.system for outcome in outcomes})
    return {
        "kinds": rows,
        "all": _row(pairs),
        "systems": {name: sum(outcome.system == name for outcome in outcomes) for name in systems},
        "of_them_while_starting": sum(outcome.starting for outcome in outcomes),
        "kills_that_left_a_part": sum(outcome.caught for outcome in outcomes),
        "seconds_per_fault": round(statistics.mean(o.whole_seconds for o in outcomes), 1) if outcomes else 0.0,
        "bad": [{name: getattr(o, name) for name in OF_BAD} | {"why": o.bad} for o in outcomes if o.bad],
    }


def _row(pairs: Sequence[tuple[Outcome, float]]) -> dict[str, Any]:
    outcomes = [outcome for outcome, _ in pairs]
    seconds = [outcome.seconds for outcome in outcomes] or [0.0]
    resumes = [outcome for outcome in outcomes if outcome.resumed is not None]
    values = (
        len(outcomes),
        sum(outcome.became == "ended" for outcome in outcomes),
        sum(outcome.became == "went on" for outcome in outcomes),
        round(statistics.median(seconds), 1),
        round(max(seconds), 1),
        round(max((limit for _, limit in pairs), default=0.0), 1),
        sum(outcome.processes_left for outcome in outcomes),
        sum(len(outcome.files_left) for outcome in outcomes),
        sum(len(outcome.unsound) for outcome in outcomes),
        len(resumes),
        sum(bool(outcome.resumed) for outcome in resumes),
        max((outcome.updates_lost for outcome in outcomes), default=0),
        sum(bool(outcome.bad) for outcome in outcomes),
    )
    return dict(zip(COLUMNS, values, strict=True))
