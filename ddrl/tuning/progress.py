"""How far a trial is and what it scores, from the records of its metrics.jsonl. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ddrl.config import RunConfig
from ddrl.studies.measures import SCORES, kind_of


def part_done(record: Mapping[str, Any], run: RunConfig) -> float:
    """The share of a trial's budget that is used up; of several budgets, that of the one that is used up most."""
    budgets = (("agent_steps", run.agent_steps), ("update", run.max_updates), ("wall_seconds", 60.0 * run.minutes))
    return max((record.get(name, 0) / limit for name, limit in budgets if limit), default=0.0)


def scores_at_rungs(records: Sequence[Mapping[str, Any]], run: RunConfig, score: str, rungs: int) -> dict[int, float]:
    """Rung, from 1 -> the newest score when that part of the budget was used up.

    Args:
        records: records of the trial, oldest first.
        score: online or evaluation.
        rungs: number of rungs in the whole budget.
    """
    name = SCORES[score]
    found: dict[int, float] = {}
    newest: float | None = None
    reached = 0
    for record in records:
        if record["kind"] == "event":
            continue
        rung = int(part_done(record, run) * rungs)
        if newest is not None:
            found |= dict.fromkeys(range(reached + 1, min(rung, rungs) + 1), newest)
        reached = max(reached, rung)
        if record["kind"] == kind_of(name) and name in record and not record.get("timed_out"):
            newest = float(record[name])
    return found
