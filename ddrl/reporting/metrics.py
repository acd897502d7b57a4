"""Metrics of a run: counted in every rank, joined by the chief, written to one JSONL and one events file.

    rank: RankMetrics.report() --(MPI)--> chief: Collector.add, Collector.line --> MetricsWriter.write

Records of `metrics.jsonl` are one JSON object a line, with a CRC-32 of the line at its end, and with a `kind`:
  train       what `Collector.line` returns
  evaluation  what `evaluation_record` returns
  event       name, text, wall_seconds and whatever belongs to it (worker_lost, checkpoint, resumed, ...)
What was not measured is absent, never 0. Nothing here imports TensorFlow.
"""

from __future__ import annotations

import collections
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddrl import sealed
from ddrl.errors import UsageError
from ddrl.reporting.tensorboard import LARGEST, EventWriter
from ddrl.rundir import METRICS, JsonLines

ONLINE_EPISODES = 100
"""Finished training episodes that the online score looks back on."""
RATES = ("agent_steps", "frames", "datapoints", "inserts", "samples")
"""Counters whose rate per second is reported."""
TOTALS = (
    "agent_steps", "gradients_dropped", "steps_refused", "evaluations_skipped", "actor_restarts", "segments_refused",
    "segments_not_sent", "priorities_ignored", "priorities_not_sent", "transitions_left_out",
    "scores_not_finite",
)  # fmt: skip
"""Counters whose total over the whole run, resumed parts included, is reported."""
EVALUATED = (
    "mean", "maximum", "games", "unfinished", "timed_out", "not_finite", "version", "agent_steps", "wall_seconds",
    "seconds",
)  # fmt: skip
"""What an evaluator reports that goes into the record."""
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
        scores = filter(math.isfinite, scores)  # older versions kept all
        self._scores = collections.deque(scores, maxlen=ONLINE_EPISODES)
        self._reports: list[Mapping[str, Any]] = []

    @property
    def agent_steps(self) -> int:
        """Agent steps of the whole run, as far as reported."""
        return int(self._totals["agent_steps"])

    def state(self) -> dict[str, Any]:
        """Totals and the last scores, as a JSON-able dict for a checkpoint's counters."""
        return {"totals": dict(self._totals), "episodes": self._episodes, "scores": list(self._scores)}

    def add(self, report: Mapping[str, Any]) -> None:
        """Take in what `RankMetrics.report` returned in any rank."""
        self._reports.append(report)
        for name, amount in report["counters"].items():
            self._totals[name] += amount
        self._scores.extend(score for score, _ in report["episodes"])
        self._episodes += len(report["episodes"])

    def line(self, update: int, wall_seconds: float) -> dict[str, Any]:
        """The `train` record of the interval since the last line.

        Args:
            update: updates applied up to now.
            wall_seconds: wall time of the run up to now, earlier parts included.
        """
        seconds, updates = wall_seconds - self._wall_seconds, update - self._update
        counters = _sum_dicts([report["counters"] for report in self._reports])
        line: dict[str, Any] = {"kind": "train", "wall_seconds": round(wall_seconds, 3), "update": update}
        line |= {name: int(self._totals[name]) for name in TOTALS if name in self._totals}
        if seconds > 0:
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
        line |= {"resident_mb": _memory(self._reports), "exchange_ms_by_worker": _exchange(self._reports)}
        self._update, self._wall_seconds, self._reports = update, wall_seconds, []
        return _without_missing(line)

    def _scores_now(self) -> dict[str, Any]:
        scores, now = self._scores, {"episodes": self._episodes}
        if scores:
            now |= {"online_score_mean": sum(scores) / len(scores), "online_score_max": max(scores)}
        return now


def evaluation_record(
    *,
    mean: float,
    maximum: float,
    games: int,
    unfinished: int,
    timed_out: int = 0,
    not_finite: int = 0,
    version: int,
    agent_steps: int,
    wall_seconds: float,
    seconds: float,
    protocol: Mapping[str, Any] | str,
) -> dict[str, Any]:
    """The `evaluation` record.

    Args:
        mean, maximum: raw score over the games.
        not_finite: further games, whose score is NaN or infinite.
        unfinished: games that a limit of steps or time ended; their score until then counts.
        timed_out: those of them that time ended; a mean with any in it says too little to be compared.
        version: updates behind the parameters that played.
        agent_steps, wall_seconds: of the run when those parameters were taken, not when the games ended.
        seconds: that the games took.
        protocol: stamp of the rules of the games.
    """
    return {
        "kind": "evaluation",
        "wall_seconds": round(wall_seconds, 3),
        "version": version,
        "agent_steps": agent_steps,
        "mean": mean,
        "maximum": maximum,
        "games": games,
        "unfinished": unfinished,
        "timed_out": timed_out,
        "seconds": round(seconds, 3),
        "protocol": protocol,
    } | ({"not_finite": not_finite} if not_finite else {})


