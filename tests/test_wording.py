"""Numbers and their nouns: one function words them for the whole package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddrl.wording import counted, plural

PACKAGE = Path(__file__).parents[1] / "ddrl"
BY_HAND = re.compile(r"""\}[\w -]*\w\(s\)|\{["']s["'] |["']s["'] (\*|if)|["'] if [\w.]+ [!=]= 1 else ["']s?["']""")
"""A plural that a message makes itself, such as `'s' * (n != 1)` and `worker(s)`."""
KEPT = {"wording.py"}


@pytest.mark.parametrize(
    "number, noun, text",
    [
        (1, "core", "1 core"), (0, "core", "0 cores"), (2, "batch", "2 batches"), (1, "batch", "1 batch"),
        (3, "process", "3 processes"), (1234, "agent step", "1,234 agent steps"),
    ],
)  # fmt: skip
def test_a_number_and_its_noun_agree(number, noun, text):
    assert counted(number, noun) == text


def test_parts_of_one_are_several():
    assert [plural("minute", minutes) for minutes in (0.5, 1.0, 1.5)] == ["minutes", "minute", "minutes"]


@pytest.mark.parametrize(
    "line", ["""f"{n} core{'s' * (n != 1)}" """, """f"{n} core{'s' if n != 1 else ''}" """, 'f"{n} busy core(s)"']
)
def test_plurals_made_by_hand_are_seen(line):
    assert BY_HAND.search(line)


def test_no_message_makes_its_plural_by_hand():
    paths = [path for path in PACKAGE.rglob("*.py") if path.name not in KEPT]
    found = [
        f"{path.name}: {line.strip()}"
        for path in paths
        for line in path.read_text().splitlines()
        if BY_HAND.search(line)
    ]
    assert len(paths) > 100 and found == []
