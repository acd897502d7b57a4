"""What is measured of runs: scores as Liu et al. 2020 measure them, rates, and times to a score. Pure functions.

Evaluations are the `evaluation` records of metrics.jsonl, oldest first: `mean` raw score of `games` games with the
parameters of `wall_seconds`. Those that time cut off (`timed_out`) do not count.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ddrl.reporting.metrics import complete, first_online, is_resumed, while_training, whole
from ddrl.studies.points import Group, Outcome
from ddrl.studies.statistics import ENOUGH, Interval, TimeToScore, bootstrap, bootstrap_ratio, interquartile_mean

POLICIES = 10  # of 10 evaluation episodes each: the paper's 100
WARM_UP_SECONDS = 10.0  # that do not count in rates; a third of shorter runs
WHOLE_BUDGET = 0.98  # of its minutes: a run that had so many was not ended by something else
ONLINE, EVALUATION, MAXIMUM = "online_score_mean", "mean", "maximum"
"""Names of scores in `train` records, and of two in `evaluation` records."""
AGENT_STEPS = "agent_steps_per_s"

CAPTIONS = {
    ONLINE: "online score: mean of the last 100 training games",
    EVALUATION: "evaluation score: greedy games with frozen parameters",
}

Records = Sequence[Mapping[str, Any]]
Measure = Callable[[Outcome], float | None]


def scores_caption(score: str, epsilon: float | None = None) -> str:
    """What scores are; of evaluations with an epsilon, that they are not greedy."""
    text = CAPTIONS[score]
    return text if epsilon is None else text.replace("greedy games", f"games of epsilon {epsilon:g}")


def caption_of(score: str, outcomes: Iterable[Outcome]) -> str:
    """The same of runs, whose largest epsilon is told, and with it whether some have drawn actions."""
    settings = [run.point.config.evaluation for run in outcomes]
    epsilons = {evaluation.eval_epsilon for evaluation in settings if not evaluation.draws_actions}
    text = scores_caption(score, max(epsilons, default=0.0) or None)
    if len(epsilons) > 1:
        text = text.replace("games of epsilon", "games of epsilons up to")
    drawn = [evaluation.draws_actions for evaluation in settings]
    if all(drawn):
        return text.replace("greedy games", "games with drawn actions")
    return text.replace(" with frozen", ", or with drawn actions, with frozen") if any(drawn) else text


# of a run's records ---------------------------------------------------------------------------------------------------


def final_metric(evaluations: Records, policies: int = POLICIES) -> float | None:
    """Mean score of the episodes of the last `policies` evaluations, or of all where they are fewer; None of none.

    Liu et al. 2020, section 5, evaluation protocol: with 10 episodes an evaluation, the mean of the last 100.
    """
    records = whole(list(evaluations))
    return _mean(records[-policies:]) if records else None


def final_time_metric(evaluations: Records, seconds: float, policies: int = POLICIES) -> float | None:
    """The final metric at a time limit: of parameters that were there after `seconds` of the run's wall time."""
    return final_metric([record for record in evaluations if record["wall_seconds"] <= seconds], policies)


def required_time(evaluations: Records, score: float, policies: int = POLICIES) -> float | None:
    """Seconds of wall time until the mean of the most recent `policies` evaluations first reaches a score.

    None where it never does. Fewer evaluations than `policies` reach nothing: one lucky evaluation is no mean of 100.
    Nor do evaluations that had no time for all their games.
    """
    record = reaching(evaluations, score, policies)
    return None if record is None else float(record["wall_seconds"])


def reaching(evaluations: Records, score: float, policies: int = 1) -> Mapping[str, Any] | None:
    """The evaluation with which the mean of the most recent `policies` first reaches a score; see `required_time`."""
    records = complete(list(evaluations))
    for end in range(policies, len(records) + 1):
        if _mean(records[end - policies : end]) >= score:
            return records[end - 1]
    return None


