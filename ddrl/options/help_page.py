"""The page that --help prints: sections of options, whose texts flow to the width of the terminal."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ddrl.docstrings import flowing

COLUMN = 26  # column at which texts begin
NARROWEST, WIDEST, USUAL = 60, 110, 100  # columns; USUAL is that without a terminal


class Entry(NamedTuple):
    """An option with its value, such as '--minutes X', and what it does."""

    head: str
    text: str


class Section(NamedTuple):
    """Options that belong together, under a title; `about` says what they have in common."""

    title: str
    entries: Sequence[Entry]
    about: str = ""


def terminal_width() -> int:
    """Columns for a page: those of the terminal, even if the output goes through a pipe, as to a pager."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return _bounded(int(columns))
    for descriptor in (1, 2, 0):
        try:
            return _bounded(os.get_terminal_size(descriptor).columns or USUAL)
        except OSError:
            continue
    return USUAL


def page(usage: str, about: Iterable[str], sections: Iterable[Section], closing: Iterable[str] = ()) -> str:
    """The whole page.

    Args:
        usage: the line of usage, without the word 'usage'.
        about: paragraphs below it.
        sections: those without an entry are left out.
        closing: paragraphs at the end.
    """
    width = terminal_width()
    lines = [f"usage: {usage}"]
    for paragraph in about:
        lines += ["", *flowing(paragraph, width)]
    for section in sections:
        if section.entries:
            lines += ["", f"{section.title}:", *flowing(section.about, width, "  ")]
            lines += [line for entry in section.entries for line in _entry_lines(entry, width)]
    for paragraph in closing:
        lines += ["", *flowing(paragraph, width)]
    return "\n".join(lines) + "\n"


def _entry_lines(entry: Entry, width: int) -> list[str]:
    """The lines of an entry: its head, with the text beside and below it."""
    head = f"  {entry.head:<{COLUMN - 4}}  "
    beyond = len(head) - COLUMN  # columns of the text's own that a long head takes
    room = width - COLUMN
    lines = flowing(entry.text, room) if beyond == 0 else flowing(entry.text, room, " " * beyond, "")
    if not lines:
        return [head.rstrip()]
    if len(lines[0]) > room and beyond:
        return [head.rstrip(), *(" " * COLUMN + line for line in flowing(entry.text, room))]
    return [head + lines[0][beyond:], *(" " * COLUMN + line for line in lines[1:])]


def _bounded(columns: int) -> int:
    return max(NARROWEST, min(columns, WIDEST))
