"""metrics.jsonl: the records that the chief writes about a run and passes to its loggers, and how they are read.

    rank: RankMetrics.report() --(MPI)--> chief: Collector.add, Collector.line --> MetricsWriter.write

Records are one JSON object a line, with a CRC-32 of the line at its end, and with a `kind`:
  train       what `Collector.line` returns
  evaluation  what `evaluation_record` returns
  event       name, text, wall_seconds and whatever belongs to it (worker_lost, checkpoint, resumed, ...)
What was not measured is absent, never 0. Nothing here imports TensorFlow.
"""

from __future__ import annotations

import math
import operator
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddrl import sealed
from ddrl.checks import is_finite
from ddrl.errors import UsageError
from ddrl.files import append_regular, cut_half_line, read_regular
from ddrl.json_lines import JsonLines
from ddrl.rundir import METRICS
from ddrl.wording import counted

ONLINE_EPISODES = 100
"""Finished training episodes that the online score looks back on."""
EVALUATED = (
    "mean", "maximum", "games", "of_games", "unfinished", "timed_out", "not_finite", "stuck", "forced_actions", "final",
    "version", "agent_steps", "wall_seconds", "seconds",
)  # fmt: skip
"""What an evaluator reports that goes into the record."""


def evaluation_record(
    *,
    mean: float,
    maximum: float,
    games: int,
    unfinished: int,
    timed_out: int = 0,
    not_finite: int = 0,
    of_games: int = 0,
    stuck: int = 0,
    forced_actions: int = 0,
    final: bool = False,
    version: int,
    agent_steps: int,
    wall_seconds: float,
    seconds: float,
    protocol: Mapping[str, Any] | str,
) -> dict[str, Any]:
    """The `evaluation` record.

    Args:
        mean, maximum: raw score over the games.
        games: number of games that were over and have a finite score.
        not_finite: further games, whose score is NaN or infinite.
        of_games: number of games that the evaluation has; it is in the record if not all of them have a score.
        unfinished: games that a limit of steps ended; their score until then counts.
        timed_out: further games, which time ended: they have no score, and a mean without them is not to be compared.
        stuck: games that a limit ended and that had earned nothing for long.
        forced_actions: actions that the protocol's rule sent in place of those of a policy that repeated itself.
        final: whether this is the evaluation at the end of the run.
        version: updates behind the parameters that played.
        agent_steps, wall_seconds: of the run when those parameters were taken, not when the games ended.
        seconds: that the games took.
        protocol: stamp of the rules of the games.
    """
    rare = {
        "of_games": of_games * (of_games > games),
        "not_finite": not_finite,
        "stuck": stuck,
        "forced_actions": forced_actions,
        "final": final,
    }
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
    } | {name: value for name, value in rare.items() if value}


class MetricsWriter:
    """Appends records to `metrics.jsonl` in the run directory.

    A half-written last line, left by a run that was killed, is cut off at the start.

    Args:
        run_dir: the directory of the run.
        tell: called with each record once it is written.

    Raises:
        UsageError: the file cannot be written.
    """

    def __init__(self, run_dir: str | Path, tell: Callable[[Mapping[str, Any]], None] = lambda record: None) -> None:
        self._path, self._tell = Path(run_dir) / METRICS, tell
        try:
            self._file = append_regular(self._path)
            cut_half_line(self._path)
        except OSError as error:
            raise cannot_write(self._path.parent, error) from error

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record. Numbers that are not finite are left out: JSON has none."""
        record = without_missing(record)
        data = sealed.line_bytes(record, default=operator.methodcaller("item"))
        try:
            size = self._path.stat().st_size
            if self._file.write(data) != len(data):
                os.truncate(self._path, size)
                raise OSError(0, "no space left for a whole line")
        except OSError as error:
            raise cannot_write(self._path.parent, error) from error
        self._tell(record)

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


def cannot_write(run_dir: Path, error: OSError) -> UsageError:
    """The error to raise if metrics cannot be written in a run directory."""
    return UsageError(f"cannot write metrics in {run_dir}: {error.strerror or error}; free space or fix permissions")


def lines_of(run_dir: Path) -> int:
    """Number of lines in a run's metrics.jsonl, 0 without one. Raises OSError if it cannot be read, or is a pipe."""
    path = run_dir / METRICS
    return read_regular(path).count(b"\n") if path.exists() else 0


def read_metrics(run_dir: str | Path) -> list[dict[str, Any]]:
    """All records of a run, oldest first, without a half-written last line; none where there is no file.

    Damaged lines are left out. A warning line on standard error says how many, once in a process for each run.
    """
    records, damaged = read_counted(run_dir)
    path = Path(run_dir) / METRICS
    if damaged and path not in _told:
        _told.add(path)
        print(f"ddrl: warning: {path}: {counted(damaged, 'damaged line')} left out", file=sys.stderr)
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
_READ = (
    "wall_seconds", "update", "agent_steps", "updates_per_s", "episodes", "online_score_mean", "online_score_max",
    "seconds_left", "spent_seconds",
)  # fmt: skip
_NESTED = ("time_split", "resident_mb", "cpu_cores", "exchange_ms_by_worker")


