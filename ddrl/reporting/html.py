"""A study's report as one HTML page that needs nothing else: no network, no script, no other file. Pure functions."""

from __future__ import annotations

import base64
import dataclasses
import html
from collections.abc import Mapping, Sequence

CSS = """
body { font: 16px/1.5 system-ui, sans-serif; color: #111; background: #fff; max-width: 62rem; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
figure { margin: 1.5rem 0; } img { max-width: 100%; height: auto; } figcaption, .note { color: #444; font-size: .9rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; margin: .5rem 0 1.5rem; }
caption { text-align: left; font-weight: 600; padding-bottom: .3rem; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid #ccc; vertical-align: top; }
thead th { border-bottom: 2px solid #111; } .number { text-align: right; font-variant-numeric: tabular-nums; }
@media screen { td.number { white-space: nowrap; } }
pre { background: #f2f2f2; padding: .7rem; white-space: pre-wrap; overflow-wrap: anywhere; }
@media print { body { max-width: none; margin: 0; } figure, table { break-inside: avoid; } }
""".strip()


@dataclasses.dataclass(frozen=True)
class HtmlFigure:
    """A PNG image, what it shows in words for those who do not see it, and its caption."""

    png: bytes
    description: str
    caption: str = ""


@dataclasses.dataclass(frozen=True)
class HtmlTable:
    """Cells as text; columns where every cell is a number or '-' are set to the right."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclasses.dataclass(frozen=True)
class HtmlReport:
    """What a report says.

    Attributes:
        title: one line.
        summary: paragraphs: what was asked, what the scores are, how many seeds.
        command: that makes it again; one a line.
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
    tables: Sequence[HtmlTable] = ()
    protocol: Mapping[str, str] = dataclasses.field(default_factory=dict)
    hardware: Mapping[str, str] = dataclasses.field(default_factory=dict)
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    notes: Sequence[str] = ()
    files: Sequence[str] = ()
    date: str = ""


def render(report: HtmlReport) -> str:
    """The page; all text is escaped, figures are in it as base64."""
    parts = [
        *(f"<p>{_text(paragraph)}</p>" for paragraph in report.summary),
        *(_figure(figure, number) for number, figure in enumerate(report.figures, 1)),
        *_section("Results", [_table(table) for table in report.tables]),
        *_section("Notes", [_list(report.notes)] if report.notes else []),
        *_section("How it was made", _origin(report)),
    ]
    return _page(report.title, "\n".join(parts))


def _page(title: str, body: str) -> str:
    # The policy makes a browser refuse whatever is not in the page itself.
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{_text(title)}</title>\n<style>\n{CSS}\n</style>\n</head>\n<body>\n'
        f"<h1>{_text(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def _origin(report: HtmlReport) -> list[str]:
    parts = [f"<p>Command:</p>\n<pre>{_text(report.command)}</pre>"]
    if report.date:
        parts.append(f"<p>Date: {_text(report.date)}.</p>")
    for title, values in (("Protocol", report.protocol), ("Hardware", report.hardware), ("Versions", report.versions)):
        if values:
            parts.append(_table(HtmlTable(title, (), [(str(name), str(value)) for name, value in values.items()])))
    if report.files:
        parts.append(f"<p>Beside this page: {_text(', '.join(report.files))}.</p>")
    return parts


def _section(title: str, parts: Sequence[str]) -> list[str]:
    return [f"<h2>{_text(title)}</h2>", *parts] if parts else []


def _figure(figure: HtmlFigure, number: int) -> str:
    data = base64.b64encode(figure.png).decode("ascii")
    caption = f"Figure {number}. {figure.caption}" if figure.caption else f"Figure {number}."
    return (
        f'<figure>\n<img alt="{_text(figure.description)}" src="data:image/png;base64,{data}">\n'
        f"<figcaption>{_text(caption)}</figcaption>\n</figure>"
    )


def _table(table: HtmlTable) -> str:
    numbers = [all(_is_number(row[i]) for row in table.rows) for i in range(len(table.rows[0]))] if table.rows else []
    right = [' class="number"' if number else "" for number in numbers] or [""] * len(table.columns)
    head = "".join(f'<th scope="col"{kind}>{_text(name)}</th>' for kind, name in zip(right, table.columns))
    head = f"<thead><tr>{head}</tr></thead>\n" if head else ""
    rows = "\n".join(f"<tr>{''.join(map(_cell, row, numbers))}</tr>" for row in table.rows)
    return (
        f'<div class="wide"><table>\n<caption>{_text(table.title)}</caption>\n{head}'
        f"<tbody>\n{rows}\n</tbody>\n</table></div>"
    )


def _cell(text: str, number: bool) -> str:
    return f'<td class="number">{_text(text)}</td>' if number else f"<td>{_text(text)}</td>"


def _is_number(text: str) -> bool:
    """A number, one with an interval behind it, or '-', which stands for none."""
    first = text.split(" [", maxsplit=1)[0].replace(",", "").rstrip("%")
    try:
        float(first)
    except ValueError:
        return text == "-"
    return True


def _list(items: Sequence[str]) -> str:
    return "<ul>\n" + "\n".join(f"<li>{_text(item)}</li>" for item in items) + "\n</ul>"


def _text(value: str) -> str:
    return html.escape(str(value), quote=True)
