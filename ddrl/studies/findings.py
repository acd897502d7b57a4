"""Sentences that say what a study found. A reader of its report sees them first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ddrl.reporting.texts import number
from ddrl.studies.points import AnyGroup, Group, parted
from ddrl.studies.statistics import ENOUGH, Interval, TimeToScore, difference, told_apart
from ddrl.studies.tables import text

FEW = 3
"""Fewest runs of each of two groups for which it means something that all runs of one are above all of the other: with
three each, that happens by chance once in ten times (1 / 20 for either side)."""


def extremes(
    groups: Sequence[AnyGroup],
    measure: Callable[[AnyGroup], Interval | None],
    what: str,
    name: Callable[[AnyGroup], str] | None = None,
) -> str:
    """In which groups a measure is lowest and highest, in a sentence for each game.

    It has a verdict only if there are exactly two groups with enough repeats: the best and the worst of many groups
    differ by chance alone.

    Args:
        groups: groups of runs.
        measure: the measure of a group; groups for which it is None do not count.
        what: name of what is measured, in words.
        name: gives the name of a group (None: the labels in which the groups differ).
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
    """A clause that compares two groups of runs.

    It has a verdict if there are enough repeats, or if there are few and all of one group are above all of the other.

    Args:
        value, other: the measure of each group; None if nothing was measured.
        what: name of what was measured, in words.
    """
    if value is None or other is None:
        return f"no {what} of {name if value is None else other_name} was measured"
    clause = f"the {what} of {name} is {number(value.mean)}, that of {other_name} {number(other.mean)}"
    low, high = sorted((value, other), key=lambda each: each.mean)
    return f"{clause}{_verdict(low, high)}"


def paired(name: str, other_name: str, ratio: Interval, what: str) -> str:
    """A clause that compares two groups of runs seed by seed, with a verdict if there are enough repeats.

    Args:
        ratio: ratio of the first group to the other over pairs of runs; see `statistics.bootstrap_paired_ratio`.
        what: name of what was measured, in words.
    """
    clause = f"seed by seed, {name} took {text(ratio)} times the {what} of {other_name}"
    if ratio.bounds is None:
        return clause
    low, high = ratio.bounds
    return f"{clause}; the 95% interval {'includes' if low <= 1.0 <= high else 'excludes'} 1"


def reached(groups: Sequence[tuple[str, TimeToScore | None]], target: float) -> str:
    """How many runs of each group reached a score, in one clause.

    Args:
        groups: (name, times of its runs) of each group; groups whose times are None are left out.
    """
    each = [f"{len(times.reached)} of {times.count} of {name}" for name, times in groups if times is not None]
    return f"runs that reached {target:g}: {', '.join(each)}"


def sentences(clauses: Sequence[str]) -> str:
    """The clauses as sentences, each with a capital letter and a period."""
    return " ".join(f"{clause[0].upper()}{clause[1:]}." for clause in clauses)


def _verdict(low: Interval, high: Interval) -> str:
    """The end of a sentence that says whether two groups are told apart, or that there are too few runs to say."""
    if difference(high, low) is not None:
        return f", and the 95% interval of their difference {'excludes' if told_apart(high, low) else 'includes'} 0"
    if min(low.count, high.count) >= FEW and low.values and high.values and max(low.values) < min(high.values):
        return ", and every run of the one is above every run of the other"
    return _caution(low, high)


def _caution(low: Interval, high: Interval) -> str:
    """The end of a sentence that warns of few runs; empty if there are enough."""
    fewest = min(low.count, high.count)
    runs = "one run of each says" if fewest == 1 else f"{fewest} runs of each say"
    return f"; {runs} little about chance" if fewest < ENOUGH else ""


def name_among(group: Group, groups: Sequence[Group]) -> str:
    """A name for a group: the values of the labels in which the groups differ; numbers follow the label's name."""
    varied = [name for name in group.labels if len({repr(other[name]) for other in groups}) > 1]
    return ", ".join(_label(name, group[name]) for name in varied)


def _label(name: str, value: Any) -> str:
    words = name.replace("_", " ")
    if isinstance(value, str):
        return value
    return f"{words} {value:g}" if isinstance(value, float) else f"{words} {text(value)}"
