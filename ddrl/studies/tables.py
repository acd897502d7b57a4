"""Tables in Markdown that are also readable on a terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ddrl.reporting.texts import number
from ddrl.studies.statistics import Interval

MISSING = "-"
MIDDLE = "interquartile mean"

Columns = Mapping[str, str | Callable[[Any], Any]]
"""Heading -> a label of the row's group, or a function of the row's subject."""


class Table(NamedTuple):
    """A table whose cells are texts, numbers, intervals or None, which is shown as '-'."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    @property
    def right(self) -> list[bool]:
        """For each column, whether all its cells are numbers, which are aligned right."""
        kinds = (int, float, Interval, type(None))
        return [all(isinstance(row[i], kinds) for row in self.rows) for i in range(len(self.columns))]

    def markdown(self) -> str:
        """The table, its columns aligned."""
        rows = self.texts()
        widths = [max(map(len, column)) for column in zip(self.columns, *rows)]
        right = self.right
        lines = [_line(self.columns, widths, right)]
        lines.append("|" + "|".join("-" * (w + 1) + (":" if n else "-") for w, n in zip(widths, right)) + "|")
        lines += [_line(row, widths, right) for row in rows]
        return f"**{self.title}**\n\n" + "\n".join(lines) + "\n"

    def texts(self) -> list[list[str]]:
        """The cells as they are shown."""
        return [[text(cell) for cell in row] for row in self.rows]

    def csv(self) -> str:
        """The table as CSV, with all digits of numbers, and an empty cell for None."""
        lines = io.StringIO()
        csv.writer(lines, lineterminator="\n").writerows([self.columns, *self.rows])
        return lines.getvalue()

    def as_json(self) -> dict[str, Any]:
        """Title, columns and rows; intervals as objects."""
        rows = [[cell._asdict() if isinstance(cell, Interval) else cell for cell in row] for row in self.rows]
        return {"title": self.title, "columns": list(self.columns), "rows": rows}


def table(title: str, subjects: Iterable[Any], columns: Columns) -> Table:
    """A table with a row for each subject: a group of runs, or whatever else the functions of the columns take.

    A column whose heading begins with MIDDLE is left out if no subject has enough repeats for it.
    """
    rows = [[cell(subject) if callable(cell) else subject[cell] for cell in columns.values()] for subject in subjects]
    kept = [
        i for i, name in enumerate(columns) if not name.startswith(MIDDLE) or any(row[i] is not None for row in rows)
    ]
    return Table(title, [tuple(columns)[i] for i in kept], [[row[i] for i in kept] for row in rows])


def text(cell: Any) -> str:
    """A cell as it is shown: three digits, thousands with commas; an interval as mean [low, high], or few values."""
    if cell is None:
        return MISSING
    if isinstance(cell, Interval):
        if not cell.bounds:
            return "; ".join(map(number, cell.values or (cell.mean,)))
        return "{} [{}, {}]".format(*map(number, (cell.mean, *cell.bounds)))
    return number(cell) if isinstance(cell, float) else f"{cell:,}" if type(cell) is int else str(cell)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = [cell.rjust(w) if n else cell.ljust(w) for cell, w, n in zip(cells, widths, right)]
    return "| " + " | ".join(padded) + " |"
