"""The page in one file: markup, styles and scripts of `static/`, with a policy that allows nothing else."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

STATIC = Path(__file__).with_name("static")
STYLES = ("uplot/uPlot.min.css", "board.css")
SCRIPTS = (
    "uplot/uPlot.iife.min.js",
    "source.js",
    "dom.js",
    "chart.js",
    "table.js",
    "charts.js",
    "panes.js",
    "board.js",
)
LICENSE = "uplot/LICENSE"


class Page(NamedTuple):
    """The page, and its Content-Security-Policy."""

    html: str
    policy: str


def page(title: str, content: Any = None) -> Page:
    """The page, which loads nothing but what the policy names: with a server its answers, without one nothing.

    Args:
        title: for the heading.
        content: what `Board.everything` returns, for a page without a server.
    """
    style, script = _joined(STYLES), _joined(SCRIPTS)
    own = "'self'" if content is None else ""
    allowed = {
        "default-src": "'none'", "script-src": _hash(script), "style-src": _hash(style), "img-src": f"data: {own}",
        "media-src": f"data: {own}", "connect-src": own or "'none'", "base-uri": "'none'", "form-action": "'none'",
    }  # fmt: skip
    policy = "; ".join(f"{name} {value}".strip() for name, value in allowed.items())
    html = _template().render(
        policy=policy, style=style, script=script, notice=(STATIC / LICENSE).read_text(),
        data=in_script({"title": title, "content": content}),
    )  # fmt: skip
    return Page(html, policy)


def in_script(value: Any) -> str:
    """JSON for a <script> element: no text in it can end the element or begin a comment."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@functools.cache
def _joined(names: tuple[str, ...]) -> str:
    return "\n".join((STATIC / name).read_text() for name in names)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@functools.cache
def _template() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(STATIC)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template("page.html.j2")
