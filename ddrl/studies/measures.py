"""Measures of runs: scores as Liu et al. 2020 measure them, rates, and times to a score. Pure functions.

Evaluations are the `evaluation` records of metrics.jsonl, oldest first: the `mean` raw score of `games` games, played
with the parameters that the run had at `wall_seconds`. Evaluations that time cut off (`timed_out`) do not count.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ddrl.reporting.metrics import best_online, complete, first_online, is_resumed, while_training, whole
from ddrl.studies.points import Group, Outcome, having
from ddrl.studies.statistics import ENOUGH, Interval, TimeToScore, bootstrap, bootstrap_ratio, interquartile_mean

POLICIES = 10  # evaluations, with 10 episodes each: the paper's 100
WARM_UP_SECONDS = 10.0  # at the start of a run, which rates leave out; at most a third of the run
WHOLE_BUDGET = 0.98  # share of its minutes from which a run counts as ended by its budget, not by something else
ONLINE, EVALUATION, MAXIMUM = "online_score_mean", "mean", "maximum"
"""Names of scores: the first is in `train` records, the others are in `evaluation` records."""
SCORES = {"online": ONLINE, "evaluation": EVALUATION}
"""Score as --score names it -> its name in records."""
AGENT_STEP_RATE = "agent_steps_per_s"

CAPTIONS = {
    ONLINE: "online score: mean of the last 100 training games",
    EVALUATION: "evaluation score: greedy games with frozen parameters",
}

Records = Sequence[Mapping[str, Any]]
Measure = Callable[[Outcome], float | None]


def kind_of(name: str) -> str:
    """The kind of the records that have a score, or another measured number: evaluation or train."""
    return "evaluation" if name in (EVALUATION, MAXIMUM) else "train"


def scores_caption(score: str, epsilon: float | None = None) -> str:
    """The part of a caption that says what the scores are; with an epsilon, it names that in place of 'greedy'."""
    text = CAPTIONS[score]
    return text if epsilon is None else text.replace("greedy games", f"games of epsilon {epsilon:g}")


def caption_of(score: str, outcomes: Iterable[Outcome]) -> str:
    """`scores_caption` for the evaluations of runs: it names their largest epsilon, and says if any drew actions."""
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
    """Mean score of the episodes of the last `policies` evaluations, or of all if there are fewer; None without any.

    Liu et al. 2020, section 5, evaluation protocol: with 10 episodes an evaluation, the mean of the last 100.
    """
    records = whole(list(evaluations))
    return _mean(records[-policies:]) if records else None


def final_time_metric(evaluations: Records, seconds: float) -> float | None:
    """The final metric at a time limit: only evaluations of parameters from the first `seconds` of wall time count."""
    return final_metric([record for record in evaluations if record["wall_seconds"] <= seconds])


def required_time(evaluations: Records, score: float, policies: int = POLICIES) -> float | None:
    """Seconds of wall time until the mean of the most recent `policies` evaluations first reaches a score.

    None if it never does. With fewer than `policies` evaluations, no score counts as reached, since one lucky
    evaluation is no mean of 100 episodes. Evaluations that had no time for all their games do not count.
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
    """Mean of a rate during training; None if there are too few records to compute it.

    The warm-up, the last interval, which also covers the end of training, and the final evaluation do not count. A run
    that was stopped and resumed has a warm-up and an end for each start.

    The rate of agent steps is computed from their totals. Any other rate, such as `datapoints_per_s`, is that of each
    `train` record since the record before, weighted by the time between the two.

    Args:
        warm_up_seconds: wall time at each start in which simulators start together, queues fill, and functions are
            traced.
    """
    total = name.removesuffix("_per_s") if name == AGENT_STEP_RATE else name
    intervals: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []
    for began, trained in _starts(records):
        told = [record for record in trained if total in record][:-1]
        intervals += [(a, b) for a, b in itertools.pairwise(told) if a["wall_seconds"] - began >= warm_up_seconds]
    seconds = np.array([b["wall_seconds"] - a["wall_seconds"] for a, b in intervals])
    if not intervals or seconds.sum() <= 0:
        return None
    if name == AGENT_STEP_RATE:
        return sum(b[total] - a[total] for a, b in intervals) / float(seconds.sum())
    return float(np.average([b[name] for _, b in intervals], weights=seconds))


