"""A study's report as one HTML page that needs nothing else: no network, no script, no other file."""

from __future__ import annotations

import base64
import functools
from pathlib import Path
from typing import Any

TEMPLATE = Path(__file__).with_name("report.html.j2")


def render(**content: Any) -> str:
    """The page; all text is escaped, figures are in it as base64.

    Args:
        content: what the template asks for, all of it: title, finding (what was found, in a sentence), summary
            (paragraphs), command, figures (each with a caption, and pictures that have a png and a description for
            those who do not see it), tables, protocol, hardware and versions (name -> value), notes, files (their
            names), date.
    """
    return _template().render(content)


def sentence(text: str) -> str:
    """A text that begins with a capital letter, and ends with a period if it has no period or question mark there."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '?')) else '.'}"


@functools.cache
def _template() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATE.parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters["base64"] = lambda data: base64.b64encode(data).decode("ascii")
    return environment.get_template(TEMPLATE.name)
