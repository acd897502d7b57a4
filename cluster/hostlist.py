"""Slurm's short ways of writing: host lists `p[0900-0910,12],g1`, and counts per node `2(x3),1`."""

from __future__ import annotations

import itertools
import math
import re

MOST = 65_536  # hosts; a slip such as n[1-1000000000] must not fill the memory
NAME_LETTERS = 255  # of a host's name, DNS allows no more
DIGITS = "[0-9]{1,18}"  # of a number: other digits that Unicode has, and more of them, are nothing that Slurm writes
_NAME = re.compile(r"[A-Za-z0-9._-]*")
_RANGE = re.compile(rf"({DIGITS})(?:-({DIGITS}))?")
_COUNT = re.compile(rf"({DIGITS})(?:\(x({DIGITS})\))?")


def expand(text: str) -> tuple[str, ...]:
    """The host names of a Slurm host list, in its order.

    Names are separated by commas; brackets hold numbers and ranges, several brackets in a name multiply with
    the last running fastest (r[1-2]n[1-2]: r1n1, r1n2, r2n1, r2n2); numbers are as wide as a range's first, so
    leading zeros are kept (n[08-10]: n08, n09, n10). Blanks around commas are ignored.

    Raises:
        ValueError: for what is none, or more than MOST hosts; names the list and what is wrong with it.
    """
    hosts: list[str] = []
    for name in _split(text):
        parts = _parts(name, text)
        if sum(max(map(len, part)) for part in parts) > NAME_LETTERS:
            raise _wrong(text, f"has a name of more than {NAME_LETTERS} letters")
        _check_count(len(hosts) + math.prod(len(part) for part in parts), text)
        hosts += ["".join(choice) for choice in itertools.product(*parts)]
    return tuple(hosts)


def expand_counts(text: str) -> tuple[int, ...]:
    """Numbers per node as Slurm writes them: 2(x3),1 is (2, 2, 2, 1).

    Raises:
        ValueError: for what is none; names the text.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"counts per node {text!r:.80}: {part.strip()!r:.80} is neither a number nor like 2(x3)")
        times = int(match.group(2) or 1)
        if times < 1 or len(counts) + times > MOST:
            raise ValueError(f"counts per node {text!r:.80}: (x{times}) is not in 1..{MOST}")
        counts += [int(match.group(1))] * times
    return tuple(counts)


def _check_count(count: int, text: str) -> None:
    if count > MOST:
        raise _wrong(text, f"has {count} hosts, more than {MOST}")


def _split(text: str) -> list[str]:
    """The names between the commas that are outside of brackets."""
    names, depth, start = [], 0, 0
    for index, letter in enumerate(text):
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if depth not in (0, 1):
            raise _wrong(text, "has nested brackets, or one too many")
        if letter == "," and depth == 0:
            names.append(text[start:index].strip())
            start = index + 1
    if depth:
        raise _wrong(text, "has a bracket that is not closed")
    names.append(text[start:].strip())
    if not all(names):
        raise _wrong(text, "has an empty name" if text.strip() else "is empty")
    return names


def _parts(name: str, text: str) -> list[list[str]]:
    """The choices for each piece of a name, in turn."""
    parts: list[list[str]] = []
    for index, piece in enumerate(re.split(r"[][]", name)):
        if index % 2 == 0:
            if not _NAME.fullmatch(piece):
                raise _wrong(text, f"has {piece!r:.80}, which is not part of a host name")
            parts.append([piece])
        else:
            numbers: list[str] = []
            for entry in piece.split(","):
                numbers += _numbers(entry.strip(), text)
                _check_count(len(numbers), text)
            parts.append(numbers)
            _check_count(math.prod(len(part) for part in parts), text)
    return parts


def _numbers(entry: str, text: str) -> list[str]:
    match = _RANGE.fullmatch(entry)
    if match is None:
        raise _wrong(text, f"has {entry!r:.80} in brackets, where a number or a range like 01-12 belongs")
    first, last = match.group(1), match.group(2) or match.group(1)
    if int(last) < int(first):
        raise _wrong(text, f"has the range {entry}, which runs backwards: write {last}-{first}")
    if int(last) - int(first) >= MOST:
        raise _wrong(text, f"has the range {entry}, which is more than {MOST} hosts")
    return [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]


def _wrong(text: str, why: str) -> ValueError:
    shown = text if len(text) <= 80 else text[:77] + "..."
    return ValueError(f"host list {shown!r} {why}; the form is n[01-12,20],g1")
