"""The report on a study's finished points: report.html, table.md, results.json, a figure, CSVs of curves and runs."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from ddrl import rundir
from ddrl.checks import flag
from ddrl.errors import UsageError, written
from ddrl.files import write_whole
from ddrl.reporting.machine import in_words
from ddrl.studies import comparable, figures, measures, provenance
from ddrl.studies.engine import MACHINE
from ddrl.studies.html import render, sentence
from ddrl.studies.plan import Plan
from ddrl.studies.points import Outcome, Point, State, outcome_of
from ddrl.studies.provenance import value_text
from ddrl.studies.settings import StudySettings, from_json
from ddrl.studies.study import Report, Study
from ddrl.studies.tables import Table, table
from ddrl.terminal import printable
from ddrl.wording import counted

NO_COMMAND = "(not recorded: an earlier version of ddrl began the study; its settings are below)"
PAGE, RESULTS, TABLE, CURVES, RUNS = "report.html", "results.json", "table.md", "curves.csv", "runs.csv"


def collect(plan: Plan, study: Study) -> None:
    """Reports the points that have finished, and names the others.

    Raises:
        UsageError: none has finished, or the directory cannot be written.
    """
    states = [(point, plan.state(point)) for point in plan.points]
    outcomes = [outcome_of(point, plan.path(point)) for point, state in states if state.status == "finished"]
    failed = [point for point, state in states if state.status == "failed"]
    missing = _missing(states)
    if not outcomes:
        raise UsageError(f"{plan.directory}: no point has finished ({'; '.join(missing)})")
    settings = from_json(type(study.defaults), plan.settings)
    report, runs = study.report(settings, outcomes, failed), runs_table(settings, outcomes)
    report = dataclasses.replace(report, finding=_with_failures(report.finding, len(failed)))
    careful = [*comparable.warnings(outcomes), *(f"careful: {line}" for line in report.careful), *missing]
    notes = [*report.notes, _measured_on(plan, outcomes)]
    found = [f"{report.finding}\n"] if report.finding else []
    tables = [part.markdown() for part in report.tables]
    text = "\n".join([*found, *tables, *(f"- {note}" for note in [*careful, *notes]), ""])
    print(printable(text))
    paths = figures.save(figures.draw(report.panels, report.heading, report.caption, report.columns), plan.directory)
    files = {
        CURVES: _curves_csv(report.panels), RUNS: runs.csv(),
        TABLE: f"# {report.heading}\n\n{report.caption}\n\n{text}",
    }  # fmt: skip
    names = [RESULTS, *files, *(path.name for path in paths)]
    files[PAGE] = _page(plan, report, outcomes, careful, notes, names)
    results = _results(plan, report, states) | {"notes": [*careful, *notes], "runs": runs.as_json()}
    with written(f"--dir {plan.directory}", "free space or fix permissions"):
        rundir.write_json(plan.directory / RESULTS, results)
        for name, content in files.items():
            write_whole(plan.directory / name, content.encode())
    print(f"report: {plan.directory / PAGE}\nbeside it: {', '.join(names)}")


def _page(
    plan: Plan,
    report: Report,
    outcomes: Sequence[Outcome],
    careful: Sequence[str],
    notes: Sequence[str],
    files: Sequence[str],
) -> str:
    """The text of report.html; `careful` are warnings that stand above the figure."""
    machines = [provenance.machine_of(outcome.path) for outcome in outcomes]
    again = shlex.join(["ddrl", "study", plan.study, "--dir", str(plan.directory), "--collect"])
    return render(
        title=report.heading,
        finding=report.finding,
        summary=[f"{len(outcomes)} of {len(plan.points)} points have finished.", *careful],
        command=f"{plan.command or NO_COMMAND}\n{again}  # this page, from the finished points",
        figures=[{"pictures": figures.pictures(report.panels), "caption": sentence(report.caption)}],
        tables=report.tables,
        protocol=provenance.protocols(outcomes) | {flag(n): value_text(value) for n, value in plan.settings.items()},
        hardware=provenance.hardware(machines) | provenance.resumed(outcomes),
        versions=provenance.versions(machines),
        notes=notes,
        files=files,
        date=f"{provenance.date()}; {provenance.ended(outcomes)}",
    )


def _measured_on(plan: Plan, outcomes: Sequence[Outcome]) -> str:
    machines = [provenance.machine_of(outcome.path) for outcome in outcomes]
    kinds = sorted({in_words(facts) for facts in machines})
    ddrl = provenance.versions(machines).get("ddrl", provenance.UNKNOWN)
    return f"{len(outcomes)} of {counted(len(plan.points), 'point')}, measured on {'; '.join(kinds)}; ddrl {ddrl}"


def runs_table(settings: StudySettings, outcomes: Sequence[Outcome]) -> Table:
    """A table with a row for each finished run; labels that are dicts are left out."""
    values = [item for run in outcomes for item in run.point.labels.items()]
    labels = dict.fromkeys(name for name, value in values if not isinstance(value, dict))
    score = getattr(settings, "score_name", measures.EVALUATION)
    target, waited = getattr(settings, "target_score", None), getattr(settings, "warm_up_seconds", None)

    def rate(name: str) -> measures.Measure:
        return lambda run: measures.rate(name, waited and measures.warm_up(run, waited))(run)

    def label_of(name: str) -> Callable[[Outcome], Any]:
        return lambda run: run.point.labels.get(name)

    return table("Runs", outcomes, {
        "point": lambda run: run.point.name,
        **{name: label_of(name) for name in labels},
        "seed": lambda run: run.point.config.run.seed,
        "data-points/s": rate("datapoints_per_s"), "agent steps/s": rate("agent_steps_per_s"),
        "agent steps": measures.largest("agent_steps"),
        "final score": measures.last_score(score),
        "seconds to score": lambda run: None if target is None else measures.reached_after(run, score, target),
        "seconds given": measures.given_seconds,
        "stopped early": lambda run: bool(run.result.get("stopped_early")),
    })  # fmt: skip


def _with_failures(finding: str, failed: int) -> str:
    """The finding with the number of failed runs, which it does not cover: a run that diverges fails."""
    counts = f"{counted(failed, 'run')} that failed {'does' if failed == 1 else 'do'} not count here."
    return f"{finding} {counts}".strip() if failed else finding


def _missing(states: Sequence[tuple[Point, State]]) -> list[str]:
    """One line that counts the points that have not ended, and one for each failure and each damaged result."""
    counts = Counter(state.status for _, state in states if state.status not in ("finished", "failed"))
    lines = [f"not finished: {', '.join(f'{count} {status}' for status, count in counts.items())}"] if counts else []
    told = [(p, s) for p, s in states if s.status == "failed" or (s.status == "interrupted" and s.why)]
    return lines + [f"{state.status}: {point.name}: {state.why}" for point, state in told]


def _results(plan: Plan, report: Report, states: Sequence[tuple[Point, State]]) -> dict[str, Any]:
    points = [
        {
            "name": point.name, "labels": dict(point.labels), "seed": point.config.run.seed, **state._asdict(),
            "machine": rundir.read_json(plan.path(point) / MACHINE),
        }
        for point, state in states
    ]  # fmt: skip
    return {
        "study": plan.study, "command": plan.command, "settings": dict(plan.settings), "ddrl": version("ddrl"),
        "heading": report.heading, "caption": report.caption, "finding": report.finding, "points": points,
        "tables": [part.as_json() for part in report.tables], "curves": [_curves(panel) for panel in report.panels],
    }  # fmt: skip


def _curves(panel: figures.Panel) -> dict[str, Any]:
    """What a panel shows, as numbers."""
    curves = [curve._asdict() for curve in panel.curves]
    heat = {"heat": panel.heat._asdict()} if panel.heat else {}
    return {"title": panel.title, "x": panel.x_label, "y": panel.y_label, "curves": curves, **heat}


def _curves_csv(panels: Sequence[figures.Panel]) -> str:
    """CSV with a line for each point of each curve; low and high are empty without a band. The column `run` numbers the
    curves with the same label: single runs, which are too few for a band."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("panel", "curve", "x", "y", "low", "high", "x is", "y is", "run"))
    for panel in panels:
        runs: Counter[str] = Counter()
        for curve in panel.curves:
            runs[curve.label] += 1
            for values in itertools.zip_longest(curve.x, curve.y, curve.low, curve.high, fillvalue=""):
                writer.writerow((panel.title, curve.label, *values, panel.x_label, panel.y_label, runs[curve.label]))
    return text.getvalue()
