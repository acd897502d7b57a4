"""Names and lines of others on a terminal."""

from __future__ import annotations

from pathlib import Path

_CONTROLS = {code: "?" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """The text with a question mark for each control character but line ends and tabs: a terminal obeys them."""
    return text.translate(_CONTROLS)


def as_typed(path: Path) -> str:
    """A path as one would name it here: relative where it is below this directory."""
    here, path = Path.cwd(), path.absolute()
    return str(path.relative_to(here)) if path.is_relative_to(here) and path != here else str(path)
