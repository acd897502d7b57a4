"""One table of all faults, and the bad ones below it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from ddrl.bench.faults.outcome import Outcome
from ddrl.reporting import machine
from ddrl.reporting.json_output import write_json_output

COLUMNS = (
    "faults", "ended", "went on", "median s", "most s", "bound s", "processes left", "files left", "unsound", "resumed",
    "trained again", "updates lost", "bad",
)  # fmt: skip
WIDTH = 150  # where no terminal has another one


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
        "bad": [
            {
                "index": o.index,
                "system": o.system,
                "kind": o.kind,
                "victim": o.victim,
                "why": o.bad,
                "directory": o.directory,
            }
            for o in outcomes
            if o.bad
        ],
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


def emit(values: dict[str, Any], json_target: str) -> None:
    """Prints the table, or writes one JSON object.

    Raises:
        UsageError: the file cannot be written.
    """
    if json_target:
        write_json_output(json_target, {**values, "machine": machine.describe()})
        return
    table = Table(Column("fault", no_wrap=True), *COLUMNS)
    for kind, row in {**values["kinds"], "all": values["all"]}.items():
        table.add_row(kind, *(f"{row[name]:,}" for name in COLUMNS))
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=WIDTH)
    console.print(table)
    counts = ", ".join(f"{name} {count}" for name, count in values["systems"].items())
    console.print(f"systems: {counts}", markup=False)
    for bad in values["bad"]:
        where = f"{bad['index']}: {bad['system']}, {bad['kind']} of {bad['victim']}"
        console.print(f"bad: {where}: {'; '.join(bad['why'])} ({bad['directory']})", markup=False, soft_wrap=True)
