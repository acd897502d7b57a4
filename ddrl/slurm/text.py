"""Names and lines of others on a terminal."""

from __future__ import annotations

_CONTROLS = {code: "?" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """The text with a question mark for each control character but line ends and tabs: a terminal obeys them."""
    return text.translate(_CONTROLS)
