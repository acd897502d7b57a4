"""Makes lines that other programs wrote safe to print on a terminal, and paths short."""

from __future__ import annotations

from pathlib import Path

_CONTROLS = {code: "?" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """The text with question marks for control characters, which a terminal obeys; line ends and tabs stay."""
    return text.translate(_CONTROLS)


def as_typed(path: Path) -> str:
    """A path as one would name it here: relative where it is below this directory."""
    here, path = Path.cwd(), path.absolute()
    return str(path.relative_to(here)) if path.is_relative_to(here) and path != here else str(path)
