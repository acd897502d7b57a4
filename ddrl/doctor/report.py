"""The findings for people, problems first, or as one JSON object."""

from __future__ import annotations

import dataclasses
import functools
import shutil
import textwrap
from typing import Any

from ddrl.doctor.checks import exit_status
from ddrl.doctor.survey import Finding, Findings, Survey
from ddrl.reporting.json_output import write_json_output
from ddrl.terminal import printable
from ddrl.wording import counted

WIDTH = 110  # where there is no terminal
LABEL, CHECK = 9, 15  # columns


def emit(findings: Findings, survey: Survey | None, json_target: str) -> None:
    """Prints the table, or writes one JSON object to a file (-: standard output).

    Args:
        findings: problems first.
        survey: what the ranks said; None: they could not speak.
        json_target: the file; empty: the table.

    Raises:
        UsageError: when the file cannot be written.
    """
    if not json_target:
        shown = table(findings, shutil.get_terminal_size((WIDTH, 24)).columns)
        print(printable(shown), end="", flush=True)
        return
    write_json_output(json_target, as_json(findings, survey))


def as_json(findings: Findings, survey: Survey | None) -> dict[str, Any]:
    """status, findings and, where the ranks could speak, all that they said. JSON types."""
    told = None
    if survey is not None:
        told = {**dataclasses.asdict(survey), "links": [link._asdict() for link in survey.links]}
    return {"status": exit_status(findings), "findings": [f._asdict() for f in findings], "survey": told}


def table(findings: Findings, width: int = WIDTH) -> str:
    """A line for each finding, wrapped, and under it what to do; then what it comes to."""
    lines = [line for finding in findings for line in _lines(finding, max(60, width))]
    counts = [sum(finding.level == level for finding in findings) for level in ("problem", "warning")]
    words = [counted(n, word) for n, word in zip(counts, ("problem", "warning"), strict=True)]
    verdict = "training would fail" if counts[0] else "ready to train"
    return "\n".join([*lines, "", f"{verdict}: {', '.join(words)}"]) + "\n"


def _lines(finding: Finding, width: int) -> list[str]:
    label = finding.level.upper() if finding.level == "problem" else finding.level
    first = f"{label:{LABEL}}{finding.check:{CHECK}}"
    indent = " " * len(first)
    wrap = functools.partial(textwrap.wrap, width=width, break_long_words=False)
    lines = wrap(finding.found, initial_indent=first, subsequent_indent=indent)
    first, indent = f"{indent}-> ", f"{indent}   "
    return lines + wrap(finding.remedy, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False)
