"""Reads from the records of metrics.jsonl what became of a broken run. All functions are pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Records = Sequence[dict[str, Any]]


def names(records: Records) -> set[str]:
    """The names of the events among the records."""
    return {record["name"] for record in records if record.get("kind") == "event"}


def update(records: Records) -> int:
    """The newest update in the records; 0 if there is none."""
    lines = (r["update"] for r in reversed(records) if r["kind"] == "train" or r.get("name") == "resumed")
    return next(lines, 0)


def trains(records: Records, beyond: int = -1) -> bool:
    """Whether the records after the last start among them show progress, to an update above `beyond`."""
    starts = [i for i, record in enumerate(records) if record.get("name") in ("restarted", "resumed")]
    updates = [record["update"] for record in records[starts[-1] if starts else 0 :] if record["kind"] == "train"]
    return len(updates) > 1 and updates[-1] > max(updates[0], beyond)


def lost(records: Records, since: int, most: int | None = None) -> int:
    """The most updates lost at any resume from record `since` on; updates after update `most` do not count."""
    known, worst = 0, 0
    for number, record in enumerate(records):
        if record["kind"] == "train":
            known = max(known, record["update"])
        elif record.get("name") == "resumed":
            if number >= since:
                worst = max(worst, (known if most is None else min(known, most)) - record["update"])
            known = record["update"]
    return worst


def lag(records: Records) -> int:
    """The most updates by which checkpoints come late: those made while one is written, and those between two lines."""
    late, line, widest = 0, 0, 0
    pending = None
    for record in records:
        if record["kind"] == "train":
            if pending is not None:
                late, pending = max(late, record["update"] - pending), None
            widest, line = max(widest, record["update"] - line if line else 0), record["update"]
        elif record.get("name") == "checkpoint":
            pending = record["update"]
        elif record.get("name") == "resumed":
            line, pending = 0, None
    return late + widest


def unsaved(records: Records, since: int) -> int:
    """The most updates made, from record `since` on, between a failed checkpoint and the next successful one."""
    line, failed, most = update(records[:since]), None, 0
    for record in records[since:]:
        if record["kind"] == "train":
            line = record["update"]
            most = max(most, line - failed if failed is not None else 0)
        elif record.get("name") == "checkpoint_failed" and failed is None:
            failed = line
        elif record.get("name") in ("checkpoint", "resumed"):
            failed = None
    return most
