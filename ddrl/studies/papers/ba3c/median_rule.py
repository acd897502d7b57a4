"""The median rule: a run whose score is below the median of other runs at the same time is ended early, and marked.

This is the rule of Golovin et al. 2017 (Google Vizier, section 3.2): it compares a run's best score so far with the
median, over the runs of other cells, of their mean scores until that time. They are means, since otherwise nearly half
of the runs that are still rising would be ended. Runs that were ended early count, too, since otherwise the median
would be that of the survivors. A run that has ended keeps its last score: the mean of one that ended at its target is
otherwise that of its rise alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from ddrl.reporting.metrics import without_undone
from ddrl.studies.measures import Records, kind_of
from ddrl.studies.papers.ba3c.ending import Other

FEWEST_OTHERS = 2


class Rule(NamedTuple):
    """Which score the rule compares, and from when on.

    Attributes:
        score: ONLINE or EVALUATION.
        against: wall_seconds or agent_steps, whichever the budget is in.
        begin: seconds or agent steps before which no run is ended.
    """

    score: str
    against: str
    begin: float


def verdict(rule: Rule, ours: Records, others: Sequence[Other]) -> dict[str, Any] | None:
    """Why a run is hopeless, as entries of its result; None if it is not, or if too few others have got as far."""
    scores = _scores(rule, ours)
    if not scores or scores[-1][0] < rule.begin:
        return None
    now, best = scores[-1][0], max(score for _, score in scores)
    known = [_scores(rule, other.records) for other in others]
    theirs = [
        _mean_until(run, now)
        for run, other in zip(known, others)
        if run and run[0][0] <= now and (other.ended or run[-1][0] >= now)
    ]
    if len(theirs) < FEWEST_OTHERS or best >= (median := statistics.median(theirs)):
        return None
    median_text = f"the median of the means of {len(theirs)} others, {median:.4g}"
    text = f"stopped early: its best score, {best:.4g}, was below {median_text}"
    why = {rule.against: now, "best": best, "median": median, "others": len(theirs)}
    return {"stopped_early": why, "message": text}


def _mean_until(run: Sequence[tuple[float, float]], now: float) -> float:
    """The mean of a run's scores until `now`; a run that has ended before keeps its last score until then."""
    mean = statistics.fmean(score for x, score in run if x <= now)
    held = max(0.0, now - run[-1][0])
    return mean + (run[-1][1] - mean) * held / now if held else mean


def _scores(rule: Rule, records: Records) -> list[tuple[float, float]]:
    return [
        (float(r[rule.against]), float(r[rule.score]))
        for r in without_undone([dict(record) for record in records])
        if r["kind"] == kind_of(rule.score) and rule.score in r and rule.against in r and not r.get("timed_out")
    ]