def ends_of_rates(records: Records, warm_up_seconds: float) -> list[Mapping[str, Any]]:
    """The `train` records without which the rate of agent steps would be another: at each start of a run, the first one
    after the warm-up and the last two, of which only the former counts; see `rate_per_second`."""
    ends: list[Mapping[str, Any]] = []
    for began, trained in _starts(records):
        told = [record for record in trained if "agent_steps" in record]
        later = [record for record in told if record["wall_seconds"] - began >= warm_up_seconds]
        ends += [*later[:1], *told[-2:]]
    return ends


def _starts(records: Records) -> Iterator[tuple[float, Records]]:
    """Yields for each start of a run the wall seconds at which it began, and its `train` records while it trained."""
    resumed = [i for i, record in enumerate(records) if is_resumed(record)]
    for first, last in itertools.pairwise([0, *resumed, len(records)]):
        began = records[first].get("wall_seconds", 0.0) if first in resumed else 0.0
        yield began, while_training(records[first:last])


def _mean(evaluations: Records) -> float:
    """Mean score over the games of all evaluations."""
    games = [record["games"] for record in evaluations]
    return float(np.average([record["mean"] for record in evaluations], weights=games))


# of a run -------------------------------------------------------------------------------------------------------------


def evaluations(run: Outcome) -> list[Mapping[str, Any]]:
    """The evaluation records of a run, including those that were cut off by time."""
    return [record for record in run.records if record["kind"] == "evaluation"]


def last_score(score: str) -> Measure:
    """The measure that is a run's last score: ONLINE, or EVALUATION of the last evaluation that had time for all games;
    None without one."""
    if score == ONLINE:
        return newest(ONLINE)
    return lambda run: final_metric(complete(evaluations(run)), policies=1)


def best_score(score: str) -> Measure:
    """The measure that is a run's best score: ONLINE as `best_online` has it, or EVALUATION of those that had time for
    all games; None without one."""
    if score == ONLINE:
        return lambda run: best_online([record for record in run.records if record["kind"] == "train"])
    return lambda run: max((record[score] for record in complete(evaluations(run))), default=None)


def newest(name: str) -> Measure:
    """The measure that is the newest number of this name in any record of a run; None if no record has it."""
    return lambda run: next((record[name] for record in reversed(run.records) if name in record), None)


def largest(name: str) -> Measure:
    """The measure that is the largest number of this name in any record of a run.

    It suits totals, whose newest number may be smaller, as an evaluation is a record of older parameters.
    """
    return lambda run: max((record[name] for record in run.records if name in record), default=None)


def given_seconds(run: Outcome) -> float:
    """Seconds of wall time that a run had, by its records.

    Events do not count: those of times that a resume took back stay among the records.
    """
    timed = [record for record in run.records if record["kind"] != "event" and "wall_seconds" in record]
    return max((float(record["wall_seconds"]) for record in timed), default=0.0)


def trained_seconds(run: Outcome) -> float:
    """Seconds of wall time that a run trained, by its records: `given_seconds` without its final evaluation."""
    timed = [*while_training(run.records), *evaluations(run)]  # evaluations have the time of their parameters
    return max((float(record.get("wall_seconds", 0.0)) for record in timed), default=0.0)


def warm_up(run: Outcome, seconds: float = WARM_UP_SECONDS) -> float:
    """Seconds at the start of a run that rates leave out: `seconds`, but at most a third of the run."""
    return min(seconds, given_seconds(run) / 3)


def rate(name: str = AGENT_STEP_RATE, warm_up_seconds: float | None = None) -> Measure:
    """The measure that is a mean rate; see `rate_per_second`.

    Args:
        warm_up_seconds: at the start of a run, which do not count (None: see `warm_up`).
    """
    return lambda run: rate_per_second(run.records, name, warm_up(run) if warm_up_seconds is None else warm_up_seconds)


def reached_after(run: Outcome, score: str, target: float) -> float | None:
    """Seconds of wall time until a run first reached a score; None if it never did.

    An online score counts only when it is the mean of ONLINE_EPISODES games, and an evaluation only when all its games
    were played.

    Args:
        score: ONLINE or EVALUATION.
    """
    record = _reaching_record(run, score, target)
    return None if record is None else float(record["wall_seconds"])


def steps_to(runs: Sequence[Outcome], score: str, target: float) -> Interval | str:
    """Agent steps after which runs first reached a score, as a cell of a table; see `reached_after`.

    Args:
        score: ONLINE or EVALUATION. An evaluation is of the parameters after these steps.

    Returns:
        The mean with its interval if all runs reached the score. If some did not, a text: the number that did and their
        mean, or, if there are fewer than ENOUGH runs, the steps of each run in order.
    """
    return _cell(steps_until(runs, score, target))


