"""When runs reached a score, and how long those were given that did not."""

from __future__ import annotations

from collections.abc import Sequence

from ddrl.reporting.metrics import first_online
from ddrl.studies.curves import ONLINE
from ddrl.studies.measures import required_time
from ddrl.studies.points import Outcome
from ddrl.studies.statistics import TimeToScore


def reached_after(run: Outcome, score: str, target: float) -> float | None:
    """Seconds of wall time until a run first had a score, None where it never did.

    An online score counts once it is the mean of as many games as it looks back on, an evaluation once all its games
    were played.

    Args:
        score: ONLINE or EVALUATION.
    """
    if score != ONLINE:
        return required_time([r for r in run.records if r["kind"] == "evaluation"], target, policies=1)
    record = first_online([r for r in run.records if r["kind"] == "train"], target)
    return None if record is None else float(record["wall_seconds"])


def given_seconds(run: Outcome) -> float:
    """Wall time that a run had."""
    return max((float(r["wall_seconds"]) for r in run.records if "wall_seconds" in r), default=0.0)


def times_to(runs: Sequence[Outcome], score: str, target: float, minutes: float = 0.0) -> TimeToScore:
    """Of repeats, at least one.

    Args:
        minutes: that each was given; 0 where a number of agent steps ended them: those that did not reach the score
            were then given as long as the first of them that ended.
    """
    found = [reached_after(run, score, target) for run in runs]
    missed = [given_seconds(run) for run, seconds in zip(runs, found) if seconds is None]
    limit = 60.0 * minutes or min(missed, default=max(map(given_seconds, runs)))
    return TimeToScore(tuple(sorted(seconds for seconds in found if seconds is not None)), len(missed), limit)
