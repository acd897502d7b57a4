"""What was found, in one sentence: the first that a reader of a report sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ddrl.studies.points import AnyGroup, Group, parted
from ddrl.studies.statistics import ENOUGH, Interval, TimeToScore, difference, told_apart
from ddrl.studies.tables import number, text

FEW = 3
"""Runs of each from which it says something that all of the one are above all of the other: by chance once in ten times
(1 / 20 for either side)."""


def extremes(
    groups: Sequence[AnyGroup],
    measure: Callable[[AnyGroup], Interval | None],
    what: str,
    name: Callable[[AnyGroup], str] | None = None,
) -> str:
    """Where something that was measured is lowest and highest, a sentence for each game.

    A verdict needs repeats enough, and two groups: the best and the worst of many differ by chance alone.

    Args:
        groups: of runs.
        measure: of a group; those without one do not count.
        what: is measured, in words.
        name: of a group (None: the labels in which the groups differ).
    """
    by_game = parted(groups, "game")
    if len(by_game) > 1:
        return " ".join(extremes(of, measure, f"{what} on {of[0].labels.get('game')}", name) for of in by_game)
    named = name or (lambda group: name_among(group, groups))
    known = [(value, group) for group in groups if (value := measure(group)) is not None]
    if not known:
        return f"No {what} was measured."
    (low, lowest), (high, highest) = (end(known, key=lambda pair: pair[0].mean) for end in (min, max))
    if len(known) == 1:
        where = named(lowest)
        return f"The {what} is {text(low)}{f' ({where})' if where else ''}."
    if low.mean == high.mean:
        return f"The {what} is {number(low.mean)} throughout."
    ranges = f"The {what} ranges from {number(low.mean)} ({named(lowest)}) to {number(high.mean)} ({named(highest)})"
    return f"{ranges}{_verdict(low, high) if len(known) == len(groups) == 2 else _caution(low, high)}."


def compared(name: str, value: Interval | None, other_name: str, other: Interval | None, what: str) -> str:
    """Two groups of runs, in one clause; a verdict where the repeats are enough, or few and all on one side.

    Args:
        value, other: of what was measured of either; None where nothing was.
        what: was measured, in words.
    """
    if value is None or other is None:
        return f"no {what} of {name if value is None else other_name} was measured"
    clause = f"the {what} of {name} is {number(value.mean)}, that of {other_name} {number(other.mean)}"
    low, high = sorted((value, other), key=lambda each: each.mean)
    return f"{clause}{_verdict(low, high)}"


def paired(name: str, other_name: str, ratio: Interval, what: str) -> str:
    """What runs of equal seeds took beside each other, in one clause; a verdict where the repeats are enough.

    Args:
        ratio: of the first to the other, of each pair; see `statistics.bootstrap_paired_ratio`.
        what: was measured, in words.
    """
    clause = f"seed by seed, {name} took {text(ratio)} times the {what} of {other_name}"
    if ratio.bounds is None:
        return clause
    low, high = ratio.bounds
    return f"{clause}; the 95% interval {'includes' if low <= 1.0 <= high else 'excludes'} 1"


def reached(groups: Sequence[tuple[str, TimeToScore | None]], target: float) -> str:
    """How many runs of each group reached a score, in one clause.

    Args:
        groups: name, and the times of its runs.
    """
    each = [f"{len(times.reached)} of {times.count} of {name}" for name, times in groups if times is not None]
    return f"runs that reached {target:g}: {', '.join(each)}"


def sentences(clauses: Sequence[str]) -> str:
    """Each as a sentence."""
    return " ".join(f"{clause[0].upper()}{clause[1:]}." for clause in clauses)


def _verdict(low: Interval, high: Interval) -> str:
    """Whether the two are told apart."""
    if difference(high, low) is not None:
        return f", and the 95% interval of their difference {'excludes' if told_apart(high, low) else 'includes'} 0"
    if min(low.count, high.count) >= FEW and low.values and high.values and max(low.values) < min(high.values):
        return ", and every run of the one is above every run of the other"
    return _caution(low, high)


def _caution(low: Interval, high: Interval) -> str:
    """That they are few, if they are."""
    fewest = min(low.count, high.count)
    runs = "one run of each says" if fewest == 1 else f"{fewest} runs of each say"
    return f"; {runs} little about chance" if fewest < ENOUGH else ""


def name_among(group: Group, groups: Sequence[Group]) -> str:
    """The labels of a group in which it differs from others: their values, and of numbers their names, too."""
    varied = [name for name in group.labels if len({repr(other[name]) for other in groups}) > 1]
    return ", ".join(_label(name, group[name]) for name in varied)


def _label(name: str, value: Any) -> str:
    words = name.replace("_", " ")
    if isinstance(value, str):
        return value
    return f"{words} {value:g}" if isinstance(value, float) else f"{words} {text(value)}"