def steps_until(runs: Sequence[Outcome], score: str, target: float) -> list[int | None]:
    """Agent steps after which each run first reached a score, None for one that never did; see `reached_after`."""
    return _counts(runs, score, target, "agent_steps")


def updates_to(runs: Sequence[Outcome], score: str, target: float) -> Interval | str:
    """Updates after which runs first reached a score, as a cell of a table; see `steps_to`."""
    return _cell(updates_until(runs, score, target))


def updates_until(runs: Sequence[Outcome], score: str, target: float) -> list[int | None]:
    """Updates after which each run first reached a score, None for one that never did; see `reached_after`."""
    return _counts(runs, score, target, "update" if score == ONLINE else "version")


def _counts(runs: Sequence[Outcome], score: str, target: float, name: str) -> list[int | None]:
    records = [_reaching_record(run, score, target) for run in runs]
    return [None if record is None else int(record[name]) for record in records]


def steps_taken_to(runs: Sequence[Outcome], score: str, target: float) -> TimeToScore:
    """What one or more repeats of a point took to a score, in agent steps in place of seconds; see `times_to`.

    The limit of those that did not reach it is the number that the shortest of them made.
    """
    reached = steps_until(runs, score, target)
    made = [max((int(record.get("agent_steps", 0)) for record in run.records), default=0) for run in runs]
    missed = [steps for steps, taken in zip(made, reached) if taken is None]
    return TimeToScore(tuple(float(taken) for taken in reached if taken is not None), len(missed), min(missed or made))


def _cell(counts: Sequence[int | None]) -> Interval | str:
    """The cell of a table for what each run took to a score, None for one that never reached it; see `steps_to`."""
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
    """The record with which a run first reached a score; None if it never did."""
    if score != ONLINE:
        return reaching(evaluations(run), target)
    return first_online(run.records, target)


# of repeats -----------------------------------------------------------------------------------------------------------


def count(group: Group) -> int:
    """The number of runs in a group."""
    return len(group.runs)


def most(name: str, none: Any = 0) -> Callable[[Group], Any]:
    """The largest number of this name in any record of a group's runs, or `none` if no record has it."""
    return lambda group: max((r[name] for run in group.runs for r in run.records if name in r), default=none)


def values(measure: Measure, runs: Sequence[Outcome]) -> list[float | None]:
    """A measure of each run."""
    return [measure(run) for run in runs]


def mean(measure: Measure, **labels: Any) -> Callable[[Group], Interval | None]:
    """The mean of a measure over the runs of a group, or over those that have these labels, with its interval."""
    return lambda group: bootstrap(values(measure, having(group.runs, **labels)))


def ratio(measure: Measure, runs: Sequence[Outcome], reference: Sequence[Outcome]) -> Interval | None:
    """The ratio of a measure's mean over `runs` to that over `reference`; None if `runs` are the reference."""
    return None if runs == reference else bootstrap_ratio(values(measure, runs), values(measure, reference))


def middle(measure: Measure) -> Callable[[Group], Interval | None]:
    """The interquartile mean of a measure over the runs of a group, with its interval."""
    return lambda group: interquartile_mean(values(measure, group.runs))


def final(score: str) -> Callable[[Group], Interval | None]:
    """The mean score at the end of the runs, ONLINE or EVALUATION."""
    return mean(last_score(score))


def times_to(runs: Sequence[Outcome], score: str, target: float, minutes: float = 0.0) -> TimeToScore:
    """When one or more repeats of a point reached a score.

    The limit of those that did not reach it is `minutes`, or the time that the shortest of them trained if that is
    clearly less.

    Args:
        score: ONLINE or EVALUATION.
        minutes: time that each run was given (0: a number of agent steps ended the runs).
    """
    reached = [reached_after(run, score, target) for run in runs]
    missed = [trained_seconds(run) for run, seconds in zip(runs, reached) if seconds is None]
    shortest = min(missed, default=max(map(trained_seconds, runs)))
    limit = 60.0 * minutes if minutes and shortest >= WHOLE_BUDGET * 60.0 * minutes else shortest
    return TimeToScore(tuple(seconds for seconds in reached if seconds is not None), len(missed), limit)
