"""Numbers and their nouns in messages. It imports nothing of the package, so that all of it may use it."""

from __future__ import annotations


def plural(noun: str, number: float) -> str:
    """The noun for so many, such as worker for 1, workers for 2 or 0.5, and batches for 2."""
    return noun if number == 1 else f"{noun}{'es' if noun.endswith(('s', 'ch')) else 's'}"


def counted(number: int, noun: str) -> str:
    """A number with its noun, such as 1 worker, 2 workers."""
    return f"{number:,} {plural(noun, number)}"
