"""What a table says of many faults, and the bad ones among them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from ddrl.bench.faults.outcome import Outcome

COLUMNS = (
    "faults", "ended", "went on", "median s", "most s", "bound s", "processes left", "files left", "unsound", "resumed",
    "trained again", "updates lost", "bad",
)  # fmt: skip
OF_BAD = ("index", "system", "kind", "victim", "directory")


def summary(outcomes: Sequence[Outcome], bounds: Sequence[float]) -> dict[str, Any]:
    """The figures of the table, by kind and for all, and the bad ones."""
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
