"""Makes text from files safe to show on the page: characters that cannot be seen become escapes."""

from __future__ import annotations

import re

_COLORS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def shown(text: str) -> str:
    """The text, with an escape for each character that cannot be seen, such as controls and undecodable bytes."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )


def shown_lines(data: bytes) -> list[str]:
    """Lines of a log, each `shown`, without the colors of a terminal."""
    text = _COLORS.sub("", data.decode("utf-8", "replace"))
    return [shown(line.expandtabs(4)) for line in text.split("\n")]
