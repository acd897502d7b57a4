"""What a study has found so far: report.html, table.md, results.json, curves.csv, figure.png, figure.pdf."""

from __future__ import annotations

import csv
import io
import itertools
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from ddrl import rundir
from ddrl.errors import UsageError
from ddrl.reporting.html import render
from ddrl.studies import comparable, figures
from ddrl.studies.engine import MACHINE
from ddrl.studies.page import machine_of, packages, study_page
from ddrl.studies.plan import Plan
from ddrl.studies.points import Outcome, outcome_of
from ddrl.studies.settings import from_json
from ddrl.studies.study import Report, Study

PAGE, RESULTS, TABLE, CURVES, RUNS = "report.html", "results.json", "table.md", "curves.csv", "runs.csv"


def collect(plan: Plan, study: Study) -> None:
    """Reports the points that have finished, and names the others.

    Raises:
        UsageError: none has finished, or the directory cannot be written.
    """
    states = [(point, plan.state(point)) for point in plan.points]
    outcomes = [outcome_of(point, plan.path(point)) for point, state in states if state.status == "finished"]
    missing = _missing(states)
    if not outcomes:
        raise UsageError(f"{plan.directory}: no point has finished ({'; '.join(missing)})")
    report = study.report(from_json(type(study.defaults), plan.settings), outcomes)
    careful = comparable.warnings(outcomes)
    said = [*report.notes, _measured_on(plan, outcomes)]
    notes = [*careful, *missing, *said]
    text = "\n".join([*(table.markdown() for table in report.tables), *(f"- {note}" for note in notes)]) + "\n"
    print(text)
    figure = figures.draw(report.panels, report.heading, report.caption, report.columns)
    paths = figures.save(figure, plan.directory)
    files = [RESULTS, CURVES, *([RUNS] if report.runs else []), TABLE, *(path.name for path in paths)]
    page = study_page(plan, report, outcomes, [*careful, *missing], said, paths[0].read_bytes(), files)
    try:
        (plan.directory / TABLE).write_text(f"# {report.heading}\n\n{report.caption}\n\n{text}")
        rundir.write_json(plan.directory / RESULTS, _results(plan, report, states, notes))
        (plan.directory / CURVES).write_text(_curves_csv(report.panels))
        if report.runs:
            (plan.directory / RUNS).write_text(report.runs.csv())
        (plan.directory / PAGE).write_text(render(page))
    except OSError as error:
        raise UsageError(f"--dir {plan.directory}: {error.strerror}; free space or mend permissions") from error
    print(f"report: {plan.directory / PAGE}\nbeside it: {', '.join(files)}")


def _missing(states: Sequence[Any]) -> list[str]:
    """One line for all that wait or run, and one for each failure and each damaged result."""
    counts = Counter(state.status for _, state in states if state.status not in ("finished", "failed"))
    lines = [f"not finished: {', '.join(f'{count} {status}' for status, count in counts.items())}"] if counts else []
    return lines + [f"{state.status}: {point.name}: {state.why}" for point, state in states if _told(state)]


def _told(state: Any) -> bool:
    return state.status == "failed" or (state.status == "interrupted" and bool(state.why))


def _measured_on(plan: Plan, outcomes: Sequence[Outcome]) -> str:
    machines = [machine_of(outcome.path) for outcome in outcomes]
    kinds = sorted({f"{m.get('processor', 'unknown')}, {m.get('cores', '?')} cores" for m in machines})
    versions = sorted({str(packages(m).get("ddrl", "unknown")) for m in machines})
    return f"{len(outcomes)} of {len(plan.points)} points, measured on {'; '.join(kinds)}; ddrl {', '.join(versions)}"


def _results(plan: Plan, report: Report, states: Sequence[Any], notes: Sequence[str]) -> dict[str, Any]:
    points = [
        {
            "name": point.name,
            "labels": dict(point.labels),
            "seed": point.config.run.seed,
            **state._asdict(),
            "machine": rundir.read_json(plan.path(point) / MACHINE),
        }
        for point, state in states
    ]
    return {
        "study": plan.study,
        "command": plan.command,
        "settings": dict(plan.settings),
        "ddrl": version("ddrl"),
        "heading": report.heading,
        "caption": report.caption,
        "tables": [table.as_json() for table in report.tables],
        "notes": list(notes),
        "curves": [_curves(panel) for panel in report.panels],
        "points": points,
        "runs": report.runs.as_json() if report.runs else None,
    }


def _curves(panel: figures.Panel) -> dict[str, Any]:
    """What a panel shows, as numbers."""
    curves = [curve._asdict() for curve in panel.curves]
    heat = {"heat": panel.heat._asdict()} if panel.heat else {}
    return {"title": panel.title, "x": panel.x_label, "y": panel.y_label, "curves": curves, **heat}


def _curves_csv(panels: Sequence[figures.Panel]) -> str:
    """A line for each point of each curve; low and high are empty where there is no band."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("panel", "curve", "x", "y", "low", "high", "x is", "y is"))
    for panel in panels:
        for curve in panel.curves:
            for values in itertools.zip_longest(curve.x, curve.y, curve.low, curve.high, fillvalue=""):
                writer.writerow((panel.title, curve.label, *values, panel.x_label, panel.y_label))
    return text.getvalue()