def rate_per_second(records: Records, name: str, warm_up_seconds: float) -> float | None:
    """Mean of a rate of training after a warm-up, without its last interval, which also covers the end, nor the final
    evaluation; None of less than two. A run that was stopped and went on has a warm-up and an end of each start.

    Agent steps are told by their totals. Of other rates such as `datapoints_per_s` each `train` record tells that since
    the one before, and counts for as long.

    Args:
        warm_up_seconds: of wall time, in which simulators start together, queues fill and functions are traced.
    """
    total = name.removesuffix("_per_s") if name == AGENT_STEPS else name
    intervals: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []
    for began, trained in _starts(records):
        told = [record for record in trained if total in record][:-1]
        intervals += [(a, b) for a, b in itertools.pairwise(told) if a["wall_seconds"] - began >= warm_up_seconds]
    seconds = np.array([b["wall_seconds"] - a["wall_seconds"] for a, b in intervals])
    if not intervals or seconds.sum() <= 0:
        return None
    if name == AGENT_STEPS:
        return sum(b[total] - a[total] for a, b in intervals) / float(seconds.sum())
    return float(np.average([b[name] for _, b in intervals], weights=seconds))


def _starts(records: Records) -> Iterator[tuple[float, Records]]:
    """Of each start of a run: the wall seconds at which it began, and its `train` records of training."""
    resumed = [i for i, record in enumerate(records) if is_resumed(record)]
    for first, last in itertools.pairwise([0, *resumed, len(records)]):
        began = records[first].get("wall_seconds", 0.0) if first in resumed else 0.0
        yield began, while_training(records[first:last])


def _mean(evaluations: Records) -> float:
    """Over the games of all evaluations."""
    games = [record["games"] for record in evaluations]
    return float(np.average([record["mean"] for record in evaluations], weights=games))


# of a run -------------------------------------------------------------------------------------------------------------


def evaluations(run: Outcome) -> list[Mapping[str, Any]]:
    """Its evaluation records, those that time cut off included."""
    return [record for record in run.records if record["kind"] == "evaluation"]


def last_score(run: Outcome, score: str) -> float | None:
    """At the end of a run, ONLINE, or EVALUATION of all games of an evaluation; None where there is none."""
    return last_of(run, ONLINE) if score == ONLINE else final_metric(complete(evaluations(run)), policies=1)


def last_of(run: Outcome, name: str) -> float | None:
    """The newest number of this name in any record."""
    return next((record[name] for record in reversed(run.records) if name in record), None)


def newest(name: str) -> Measure:
    """The measure of that number."""
    return lambda run: last_of(run, name)


def largest(name: str) -> Measure:
    """The measure of the largest number of this name: the last record may be an evaluation of older parameters."""
    return lambda run: max((record[name] for record in run.records if name in record), default=None)


def given_seconds(run: Outcome) -> float:
    """Wall time that a run had."""
    return max((float(record["wall_seconds"]) for record in run.records if "wall_seconds" in record), default=0.0)


def warm_up(run: Outcome, seconds: float = WARM_UP_SECONDS) -> float:
    """Seconds at the beginning that do not count in rates; a third of shorter runs."""
    return min(seconds, given_seconds(run) / 3)


def rate(name: str = AGENT_STEPS, warm_up_seconds: float | None = None) -> Measure:
    """The measure of a rate.

    Args:
        warm_up_seconds: that do not count (None: see `warm_up`).
    """
    return lambda run: rate_per_second(run.records, name, warm_up(run) if warm_up_seconds is None else warm_up_seconds)


def reached_after(run: Outcome, score: str, target: float) -> float | None:
    """Seconds of wall time until a run first had a score, None where it never did.

    An online score counts once it is the mean of as many games as it looks back on, an evaluation once all its games
    were played.

    Args:
        score: ONLINE or EVALUATION.
    """
    record = _reaching_record(run, score, target)
    return None if record is None else float(record["wall_seconds"])


def steps_to(runs: Sequence[Outcome], score: str, target: float) -> Interval | str:
    """Agent steps after which each run first had a score, for a table; see `reached_after`.

    Returns:
        Their mean with its interval; of runs some of which never had it, their number and mean, or of few all of them
        in the order of the runs.

    Args:
        score: ONLINE or EVALUATION. An evaluation is of the parameters after these steps.
    """
    return _counted(steps_until(runs, score, target))


