"""What a study has found so far: report.html, table.md, results.json, curves.csv, figure.png, figure.pdf."""

from __future__ import annotations

import csv
import io
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ddrl import rundir
from ddrl.checks import flag
from ddrl.errors import UsageError
from ddrl.studies import comparable, figures, provenance
from ddrl.studies.engine import MACHINE
from ddrl.studies.html import HtmlFigure, HtmlReport, render
from ddrl.studies.plan import Plan
from ddrl.studies.points import Outcome, outcome_of
from ddrl.studies.provenance import machine_of, packages, value_text
from ddrl.studies.settings import from_json
from ddrl.studies.study import Report, Study

NO_COMMAND = "(not kept: the study was begun by an earlier version of ddrl; its settings are below)"
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
    page = html_report(plan, report, outcomes, [*careful, *missing], said, paths[0].read_bytes(), files)
    tables = {CURVES: _curves_csv(report.panels)} | ({RUNS: report.runs.csv()} if report.runs else {})
    publish(plan.directory, page, f"{report.caption}\n\n{text}", _results(plan, report, states, notes), tables)


def publish(
    directory: Path, page: HtmlReport, text: str, results: Mapping[str, Any], more: Mapping[str, str] | None = None
) -> None:
    """Writes report.html, table.md, results.json and more files, and says where they are.

    Args:
        text: Markdown of the tables and notes.
        results: JSON types.
        more: name -> text of other files.

    Raises:
        UsageError: they cannot be written.
    """
    try:
        rundir.write_json(directory / RESULTS, dict(results))
        for name, content in {TABLE: f"# {page.title}\n\n{text}", **(more or {}), PAGE: render(page)}.items():
            (directory / name).write_text(content)
    except OSError as error:
        raise UsageError(f"--dir {directory}: {error.strerror}; free space or mend permissions") from error
    print(f"report: {directory / PAGE}\nbeside it: {', '.join(page.files)}")


def html_report(
    plan: Plan,
    report: Report,
    outcomes: Sequence[Outcome],
    careful: Sequence[str],
    notes: Sequence[str],
    png: bytes,
    files: Sequence[str],
) -> HtmlReport:
    """What report.html says of a study.

    Args:
        careful: what must be read before the figure.
        png: the figure.
        files: raw data beside the page.
    """
    machines = [machine_of(outcome.path) for outcome in outcomes]
    again = f"ddrl study {plan.study} --dir {plan.directory} --collect  # this page, of the points that have finished"
    settings = {flag(name): value_text(value) for name, value in plan.settings.items()}
    return HtmlReport(
        title=report.heading,
        summary=[f"{report.caption}.", f"{len(outcomes)} of {len(plan.points)} points have finished.", *careful],
        command=f"{plan.command or NO_COMMAND}\n{again}",
        figures=[figure_of(png, report.heading, report.caption, report.panels)],
        tables=report.tables,
        protocol=provenance.protocols(outcomes) | settings,
        hardware=provenance.hardware(machines),
        versions=provenance.versions(machines),
        notes=notes,
        files=files,
        date=f"{provenance.date()}; {provenance.ended(outcomes)}",
    )


def figure_of(png: bytes, heading: str, caption: str, panels: Sequence[figures.Panel]) -> HtmlFigure:
    """A figure of panels, which are told in words, too."""
    described = "; ".join(f"{panel.title}: {panel.y_label} against {panel.x_label}" for panel in panels)
    return HtmlFigure(png, f"{heading}. {described}", f"{heading}. {caption}.")


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