class MetricsWriter:
    """Appends records to `metrics.jsonl` and their numbers to a TensorBoard events file in the run directory.

    A half-written last line, left by a run that was killed, is cut off at the start.

    Raises:
        UsageError: the files cannot be written.
    """

    def __init__(self, run_dir: str | Path) -> None:
        self._path = Path(run_dir) / METRICS
        try:
            self._path.touch(mode=0o644)
            _cut_half_line(self._path)
            self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - close() closes it
            self._events = EventWriter(run_dir)
        except OSError as error:
            raise self._refusal(error) from error

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record. Numbers that are not finite are left out: JSON has none."""
        record = _without_missing(record)
        data = sealed.line_bytes(record, default=_plain)
        try:
            size = self._path.stat().st_size
            if self._file.write(data) != len(data):
                os.truncate(self._path, size)
                raise OSError(0, "no space left for a whole line")
            self._events.write(int(record.get("agent_steps", 0)), _scalars(record))
        except OSError as error:
            raise self._refusal(error) from error

    def event(self, name: str, text: str, wall_seconds: float, **fields: Any) -> None:
        """Append an `event`: worker_lost, checkpoint, gradient_refused, resumed, target_reached, ...

        Args:
            name: what happened.
            text: for the panel and the log.
            wall_seconds: of the run.
            fields: details, JSON types.
        """
        wall_seconds = round(wall_seconds, 3)
        self.write({"kind": "event", "wall_seconds": wall_seconds, "name": name, "text": text, **fields})

    def close(self) -> None:
        self._file.close()
        self._events.close()

    def _refusal(self, error: OSError) -> UsageError:
        return UsageError(
            f"cannot write metrics in {self._path.parent}: {error.strerror or error}; free space or mend permissions"
        )


def read_metrics(run_dir: str | Path) -> list[dict[str, Any]]:
    """All records of a run, oldest first, without a half-written last line; none where there is no file.

    Damaged lines are left out. A warning line on standard error says how many, once in a process for each run.
    """
    records, damaged = read_counted(run_dir)
    path = Path(run_dir) / METRICS
    if damaged and path not in _told:
        _told.add(path)
        print(f"ddrl: warning: {path}: {damaged} damaged line{'s' * (damaged > 1)} left out", file=sys.stderr)
    return records


def read_counted(run_dir: str | Path) -> tuple[list[dict[str, Any]], int]:
    """The records of `read_metrics`, and how many lines are damaged."""
    lines = JsonLines(Path(run_dir) / METRICS)
    read = lines.read()
    records = [record for record in read if is_sound(record)]
    return records, lines.damaged + len(read) - len(records)


_told: set[Path] = set()
_TEXTS = {"event": ("name", "text")}  # by kind, what must be there
_NUMBERS = {
    "train": ("wall_seconds",),
    "event": (),
    "evaluation": ("wall_seconds", "version", "mean", "maximum", "games"),
}
_READ = ("wall_seconds", "update", "agent_steps", "updates_per_s", "episodes", "online_score_mean", "online_score_max")
_NESTED = ("time_split", "resident_mb", "cpu_cores", "exchange_ms_by_worker")


def is_sound(record: Mapping[str, Any]) -> bool:
    """Whether a record is of a kind that is known, and has what is computed with as numbers. Lines of earlier versions
    bear no checksum that would say so."""
    kind = record.get("kind")
    if not isinstance(kind, str) or kind not in _NUMBERS:
        return False
    return (
        all(isinstance(record.get(name), str) for name in _TEXTS.get(kind, ()))
        and all(_is_number(record.get(name)) for name in _NUMBERS[kind])
        and all(_is_number(record.get(name, 0)) for name in _READ)
        and all(isinstance(record.get(name, {}), dict) and _only_numbers(record.get(name, {})) for name in _NESTED)
    )


def _only_numbers(nested: Mapping[str, Any]) -> bool:
    return all(_only_numbers(each) if isinstance(each, dict) else _is_number(each) for each in nested.values())


def _is_number(value: Any) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def whole(evaluations: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those evaluation records whose games were all played to their end."""
    return [record for record in evaluations if not record.get("timed_out")]


def first_online(trained: Sequence[Mapping[str, Any]], score: float) -> Mapping[str, Any] | None:
    """The first of the `train` records whose online score, of as many episodes as it looks back on, is that high."""
    for record in trained:
        enough = record.get("episodes", ONLINE_EPISODES) >= ONLINE_EPISODES
        if enough and record.get("online_score_mean", -math.inf) >= score:
            return record
    return None