def steps_until(runs: Sequence[Outcome], score: str, target: float) -> list[int | None]:
    """Agent steps after which each run first had a score, None of one that never had it; see `reached_after`."""
    return _counts(runs, score, target, "agent_steps")


def updates_to(runs: Sequence[Outcome], score: str, target: float) -> Interval | str:
    """Likewise the updates."""
    return _counted(updates_until(runs, score, target))


def updates_until(runs: Sequence[Outcome], score: str, target: float) -> list[int | None]:
    """Updates after which each run first had a score, None of one that never had it; see `reached_after`."""
    return _counts(runs, score, target, "update" if score == ONLINE else "version")


def _counts(runs: Sequence[Outcome], score: str, target: float, name: str) -> list[int | None]:
    records = [_reaching_record(run, score, target) for run in runs]
    return [None if record is None else int(record[name]) for record in records]


def _counted(counts: Sequence[int | None]) -> Interval | str:
    reached = [count for count in counts if count is not None]
    missed = len(counts) - len(reached)
    if reached and not missed:
        found = bootstrap(reached)
        assert found is not None
        return found
    if reached and len(counts) >= ENOUGH:
        return f"{len(reached)} of {len(counts)} in {round(sum(reached) / len(reached)):,}, {missed} never"
    if len(counts) >= ENOUGH:
        return "never"
    return "; ".join("never" if count is None else f"{count:,}" for count in counts)


def _reaching_record(run: Outcome, score: str, target: float) -> Mapping[str, Any] | None:
    """The record with which a run first had a score."""
    if score != ONLINE:
        return reaching(evaluations(run), target)
    return first_online([record for record in run.records if record["kind"] == "train"], target)


# of repeats -----------------------------------------------------------------------------------------------------------


def count(group: Group) -> int:
    """Its runs."""
    return len(group.runs)


def most(name: str, none: Any = 0) -> Callable[[Group], Any]:
    """The largest number of this name that any record of any run has, `none` where none has."""
    return lambda group: max((r[name] for run in group.runs for r in run.records if name in r), default=none)


def values(measure: Measure, runs: Sequence[Outcome]) -> list[float | None]:
    """A measure of each run."""
    return [measure(run) for run in runs]


def mean(measure: Measure) -> Callable[[Group], Interval | None]:
    """The mean of a measure over the runs of a group, with its interval."""
    return lambda group: bootstrap(values(measure, group.runs))


def ratio(measure: Measure, runs: Sequence[Outcome], reference: Sequence[Outcome]) -> Interval | None:
    """The mean of a measure over that of the runs that others are compared with; None of these themselves."""
    return None if runs == reference else bootstrap_ratio(values(measure, runs), values(measure, reference))


def middle(measure: Measure) -> Callable[[Group], Interval | None]:
    """Likewise the interquartile mean."""
    return lambda group: interquartile_mean(values(measure, group.runs))


def final(score: str) -> Callable[[Group], Interval | None]:
    """The mean score at the end of the runs, ONLINE or EVALUATION."""
    return mean(lambda run: last_score(run, score))


def times_to(runs: Sequence[Outcome], score: str, target: float, minutes: float = 0.0) -> TimeToScore:
    """When repeats, at least one, reached a score.

    Args:
        score: ONLINE or EVALUATION.
        minutes: that each was given; 0 where a number of agent steps ended them. Of those that did not reach the score
            the first that ended says how long they were given, where that is less.
    """
    reached = [reached_after(run, score, target) for run in runs]
    missed = [given_seconds(run) for run, seconds in zip(runs, reached) if seconds is None]
    shortest = min(missed, default=max(map(given_seconds, runs)))
    limit = 60.0 * minutes if minutes and shortest >= WHOLE_BUDGET * 60.0 * minutes else shortest
    return TimeToScore(tuple(seconds for seconds in reached if seconds is not None), len(missed), limit)
