"""Outcomes with equal labels, which differ in their seed alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ddrl.studies.points import Outcome


def grouped(outcomes: Sequence[Outcome], *names: str) -> Iterator[tuple[tuple[Any, ...], list[Outcome]]]:
    """(values of these labels, outcomes that have them), in the order of the first of each."""
    groups: dict[tuple[Any, ...], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(tuple(outcome.point.labels[name] for name in names), []).append(outcome)
    yield from groups.items()


def having(outcomes: Sequence[Outcome], **labels: Any) -> list[Outcome]:
    """Those with these labels."""
    return [o for o in outcomes if all(o.point.labels.get(name) == value for name, value in labels.items())]