def rate_between(
    records: Sequence[Mapping[str, Any]], name: str, first: int, last: int, over: str = "wall_seconds"
) -> float | None:
    """What a total such as `update` or `agent_steps` grows by in a second, or while another total (`over`) grows by 1,
    from the moment at which it was `first` to that at which it was `last`; None where one is not there.

    Both moments are read off the line through the `train` records.
    """
    lines = [record for record in records if record["kind"] == "train" and name in record and over in record]
    moments = []
    for total in (first, last):
        after = next((i for i, record in enumerate(lines) if record[name] > total), 0)
        if not after:
            return None
        (x, since), (x_after, until) = ((line[name], line[over]) for line in lines[after - 1 : after + 1])
        moments.append(since + (until - since) * (total - x) / (x_after - x))
    return (last - first) / (moments[1] - moments[0]) if moments[1] > moments[0] else None


def without_undone(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records without the train and evaluation lines that a resume from an older checkpoint took back.

    A `resumed` event bears the wall time of the checkpoint; what was written for later times was undone.
    """
    kept: list[dict[str, Any]] = []
    for record in records:
        if record.get("name") == "resumed":
            start = record.get("wall_seconds", math.inf)
            kept = [old for old in kept if old["kind"] == "event" or old["wall_seconds"] <= start]
        kept.append(record)
    return kept


def _sum_dicts(dicts: list[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for one in dicts:
        for name, amount in one.items():
            total[name] = total.get(name, 0) + amount
    return total


def _averages(reports: list[Mapping[str, Any]]) -> dict[str, float]:
    sums: dict[str, tuple[float, float]] = {}
    maxima: dict[str, float] = {}
    for report in reports:
        for name, (total, count) in report["means"].items():
            before = sums.get(name, (0.0, 0.0))
            sums[name] = (before[0] + total, before[1] + count)
        for name, value in report["maxima"].items():
            maxima[f"{name}_max"] = max(maxima.get(f"{name}_max", -math.inf), value)
    means = {f"{name}_mean" if name in SPREADS else name: s / n for name, (s, n) in sums.items() if n > 0}
    squared = means.pop("compute_ms_squared", None)
    if squared is not None:
        means["compute_ms_deviation"] = math.sqrt(max(0.0, squared - means["compute_ms"] ** 2))
    return means | maxima


def _time_split(reports: list[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Role -> activity -> share of the wall time of all its ranks (threads of one rank add up)."""
    split = {}
    for role in sorted({report["role"] for report in reports}):
        mine = [report for report in reports if report["role"] == role]
        wall = sum(report["interval_seconds"] for report in mine)
        seconds = _sum_dicts([report["seconds"] for report in mine])
        if wall > 0 and seconds:
            split[role] = {activity: round(spent / wall, 4) for activity, spent in seconds.items()}
    return split


def _cpu(reports: list[Mapping[str, Any]]) -> dict[str, float]:
    """Cores' worth of processor time that each rank took. Roles of one process share it: each tells the whole."""
    cpu = _sum_dicts([{_name(report): report["cpu_seconds"]} for report in reports])
    wall = _sum_dicts([{_name(report): report["interval_seconds"]} for report in reports])
    return {name: round(cpu[name] / seconds, 4) for name, seconds in wall.items() if seconds > 0}


def _exchange(reports: list[Mapping[str, Any]]) -> dict[str, float]:
    """Milliseconds from a gradient that is sent to parameters that are there; the slowest worker waits least."""
    total = _sum_dicts([{_name(r): r["means"]["exchange_ms"][0]} for r in reports if "exchange_ms" in r["means"]])
    count = _sum_dicts([{_name(r): r["means"]["exchange_ms"][1]} for r in reports if "exchange_ms" in r["means"]])
    return {name: round(total[name] / count[name], 3) for name in total}


def _memory(reports: list[Mapping[str, Any]]) -> dict[str, float]:
    return {_name(report): report["resident_mb"] for report in reports}


def _name(report: Mapping[str, Any]) -> str:
    return f"{report['role']}-{report['index']}"


def _without_missing(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record without None, empty dicts and numbers that are not finite."""
    kept = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            value = _without_missing(value) or None
        elif hasattr(value, "item"):
            value = value.item()
        if value is not None and not (isinstance(value, float) and not math.isfinite(value)):
            kept[name] = value
    return kept


def _scalars(record: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Numbers of a record under TensorBoard tags such as train/time_split/worker/acting."""
    prefix = prefix or record.get("kind", "")
    scalars: dict[str, float] = {}
    if prefix == "event":
        return scalars
    for name, value in record.items():
        if isinstance(value, Mapping):
            scalars |= _scalars(value, f"{prefix}/{name}")
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST:
            scalars[f"{prefix}/{name}"] = value
    return scalars


def _cut_half_line(path: Path) -> None:
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)


def _plain(number: Any) -> Any:
    return number.item()
