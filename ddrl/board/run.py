"""One run as the board sees it: read piece by piece while it goes on, and never written to."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ddrl import rundir
from ddrl.board.series import MOST_POINTS, Series, as_json, stride_for
from ddrl.board.settings import Settings
from ddrl.board.texts import shown, shown_lines
from ddrl.files import open_regular
from ddrl.reporting.metrics import is_sound, scalars, whole
from ddrl.studies.points import state_of

TAIL_BYTES = 1 << 16
"""What is read of the end of a long file first: some lines of metrics, or some hundred of a log."""
LIVELY_SECONDS = 30.0
"""A run without a result that wrote this lately goes on, also where its lock cannot be seen, as on another node."""
MOST_EVENTS = 2000
SPARKS = 48
VIDEOS = (".mp4", ".gif")
SCORE, EVALUATION, SECONDS = "train/online_score_mean", "evaluation/mean", "train/wall_seconds"
_TRAIN = b'{"kind": "train"'
_RATES_OVER_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class _File:
    """Size and time of change of a file; None where there is none."""

    size: int
    changed: float

    @classmethod
    def of(cls, path: Path) -> _File | None:
        try:
            status = path.stat()
        except OSError:
            return None
        return cls(status.st_size, status.st_mtime)


class BoardRun:
    """One run.

    Attributes:
        id: number by which the page asks for it; no name of a file ever comes from there.
        name: as it is shown.
        version: grows whenever something of it has changed.
    """

    def __init__(self, number: int, path: Path, name: str) -> None:
        self.id, self.path, self.name = number, path, shown(name)
        self.version = 0
        self._files: dict[str, _File | None] = {}
        self._state, self._why = "interrupted", ""
        self._began, self._size = math.nan, 0
        self.settings = Settings(path)
        self._start_over()

    # reading ----------------------------------------------------------------------------------------------------------

    @property
    def whole(self) -> bool:
        """Whether all that is in metrics.jsonl was read, and not its end alone."""
        return self._whole

    @property
    def goes_on(self) -> bool:
        """Whether it was running when it was last looked at."""
        return self._state == "running"

    @property
    def changed(self) -> float:
        """When its metrics were last written; 0 where there are none."""
        file = self._files.get(rundir.METRICS)
        return file.changed if file else 0.0

    def look(self) -> None:
        """Take in what has changed. Of a long file that was not read before its end alone is; see `read`."""
        config, metrics = self._has_changed(rundir.CONFIG), self._has_changed(rundir.METRICS)
        if config:
            self.settings = Settings(self.path)
            self._began = _first_written(self.path)
        if metrics:
            file = self._files[rundir.METRICS]
            if file is None or file.size < self._size:
                self._start_over()
            self._size = file.size if file else 0
            if self._whole or self._size <= TAIL_BYTES:
                self.read()
            else:
                self._peek()
        state = self._state_now()
        changed = state != (self._state, self._why)
        self._state, self._why = state
        self.version += config or metrics or changed

    def read(self) -> None:
        """Take in all lines that were appended since the last call."""
        if not self._whole:
            self._start_over()
            self._whole = True
            self._train = Series(stride_for(self._size / max(_line_bytes(self.path / rundir.METRICS), 1)))
        skipped = b""
        for line in self._lines.lines():
            if line.startswith(_TRAIN) and not self._train.wanted():
                skipped = line
                continue
            skipped = b""
            self._take(line, line.startswith(_TRAIN))
        if skipped and (record := self._sound(skipped)) is not None:
            self._newest = record
        self.version += 1

    def _start_over(self) -> None:
        self._lines = rundir.JsonLines(self.path / rundir.METRICS)
        self._train, self._evaluations = Series(), Series()
        self._newest: Mapping[str, Any] = {}
        self._last_evaluation: Mapping[str, Any] = {}
        self._events: collections.deque[Mapping[str, Any]] = collections.deque(maxlen=MOST_EVENTS)
        self._phase: Mapping[str, Any] = {}
        self._best = self._part_began = math.nan
        self._unsound, self._whole = 0, False

    def _peek(self) -> None:
        """The newest records, from the end of the file alone."""
        lines = _tail(self.path / rundir.METRICS).split(b"\n")[-2:0:-1]
        found = {}
        for kind in ("train", "evaluation"):
            begun = b'{"kind": "%s"' % kind.encode()
            records = (self._sound(line) for line in lines if line.startswith(begun))
            found[kind] = next((record for record in records if record and whole([record])), {})
        self._newest, self._last_evaluation = found["train"], found["evaluation"]
        self._unsound, self._lines.damaged = 0, 0  # they are counted when the whole file is read

    def _sound(self, line: bytes) -> dict[str, Any] | None:
        record = self._lines.record(line)
        if record is not None and not is_sound(record):
            self._unsound += 1
            return None
        return record

    def _take(self, line: bytes, wanted: bool) -> None:
        """One line.

        Args:
            wanted: it is a train record that is kept, if it is sound.
        """
        record = self._sound(line)
        if record is None:
            return
        if "phase" in record:
            self._phase = record
        if record["kind"] == "train":
            self._newest = record
            if wanted or self._train.wanted():
                self._train.add(scalars(record))
        elif record["kind"] == "evaluation":
            self._take_evaluation(record)
        else:
            self._events.append(record)
            if record["name"] == "resumed":
                self._undo(record.get("wall_seconds", math.inf))

    def _take_evaluation(self, record: Mapping[str, Any]) -> None:
        if not whole([record]):
            return
        self._last_evaluation = record
        self._best = float(np.fmax(self._best, record["mean"]))
        if self._evaluations.wanted():
            self._evaluations.add(scalars(record))

    def _undo(self, seconds: float) -> None:
        """Leave out what a resume from an older checkpoint took back, as `without_undone` does."""
        self._part_began = seconds
        self._train.cut(SECONDS, seconds)
        self._evaluations.cut("evaluation/wall_seconds", seconds)
        means = self._evaluations.column(EVALUATION)
        self._best = float(np.nanmax(means)) if np.isfinite(means).any() else math.nan

    def _has_changed(self, name: str) -> bool:
        file = _File.of(self.path / name)
        changed = name not in self._files or file != self._files[name]
        self._files[name] = file
        return changed

    def _state_now(self) -> tuple[str, str]:
        """running, finished, stopped, failed or interrupted, and why."""
        has_result = not self._has_changed(rundir.RESULT) and self._files[rundir.RESULT] is not None
        if has_result and self.version and self._state != "running":
            return self._state, self._why
        if self._files[rundir.RESULT] is None and self._wrote_lately():
            return "running", ""
        state = state_of(self.path)
        result = rundir.read_json(self.path / rundir.RESULT)
        if state.status == "interrupted" and isinstance(result, dict) and result.get("status") == "stopped":
            return "stopped", shown(str(result.get("message", "")))
        return state.status, shown(state.why)

    def _wrote_lately(self) -> bool:
        file = self._files.get(rundir.METRICS)
        every = self.settings.value("run", "log_every_seconds", 5.0)
        return file is not None and time.time() - file.changed < max(LIVELY_SECONDS, 3 * every)

    # what the page is told --------------------------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """Its row in the table. What is not known is absent."""
        newest, evaluation = self._newest, self._last_evaluation
        row: dict[str, Any] = {
            "id": self.id,
            "version": self.version,
            "name": self.name,
            "algorithm": self.settings.algorithm,
            "game": shown(str(self.settings.value("environment", "game", "unknown"))),
            "seed": self.settings.value("run", "seed", 0),
            "state": self._state,
            "why": self._why,
            "began": self._began,
            "whole": self._whole or not self._size,
            "progress": self._progress(),
            "left": self._left(),
            "evaluation": evaluation.get("mean"),
            "games": evaluation.get("games"),
            "best": self._best,
            "training": newest.get("online_score_mean"),
            "spark": self._sparks(),
            "workers": newest.get("live_workers"),
        }
        if self._state == "running":
            row["phase"] = shown(str(self._phase.get("phase") or ("training" if newest.get("update") else "starting")))
        for name in ("update", "agent_steps", "wall_seconds"):
            row[name] = newest.get(name)
        for name in ("agent_steps", "update"):
            row[f"{name}_per_s"] = self._rate(name)
        return {name: value for name, value in row.items() if _is_known(value)}

    def columns(self, names: Sequence[str], most: int = MOST_POINTS + 1) -> dict[str, list[float | None]]:
        """Series of the `train` records by name, those of evaluations by evaluation/NAME.

        The newest record is the last row of the former, whether it was kept or not.

        Args:
            most: rows; of more every k-th.
        """
        newest = scalars(self._newest) if names else {}
        seconds = self._train.column(SECONDS)
        more = bool(newest) and (not len(seconds) or newest[SECONDS] > seconds[-1])
        found: dict[str, list[float | None]] = {}
        there = {*newest, *self._train.names, *self._evaluations.names}
        for name in names:
            if name not in there:
                found[name] = []
                continue
            if name.startswith("evaluation/"):
                column = self._evaluations.column(name)
            else:
                column = self._train.column(name)
                column = np.append(column, newest.get(name, math.nan)) if more else column
            found[name] = as_json(column[:: -(-len(column) // most) or 1])
        return found

    def names(self) -> list[str]:
        """All series that there are."""
        return sorted({*self._train.names, *self._evaluations.names})

    def details(self) -> dict[str, Any]:
        """Settings, events, videos, and where the time goes."""
        damaged = self._lines.damaged + self._unsound
        notes = [f"{damaged} damaged line{'s' * (damaged > 1)} of {rundir.METRICS} left out"] if damaged else []
        if not self.settings.readable:
            notes.append(f"{rundir.CONFIG} is damaged: its settings are unknown")
        return {
            "id": self.id,
            "version": self.version,
            "directory": shown(str(self.path)),
            "settings": self.settings.by_group(),
            "names": self.names(),
            "events": [_event(event) for event in self._events],
            "videos": [
                {"name": shown(path.name), "index": index, "bytes": file.size, "changed": file.changed}
                for index, (path, file) in enumerate(self.videos())
            ],
            "time": self._time_split(),
            "ranks": self._ranks(),
            "notes": notes,
        }

    def videos(self) -> list[tuple[Path, _File]]:
        """Of games, the newest first."""
        found = []
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.path):
                if entry.name.endswith(VIDEOS) and not entry.name.startswith(".") and entry.is_file(follow_symlinks=False):
                    file = _File.of(Path(entry.path))
                    found += [(Path(entry.path), file)] if file else []
        return sorted(found, key=lambda video: (-video[1].changed, video[0].name))

    def log(self) -> list[str]:
        """The last lines of what its processes wrote."""
        data = _tail(self.path / rundir.LOG)
        lines = shown_lines(data)
        return lines[1:] if len(data) == TAIL_BYTES else lines

    def _progress(self) -> float | None:
        """Share of the budget that is used up first, 0 to 1; None where there is none."""
        if self._state == "finished":
            return 1.0
        shares = [done / total for done, total in self._budgets() if total > 0]
        return min(1.0, max(shares)) if shares else None

    def _budgets(self) -> Iterator[tuple[float, float]]:
        newest, value = self._newest, self.settings.value
        since = 0.0 if math.isnan(self._part_began) else self._part_began
        yield newest.get("wall_seconds", 0.0) - since, 60 * value("run", "minutes", 0.0)
        yield newest.get("agent_steps", 0), value("run", "agent_steps", 0)
        yield newest.get("update", 0), value("run", "max_updates", 0)

    def _left(self) -> float | None:
        """Seconds until the run ends; as it says itself, or at the pace that it had."""
        if self._state != "running":
            return None
        told = self._phase.get("seconds_left")
        if isinstance(told, (int, float)) and math.isfinite(told):
            since = self._newest.get("wall_seconds", 0.0) - self._phase.get("wall_seconds", 0.0)
            return max(0.0, told - max(since, 0.0))
        (seconds, limit), *counts = self._budgets()
        known = [limit - seconds] if limit else []
        known += [(total - done) * seconds / done for done, total in counts if total and done > 0]
        return max(0.0, min(known)) if known else None

    def _rate(self, name: str) -> float | None:
        """What a total grew by in a second: in the last minute of a run that goes on, else in all its training."""
        newest = self._newest
        if name not in newest or not newest.get("wall_seconds"):
            return None
        seconds, totals = self._train.column(SECONDS), self._train.column(f"train/{name}")
        known = np.isfinite(totals)
        seconds, totals = seconds[known], totals[known]
        if self._state == "running" and len(totals) > 1:
            since = int(np.searchsorted(seconds, newest["wall_seconds"] - _RATES_OVER_SECONDS))
            since = min(since, len(totals) - 2)
            elapsed = newest["wall_seconds"] - seconds[since]
            return float((newest[name] - totals[since]) / elapsed) if elapsed > 0 else None
        if len(totals):  # until the first record that has all of it: what follows is evaluation
            ended = float(seconds[min(int(np.searchsorted(totals, newest[name])), len(seconds) - 1)])
            return float(newest[name] / ended) if ended > 0 else None
        return float(newest[name] / newest["wall_seconds"])

    def _sparks(self) -> list[float | None]:
        """A few scores over time, for a line in the table."""
        for series, name in ((self._train, SCORE), (self._evaluations, EVALUATION)):
            values = series.column(name)
            values = values[np.isfinite(values)]
            if values.size > 1:
                return as_json(values[np.linspace(0, values.size - 1, min(SPARKS, values.size)).astype(int)])
        return []

    def _time_split(self) -> dict[str, dict[str, float]]:
        """Role -> activity -> share of the wall time of its ranks, over all records in which there were updates."""
        split: dict[str, dict[str, float]] = {}
        for name, values in self._active("time_split").items():
            role, _, activity = name.partition("/")
            split.setdefault(shown(role), {})[shown(activity)] = round(float(np.nansum(values)) / values.size, 4)
        return split

    def _ranks(self) -> dict[str, dict[str, float]]:
        """Rank -> cores that it uses, most MB that it took, ms that it waits for the exchange, where there were updates."""
        found: dict[str, dict[str, float]] = {}
        measures = {"cpu_cores": ("cores", np.nanmean), "resident_mb": ("memory", np.nanmax)}
        for kind, (word, measure) in {**measures, "exchange_ms_by_worker": ("exchange", np.nanmean)}.items():
            for rank, values in self._active(kind).items():
                if np.isfinite(values).any():
                    found.setdefault(shown(rank), {})[word] = round(float(measure(values)), 4)
        return found

    def _active(self, kind: str) -> dict[str, np.ndarray]:
        """NAME -> column of each series train/KIND/NAME, of the records in which there were updates."""
        active = self._train.column("train/updates_per_s") > 0
        names = [name for name in self._train.names if name.startswith(f"train/{kind}/")] if active.any() else []
        return {name.split("/", 2)[2]: self._train.column(name)[active] for name in names}


def _event(record: Mapping[str, Any]) -> dict[str, Any]:
    seconds = record.get("wall_seconds")
    at = {"wall_seconds": seconds} if isinstance(seconds, (int, float)) else {}
    return {"name": shown(str(record["name"])), "text": shown(str(record["text"])), **at}


def _is_known(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


def _first_written(path: Path) -> float:
    """When the first settings of a run were written: those of a resume come to a new file."""
    times = [file.changed for name in (rundir.CONFIG, "config-0.json") if (file := _File.of(path / name))]
    return min(times, default=math.nan)


def _tail(path: Path) -> bytes:
    """The last bytes of a file, none where it cannot be read."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            return file.read(TAIL_BYTES)
    except OSError:
        return b""


def _line_bytes(path: Path) -> float:
    """Mean length of the lines at the end of a file, which are longer than the first ones."""
    data = _tail(path)
    return len(data) / max(data.count(b"\n"), 1)


def to_json(answer: Any) -> str:
    """One line of JSON. Raises ValueError for a number that is not finite."""
    return json.dumps(answer, allow_nan=False, separators=(",", ":"))
