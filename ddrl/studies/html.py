"""A study's report as one HTML page that needs nothing else: no network, no script, no other file."""

from __future__ import annotations

import base64
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddrl.studies.tables import MISSING, Table

TEMPLATE = Path(__file__).with_name("report.html.j2")


@dataclasses.dataclass(frozen=True)
class HtmlFigure:
    """A PNG image, what it shows in words for those who do not see it, and its caption."""

    png: bytes
    description: str
    caption: str = ""


@dataclasses.dataclass(frozen=True)
class HtmlReport:
    """What a report says.

    Attributes:
        title: one line.
        summary: paragraphs: what was asked, what the scores are, how many seeds.
        command: that makes it again; one a line.
        tables: columns where every cell is a number or '-' are set to the right.
        protocol: setting -> value of what was measured.
        hardware: name -> value, without names of hosts or paths.
        versions: package -> version.
        notes: what failed, what is missing, what to be careful with.
        files: raw data beside the report, by their names.
        date: of the report, and of what it reports.
    """

    title: str
    summary: Sequence[str]
    command: str
    figures: Sequence[HtmlFigure] = ()
    tables: Sequence[Table] = ()
    protocol: Mapping[str, str] = dataclasses.field(default_factory=dict)
    hardware: Mapping[str, str] = dataclasses.field(default_factory=dict)
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    notes: Sequence[str] = ()
    files: Sequence[str] = ()
    date: str = ""


def render(report: HtmlReport) -> str:
    """The page; all text is escaped, figures are in it as base64."""
    return _template().render(report=report)


@functools.cache
def _template() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATE.parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters["base64"] = lambda data: base64.b64encode(data).decode("ascii")
    environment.filters["numbers"] = _numbers
    return environment.get_template(TEMPLATE.name)


def _numbers(table: tuple[Sequence[str], Sequence[Sequence[str]]]) -> list[bool]:
    """Of columns and rows: whether each column is one of numbers; none is where there are no rows."""
    columns, rows = table
    return [all(map(_is_number, column)) for column in zip(*rows)] or [False] * len(columns)


def _is_number(text: str) -> bool:
    """A number, one with an interval behind it, or '-', which stands for none."""
    first = text.split(" [", maxsplit=1)[0].replace(",", "").rstrip("%")
    try:
        float(first)
    except ValueError:
        return text == MISSING
    return True
