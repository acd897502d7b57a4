"""The median rule: a run whose score is below the median of other runs at the same time is ended early, and marked.

This is the rule of Golovin et al. 2017 (Google Vizier, section 3.2): it compares a run's best score so far with the
median, over the runs of other cells, of their mean scores until that time. They are means, since otherwise nearly half
of the runs that are still rising would be ended. Runs that were ended early count, too, since otherwise the median
would be that of the survivors.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ddrl import rundir
from ddrl.reporting.metrics import without_undone
from ddrl.rundir import JsonLines
from ddrl.studies.measures import EVALUATION
from ddrl.studies.points import state_of

MARK = "stopped_early.json"
FEWEST_OTHERS = 2
LOOK_SECONDS = 2.0

Records = Sequence[Mapping[str, Any]]
Train = Callable[[], None]


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


class Other(NamedTuple):
    """A run of another cell: its records, and whether it has ended."""

    records: Records
    ended: bool


def verdict(rule: Rule, ours: Records, others: Sequence[Other]) -> dict[str, Any] | None:
    """Why a run is hopeless, as JSON types; None if it is not, or if too few others have got as far."""
    scores = _scores(rule, ours)
    if not scores or scores[-1][0] < rule.begin:
        return None
    now, best = scores[-1][0], max(score for _, score in scores)
    known = [_scores(rule, other.records) for other in others]
    theirs = [
        statistics.fmean(score for x, score in run if x <= now)
        for run, other in zip(known, others)
        if run and run[0][0] <= now and (other.ended or run[-1][0] >= now)
    ]
    if len(theirs) < FEWEST_OTHERS or best >= (median := statistics.median(theirs)):
        return None
    median_text = f"the median of the means of {len(theirs)} others, {median:.4g}"
    text = f"stopped early: its best score, {best:.4g}, was below {median_text}"
    return {rule.against: now, "best": best, "median": median, "others": len(theirs), "message": text}


def _scores(rule: Rule, records: Records) -> list[tuple[float, float]]:
    kind = "evaluation" if rule.score == EVALUATION else "train"
    return [
        (float(r[rule.against]), float(r[rule.score]))
        for r in without_undone([dict(record) for record in records])
        if r["kind"] == kind and rule.score in r and rule.against in r and not r.get("timed_out")
    ]


def train_unless_hopeless(train: Train, path: Path, others: Sequence[Path], rule: Rule) -> None:
    """Trains, and asks the run to end when it is hopeless; its result is then `finished`, with the reason.

    Args:
        train: trains in `path`.
        others: directories of the runs that it is compared with, which need not exist yet.

    Raises:
        UsageError, RuntimeError: as `train` does.
    """
    if _close(path):
        return  # the rule had ended the run, but this process was stopped before it could mark the result
    ended = threading.Event()
    watch = threading.Thread(target=_watch, args=(path, others, rule, ended), name="median rule", daemon=True)
    watch.start()
    try:
        train()
    finally:
        ended.set()
        watch.join()
    _close(path)


def _close(path: Path) -> bool:
    """Marks the result of a run that the rule ended early, and returns True; else removes the rule's request."""
    why, result = rundir.read_json(path / MARK), rundir.read_json(path / rundir.RESULT)
    if isinstance(why, dict) and isinstance(result, dict) and result.get("status") == "stopped":
        changed = {"status": "finished", "stopped_early": why, "message": why.get("message", "stopped early")}
        rundir.write_json(path / rundir.RESULT, result | changed)
        return True
    if isinstance(why, dict) and isinstance(result, dict) and result.pop("unevaluated", False):
        rundir.write_json(path / rundir.RESULT, result)  # so that nobody resumes the run to evaluate it
    (path / MARK).unlink(missing_ok=True)
    return False


def _watch(path: Path, others: Sequence[Path], rule: Rule, ended: threading.Event) -> None:
    """Looks at the metrics of a run and of the others until it ends or is hopeless."""
    followed = {each: JsonLines(each / rundir.METRICS) for each in (path, *others)}
    records: dict[Path, list[dict[str, Any]]] = {each: [] for each in followed}
    while not ended.wait(LOOK_SECONDS):
        if (path / rundir.RESULT).exists():
            continue  # the result is that of an earlier start, or the run is ending
        for each, lines in followed.items():
            records[each] += lines.read()
        why = verdict(
            rule, records[path], [Other(records[each], state_of(each).status == "finished") for each in others]
        )
        if why is not None:
            rundir.write_json(path / MARK, why)
            (path / rundir.STOP).touch()
            return
