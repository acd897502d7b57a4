"""Numbers and records as a person reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddrl.reporting.metrics import evaluation_remarks
from ddrl.wording import counted


def duration(seconds: float) -> str:
    """Seconds as 0:07, 12:34 or 3:25:45."""
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def number(value: float) -> str:
    """A number with three digits or more, thousands with commas: 1,234 or 12.3 or 0.0123."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def present(record: Mapping[str, Any], *items: tuple[str, str]) -> list[str]:
    """Those of these numbers that a record has, as texts.

    Args:
        items: (name, format) of each number.
    """
    return [form.format(record[name]) for name, form in items if name in record]


def raw_score(score: float, digits: int = 1) -> str:
    """The score of one game: whole, or with as many digits after the point as a mean beside it has.

    Rounded to a whole number, the best of -0.3 and -0.4 would be -0, and that of 0.4 and 0.4 less than their mean.
    """
    return f"{score:.0f}" if float(score).is_integer() else f"{score:.{digits}f}"


def evaluation_line(record: Mapping[str, Any]) -> str:
    """A line about an evaluation: mean, maximum, games, and the update and time of the snapshot that played."""
    best = raw_score(record["maximum"])
    mean = f"evaluation: mean {record['mean']:.1f}, max {best} over {counted(record['games'], 'game')}"
    taken = f"update {record['version']:,} at {duration(record['wall_seconds'])}"
    return ", ".join([mean, taken, *evaluation_remarks(record)])


def event_line(record: Mapping[str, Any]) -> str:
    """A line about an event of the run."""
    return f"{duration(record.get('wall_seconds', 0))} {record['name'].replace('_', ' ')}: {record['text']}"
