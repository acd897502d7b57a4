"""What is in a run's metrics.jsonl: read as it grows, its end first, and thinned while it is read."""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ddrl.board.series import Series, stride_for
from ddrl.files import tail
from ddrl.json_lines import JsonLines
from ddrl.reporting.metrics import is_resumed, is_sound, minutes_began, scalars, whole

TAIL_BYTES = 1 << 16
"""What is read of the end of a long file first: some lines of metrics, or some hundred of a log."""
MOST_EVENTS = 2000
SECONDS, EVALUATION = "train/wall_seconds", "evaluation/mean"
_TRAIN, _EVALUATION = b'{"kind": "train"', b'{"kind": "evaluation"'
_RESUMED = b'"name": "resumed"'


class Records:
    """The metrics of one run. Of `train` lines only those are decoded that a series keeps, and the last.

    Args:
        path: of metrics.jsonl.

    Attributes:
        train, evaluations: series, under the names that loggers have (train/loss, evaluation/mean).
        newest: `train` record.
        evaluation: newest one whose games were all played.
        best: mean of the best of those; NaN where there is none.
        told: the newest record that tells the run's phase.
        events: the newest ones, oldest first.
        minutes_began: wall seconds at which the budget of minutes began.
        whole: everything was read, and not the end alone.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._size = path, 0
        self._start_over()

    def _start_over(self) -> None:
        self._lines, self._unsound = JsonLines(self._path), 0
        self.train, self.evaluations = Series(), Series()
        self.newest: Mapping[str, Any] = {}
        self.evaluation: Mapping[str, Any] = {}
        self.told: Mapping[str, Any] = {}
        self.events: collections.deque[Mapping[str, Any]] = collections.deque(maxlen=MOST_EVENTS)
        self.best, self.minutes_began, self.whole = math.nan, 0.0, False

    @property
    def damaged(self) -> int:
        """Lines that were left out."""
        return self._lines.damaged + self._unsound

    def follow(self, size: int) -> None:
        """Take in what has come. Of a long file that was not read before, the end alone; see `read`.

        Args:
            size: of the file now, in bytes.
        """
        if size < self._size:
            self._start_over()
        self._size = size
        if self.whole or size <= TAIL_BYTES:
            self.read()
        else:
            self._peek()

    def read(self) -> None:
        """Take in all lines that were appended since the last call."""
        if not self.whole:
            self._start_over()
            self.whole = True
            self.train = Series(stride_for(self._size / _line_bytes(self._path)))
        skipped = b""
        for line in self._lines.lines():
            is_train = line.startswith(_TRAIN)
            if is_train and not self.train.wanted():
                skipped = line
                continue
            if not is_train:
                self._take_skipped(skipped)
            skipped = b""
            self._take(line, is_train)
        self._take_skipped(skipped)

    def _take_skipped(self, line: bytes) -> None:
        """A `train` line that the series does not keep, and that may be the newest (empty: there is none)."""
        if line and (record := self._sound(line)) is not None:
            self._take_newest(record)

    def _peek(self) -> None:
        """The newest records, from the end of the file alone. What is damaged is counted when all of it is read."""
        found: dict[bytes, Mapping[str, Any]] = {}
        kept_until = math.inf
        for line in tail(self._path, TAIL_BYTES).split(b"\n")[-2:0:-1]:
            begun = next((begun for begun in (_TRAIN, _EVALUATION) if line.startswith(begun)), b"")
            if (not begun and _RESUMED not in line) or begun in found or (record := self._sound(line)) is None:
                continue
            if begun and whole([record]) and record["wall_seconds"] <= kept_until:
                found[begun] = record
            elif _takes_back(record) and record["wall_seconds"] < kept_until:
                kept_until = record["wall_seconds"]
        self._forget(kept_until)
        if _TRAIN in found:
            self._take_newest(found[_TRAIN])
        self.evaluation = found.get(_EVALUATION, self.evaluation)
        self._unsound, self._lines.damaged = 0, 0

    def _sound(self, line: bytes) -> dict[str, Any] | None:
        record = self._lines.record(line)
        if record is not None and not is_sound(record):
            self._unsound += 1
            return None
        return record

    def _take(self, line: bytes, wanted: bool) -> None:
        """One line.

        Args:
            wanted: it is a `train` line that is kept, if it is sound.
        """
        record = self._sound(line)
        if record is None:
            return
        if record["kind"] == "train":
            self._take_newest(record)
            if wanted or self.train.wanted():
                self.train.add(scalars(record))
        elif record["kind"] == "evaluation":
            self._take_evaluation(record)
        else:
            self._take_event(record)

    def _take_newest(self, record: Mapping[str, Any]) -> None:
        self.newest = record
        self.told = record if "phase" in record else self.told

    def _take_evaluation(self, record: Mapping[str, Any]) -> None:
        if not whole([record]):
            return
        self.evaluation = record
        self.best = float(np.fmax(self.best, record["mean"]))
        if self.evaluations.wanted():
            self.evaluations.add(scalars(record))

    def _take_event(self, record: Mapping[str, Any]) -> None:
        self.events.append(record)
        self.told = record if "phase" in record else self.told
        if _takes_back(record):
            self.minutes_began = minutes_began(record)
            self._undo(record["wall_seconds"])

    def _undo(self, seconds: float) -> None:
        """Leave out what a resume from an older checkpoint took back, as `without_undone` does."""
        self.train.cut(SECONDS, seconds)
        self.evaluations.cut("evaluation/wall_seconds", seconds)
        means = self.evaluations.column(EVALUATION)
        self.best = float(np.nanmax(means)) if np.isfinite(means).any() else math.nan
        self._forget(seconds)

    def _forget(self, seconds: float) -> None:
        """In place of the newest records, where they are of later times, come the last that the series have."""
        if self.newest.get("wall_seconds", 0.0) > seconds:
            self.newest = _last_of("train", self.train)
        if self.evaluation.get("wall_seconds", 0.0) > seconds:
            self.evaluation = _last_of("evaluation", self.evaluations)
        if self.told.get("wall_seconds", 0.0) > seconds:
            self.told = {}


def _last_of(kind: str, series: Series) -> dict[str, Any]:
    """The last record that a series has, with its numbers alone; nothing where there is none."""
    row = series.last()
    return {"kind": kind, **{name.removeprefix(f"{kind}/"): value for name, value in row.items()}} if row else {}


def _takes_back(record: Mapping[str, Any]) -> bool:
    """Whether it tells from when on a resume took records back."""
    return is_resumed(record) and isinstance(record.get("wall_seconds"), (int, float))


def _line_bytes(path: Path) -> float:
    """Mean length of the lines at the end of a file."""
    data = tail(path, TAIL_BYTES)
    return max(len(data), 1) / max(data.count(b"\n"), 1)
