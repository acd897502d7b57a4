"""The reports of all ranks, joined by the chief into one record an interval. Nothing here imports TensorFlow."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Mapping
from typing import Any

from ddrl.reporting.metrics import ONLINE_EPISODES, without_missing
from ddrl.reporting.rank_metrics import AHEAD

RATES = ("agent_steps", "frames", "datapoints", "inserts", "samples")
"""Counters whose rate per second is reported."""
TOTALS = (
    "agent_steps", "gradients_dropped", "steps_refused", "evaluations_skipped", "actor_restarts", "segments_refused",
    "segments_not_sent", "priorities_ignored", "priorities_not_sent", "transitions_left_out",
    "scores_not_finite", "torn_updates",
)  # fmt: skip
"""Counters whose total over the whole run, resumed parts included, is reported."""
SPREADS = ("lag", "staleness", "actor_lag")
"""Quantities reported as NAME_mean and NAME_max, in versions."""


class Collector:
    """Joins the reports of all ranks into one record per interval. Used by the chief, from one thread.

    Args:
        update: updates applied when this part of the run starts.
        wall_seconds: wall time of the run when this part starts.
        state: what `state` returned in the part before, or None.

    Raises:
        ValueError: the state holds something else than numbers.
    """

    def __init__(self, update: int = 0, wall_seconds: float = 0.0, state: Mapping[str, Any] | None = None) -> None:
        state = state or {}
        self._update = update
        self._wall_seconds = wall_seconds
        totals, self._episodes, scores = state.get("totals", {}), state.get("episodes", 0), state.get("scores", [])
        if not all(type(number) in (int, float) for number in [*totals.values(), self._episodes, *scores]):
            raise ValueError(f"totals {totals!s:.80}, {self._episodes!s:.20} episodes, scores {scores!s:.80}")
        self._totals = collections.Counter(totals)
        self._ahead: collections.Counter[str] = collections.Counter()  # what of the totals no checkpoint has yet
        scores = filter(math.isfinite, scores)  # older versions kept all
        self._scores: list[float] = [*scores]  # the last ones that a checkpoint has, then as many as are ahead
        self._since: dict[str, collections.Counter[str]] = {}  # rank -> what it counted since its state came
        self._reports: list[Mapping[str, Any]] = []

    @property
    def agent_steps(self) -> int:
        """Agent steps of the whole run, as far as reported."""
        return int(self._totals["agent_steps"])

    def hold(self, rank: str) -> None:
        """Notes that the state of a rank, such as worker-2, came: a checkpoint with it lacks what is counted later."""
        self._since[rank] = collections.Counter()

    def state(self, ranks: Iterable[str] = ()) -> dict[str, Any]:
        """Totals and the last scores, as a JSON-able dict for a checkpoint's counters.

        What is ahead of the checkpoint is left out: a resumed run acts it, and counts it, again. Which scores are ahead
        is not known if there are several workers, so the last ones are left out in their place.

        Args:
            ranks: the ranks whose states the checkpoint has, each as it was at the last `hold`.
        """
        ahead = collections.Counter(self._ahead)
        for rank in ranks:
            ahead.update(self._since.get(rank, collections.Counter()))
        totals = {name: total - ahead[name] for name, total in self._totals.items()}
        scores = self._scores[: max(0, len(self._scores) - ahead["episodes"])][-ONLINE_EPISODES:]
        return {"totals": totals, "episodes": self._episodes - ahead["episodes"], "scores": scores}

    def add(self, report: Mapping[str, Any]) -> None:
        """Take in what `RankMetrics.report` returned in any rank."""
        if (since := self._since.get(_name(report))) is not None:
            since.update(_settled(report))
        counters = self._with_ahead(report["counters"])
        self._reports.append({**report, "counters": counters})
        for name, amount in counters.items():
            self._totals[name] += amount
        self._scores += [score for score, _ in report["episodes"]]
        self._episodes += len(report["episodes"])
        del self._scores[: -(ONLINE_EPISODES + self._ahead["episodes"])]

    def _with_ahead(self, counters: Mapping[str, Any]) -> dict[str, Any]:
        """The counters of a report, which include what is ahead. Episodes are left out, as the report lists them."""
        whole = {name: amount for name, amount in counters.items() if not name.endswith(AHEAD)}
        for name, amount in counters.items():
            if name.endswith(AHEAD):
                counted = name.removesuffix(AHEAD)
                whole[counted] = whole.get(counted, 0) + amount
                self._ahead[counted] += amount
        whole.pop("episodes", None)
        return whole

    def line(self, update: int, wall_seconds: float, shortest: float = 0.0) -> dict[str, Any]:
        """The `train` record of the interval since the last line.

        Args:
            update: updates applied up to now.
            wall_seconds: wall time of the run up to now, earlier parts included.
            shortest: seconds between two reports of a rank. A shorter interval, such as the last one, has no rates,
                since part of what is reported in it happened before it.
        """
        seconds, updates = wall_seconds - self._wall_seconds, update - self._update
        counters = _sum_dicts(report["counters"] for report in self._reports)
        line: dict[str, Any] = {"kind": "train", "wall_seconds": round(wall_seconds, 3), "update": update}
        line |= {name: int(self._totals[name]) for name in TOTALS if name in self._totals}
        if seconds > 0 and seconds >= shortest:
            rates = {name: counters[name] / seconds for name in RATES if name in counters}
            line |= {f"{name}_per_s": round(rate, 2) for name, rate in rates.items()}
            line["updates_per_s"] = round(updates / seconds, 3)
        # Samples in the members' gradients, where the chief counts them; else all that were sent.
        samples = counters.get("datapoints_applied", counters.get("datapoints"))
        if updates > 0 and samples is not None:
            line["effective_batch"] = round(samples / updates, 2)
        if counters.get("agent_steps") and "datapoints" in counters:
            line["training_intensity"] = round(counters["datapoints"] / counters["agent_steps"], 3)
        if counters.get("inserts") and "samples" in counters:
            line["samples_per_insert"] = round(counters["samples"] / counters["inserts"], 3)
        line |= self._scores_now() | _averages(self._reports)
        for report in self._reports:
            line |= report["gauges"]
        line |= {"time_split": _time_split(self._reports), "cpu_cores": _cpu(self._reports)}
        line |= {"resident_mb": {_name(report): report["resident_mb"] for report in self._reports}}
        line |= {"exchange_ms_by_worker": _exchange(self._reports)}
        self._update, self._wall_seconds, self._reports = update, wall_seconds, []
        return without_missing(line)

    def _scores_now(self) -> dict[str, Any]:
        """The scores of the last episodes, and of those alone that ended since the last line."""
        scores = self._scores[-ONLINE_EPISODES:]
        new = [score for report in self._reports for score, _ in report["episodes"]]
        online = {"online_score_mean": sum(scores) / len(scores), "online_score_max": max(scores)} if scores else {}
        interval = {"interval_score_mean": sum(new) / len(new)} if new else {}
        return {"episodes": self._episodes, **online, **interval}


def _settled(report: Mapping[str, Any]) -> dict[str, Any]:
    """What a report counts that is not, or no longer, ahead of the rank's state."""
    counters = report["counters"]
    settled = {name: amount for name, amount in counters.items() if not name.endswith(AHEAD)}
    return settled | {"episodes": len(report["episodes"]) - counters.get("episodes" + AHEAD, 0)}


