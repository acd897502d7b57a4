"""Numbers and their nouns in messages, as in `ddrl.wording`, of which nothing is imported here."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number with its noun, such as 1 rank, 2 ranks."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
