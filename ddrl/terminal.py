"""Makes texts of others, such as other programs or the authors of files, safe to print on a terminal."""

from __future__ import annotations

_CONTROLS = {code: "?" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """The text with question marks for control characters, which a terminal obeys; line ends and tabs stay."""
    return text.translate(_CONTROLS)
