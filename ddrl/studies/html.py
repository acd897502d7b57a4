"""A study's report as one HTML page that needs nothing else: no network, no script, no other file."""

from __future__ import annotations

import base64
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddrl.studies.tables import MISSING

TEMPLATE = Path(__file__).with_name("report.html.j2")


def render(**content: Any) -> str:
    """The page; all text is escaped, figures are in it as base64.

    Args:
        content: what the template asks for, all of it: title, summary (paragraphs), command, figures (each with png,
            description for those who do not see it, and caption), tables, protocol, hardware and versions (name ->
            value), notes, files (their names), date.
    """
    return _template().render(content)


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