def is_sound(record: Mapping[str, Any]) -> bool:
    """Whether a record is of a known kind, and has numbers where code computes with them.

    Lines of earlier versions have no checksum that would ensure it.
    """
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
    return type(value) in (int, float) and is_finite(value)


def evaluation_remarks(record: Mapping[str, Any]) -> list[str]:
    """What a reader of an `evaluation` record's mean must know beside it, in a few phrases."""
    games, of_games, cut = record["games"], record.get("of_games", 0), record.get("timed_out", 0)
    remarks = [f"{games} of {counted(of_games, 'game')}"] if games < of_games else []
    if cut:
        remarks.append(f"{cut} cut off by time and left out")
    if record.get("not_finite"):
        remarks.append(f"{record['not_finite']} more without a finite score")
    if record.get("stuck"):
        remarks.append(f"{record['stuck']} stuck without a reward")
    if forced := record.get("forced_actions"):
        remarks.append(f"{counted(forced, 'action')} forced by the protocol's rule against repetition")
    return remarks


def whole(evaluations: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The evaluation records in which time cut off none of the games that were begun."""
    return [record for record in evaluations if not record.get("timed_out")]


def complete(evaluations: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The evaluation records of `whole` that also had time for all games, so that the protocol defines their scores."""
    records = whole(evaluations)
    return [record for record in records if record["games"] + record.get("not_finite", 0) >= record.get("of_games", 0)]


def while_training(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The `train` records up to the first that has all updates: later ones cover only the final evaluation."""
    train = [record for record in records if record["kind"] == "train"]
    updates = [record.get("update") for record in train]
    return train[: updates.index(updates[-1]) + 1] if train and updates[-1] else train


def first_online(records: Sequence[Mapping[str, Any]], score: float) -> Mapping[str, Any] | None:
    """The first `train` record whose online score reaches `score` and is the mean of ONLINE_EPISODES; None without one.

    Args:
        records: oldest first; others than `train` records may be among them, and have no online score.
        score: raw.
    """
    for record in records:
        if _has_enough(record) and record.get("online_score_mean", -math.inf) >= score:
            return record
    return None


def best_online(trained: Sequence[Mapping[str, Any]]) -> float | None:
    """The highest online score of a run; None without one.

    Only means of ONLINE_EPISODES count, since one lucky game at the beginning is no mean of 100; if the run had fewer
    episodes, all count.

    Args:
        trained: `train` records, in any order.
    """
    scored = [record for record in trained if "online_score_mean" in record]
    counted = [record for record in scored if _has_enough(record)] or scored
    return max((float(record["online_score_mean"]) for record in counted), default=None)


def _has_enough(record: Mapping[str, Any]) -> bool:
    """Whether the online score of a record is the mean of ONLINE_EPISODES."""
    return bool(record.get("episodes", ONLINE_EPISODES) >= ONLINE_EPISODES)


def rate_between(
    records: Sequence[Mapping[str, Any]], name: str, first: int, last: int, over: str = "wall_seconds"
) -> float | None:
    """The rate at which a total such as `update` or `agent_steps` grows from `first` to `last`; None if the records do
    not cover both.

    It is the growth per second, or per unit of another total (`over`). The moments at which the total is `first` and
    `last` are interpolated between `train` records.
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


def is_resumed(record: Mapping[str, Any]) -> bool:
    """Whether a record is the event of a resume. Its wall time is that of the checkpoint; what was recorded before for
    later times was undone."""
    return record.get("name") == "resumed"


def minutes_began(resumed: Mapping[str, Any]) -> float:
    """Wall seconds of the run at which the budget of minutes began, by the event of its last resume (empty: none)."""
    return float(resumed.get("wall_seconds", 0.0) - resumed.get("spent_seconds", 0.0))


def without_undone(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records without the train and evaluation lines that a resume from an older checkpoint took back."""
    kept: list[dict[str, Any]] = []
    for record in records:
        if is_resumed(record):
            start = record.get("wall_seconds", math.inf)
            kept = [old for old in kept if old["kind"] == "event" or old["wall_seconds"] <= start]
        kept.append(record)
    return kept


def without_missing(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record without None, empty dicts and numbers that are not finite."""
    kept = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            value = without_missing(value) or None
        elif hasattr(value, "item"):
            value = value.item()
        if value is not None and not (isinstance(value, float) and not math.isfinite(value)):
            kept[name] = value
    return kept


def scalars(record: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers of a `train` or `evaluation` record, with names such as train/time_split/worker/acting. Integers too
    large for a float are left out."""
    prefix = prefix or record.get("kind", "")
    found: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, (int, float)):
            if isinstance(value, float) or (not isinstance(value, bool) and is_finite(value)):
                found[f"{prefix}/{name}"] = value
        elif isinstance(value, Mapping):
            found |= scalars(value, f"{prefix}/{name}")
    return found