def _sum_dicts(dicts: Iterable[Mapping[str, float]]) -> collections.Counter[str]:
    total: collections.Counter[str] = collections.Counter()
    for amounts in dicts:
        total.update(amounts)
    return total


def _averages(reports: list[Mapping[str, Any]]) -> dict[str, float]:
    ratios = _ratios((name, *parts) for report in reports for name, parts in report["means"].items())
    means = {f"{name}_mean" if name in SPREADS else name: ratio for name, ratio in ratios.items()}
    squared = means.pop("compute_ms_squared", None)
    if squared is not None:
        means["compute_ms_deviation"] = math.sqrt(max(0.0, squared - means["compute_ms"] ** 2))
    maxima: dict[str, float] = {}
    for report in reports:
        for name, value in report["maxima"].items():
            maxima[f"{name}_max"] = max(maxima.get(f"{name}_max", -math.inf), value)
    return means | maxima


def _time_split(reports: list[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Role -> activity -> share of the wall time of all its ranks (threads of one rank add up)."""
    split = {}
    for role in sorted({report["role"] for report in reports}):
        of_role = [report for report in reports if report["role"] == role]
        wall = sum(report["interval_seconds"] for report in of_role)
        seconds = _sum_dicts(report["seconds"] for report in of_role)
        if wall > 0 and seconds:
            split[role] = {activity: round(spent / wall, 4) for activity, spent in seconds.items()}
    return split


def _ratios(parts: Iterable[tuple[str, float, float]]) -> dict[str, float]:
    """Name -> sum of its numerators over the sum of its denominators, from (name, numerator, denominator) parts."""
    sums: dict[str, tuple[float, float]] = {}
    for name, numerator, denominator in parts:
        before = sums.get(name, (0.0, 0.0))
        sums[name] = (before[0] + numerator, before[1] + denominator)
    return {name: total / count for name, (total, count) in sums.items() if count > 0}


def _cpu(reports: list[Mapping[str, Any]]) -> dict[str, float]:
    """Rank -> mean number of cores that it kept busy. Each role of a process reports that of the whole process."""
    cores = _ratios((_name(report), report["cpu_seconds"], report["interval_seconds"]) for report in reports)
    return {name: round(value, 4) for name, value in cores.items()}


def _exchange(reports: list[Mapping[str, Any]]) -> dict[str, float]:
    """Worker -> mean milliseconds from sending a gradient to having new parameters; the slowest worker waits least."""
    exchanging = [report for report in reports if "exchange_ms" in report["means"]]
    waits = _ratios((_name(report), *report["means"]["exchange_ms"]) for report in exchanging)
    return {name: round(milliseconds, 3) for name, milliseconds in waits.items()}


def _name(report: Mapping[str, Any]) -> str:
    return f"{report['role']}-{report['index']}"
