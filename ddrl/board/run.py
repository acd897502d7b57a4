"""One run as the board shows it, whether it is running or has ended. Nothing is ever written in its directory."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddrl import rundir
from ddrl.board.records import EVALUATION, SECONDS, TAIL_BYTES, Records
from ddrl.board.series import MOST_POINTS, as_json
from ddrl.board.settings import Settings
from ddrl.board.texts import shown, shown_lines
from ddrl.files import tail
from ddrl.reporting.metrics import scalars, without_missing
from ddrl.run_lock import is_lively
from ddrl.studies.points import state_of
from ddrl.wording import counted

SPARKS = 48
"""Points of the small curve in the table, at most."""
VIDEOS = (".mp4", ".gif")
SCORE = "train/online_score_mean"
RATES_OVER_SECONDS = 60.0
"""The rates of a run that is still running are those of its last minute."""


class File(NamedTuple):
    """A file's size in bytes, and when it was last changed, in seconds since 1970."""

    size: int
    changed: float


class BoardRun:
    """One run.

    Args:
        number: its id.
        path: its directory.
        name: of the run, in any letters.
        versions: ascending numbers above 0; the runs of a board share them.

    Attributes:
        id: number by which the page asks for it, so that the page never names a file.
        name: as it is shown.
        version: number of its newest change, one of `versions`; 0 before the first look.
    """

    def __init__(self, number: int, path: Path, name: str, versions: Iterator[int]) -> None:
        self.id, self.path, self.name = number, path, shown(name)
        self._versions, self.version = versions, 0
        self._files: dict[str, File | None] = {}
        self._state, self._why = "interrupted", ""
        self._began = math.nan
        self.settings = Settings(path)
        self._records = Records(path / rundir.METRICS)

    # looking ----------------------------------------------------------------------------------------------------------

    @property
    def whole(self) -> bool:
        """Whether all its metrics have been read, not only the end of them."""
        return self._records.whole

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
        """Take in what has changed. Of a long file that is new, only the end is read; `read` takes the rest."""
        config, metrics = self._has_changed(rundir.CONFIG), self._has_changed(rundir.METRICS)
        if config:
            self.settings = Settings(self.path)
            self._began = _first_written(self.path)
        if metrics:
            file = self._files[rundir.METRICS]
            self._records.follow(file.size if file else 0)
        state = self._state_now()
        changed = state != (self._state, self._why)
        self._state, self._why = state
        if config or metrics or changed:
            self.version = next(self._versions)

    def read(self) -> None:
        """Take in all metrics that were appended since the last call."""
        self._records.read()
        self.version = next(self._versions)

    def _has_changed(self, name: str) -> bool:
        file = _file(self.path / name)
        changed = name not in self._files or file != self._files[name]
        self._files[name] = file
        return changed

    def _state_now(self) -> tuple[str, str]:
        """running, finished, stopped, failed or interrupted, and why."""
        has_result = not self._has_changed(rundir.RESULT) and self._files[rundir.RESULT] is not None
        if has_result and self.version and self._state != "running":
            return self._state, self._why
        every = self.settings.value("run", "log_every_seconds", 5.0)
        if self._files[rundir.RESULT] is None and is_lively(self.changed, every):
            return "running", ""
        state = state_of(self.path)
        result = rundir.read_json(self.path / rundir.RESULT) or {}
        status = result.get("status")
        if state.status == "interrupted" and status in ("stopped", "finished"):  # finished, but for its evaluation
            return status, shown(str(result.get("message", "")))
        return state.status, shown(state.why)

    # what the page is told --------------------------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """Its row in the table. What is not known is absent."""
        newest, evaluation, value = self._records.newest, self._records.evaluation, self.settings.value
        row: dict[str, Any] = {
            "id": self.id,
            "version": self.version,
            "name": self.name,
            "algorithm": self.settings.algorithm,
            "game": shown(str(value("environment", "game", "unknown"))),
            "seed": value("run", "seed", 0),
            "group": self.settings.group,
            "state": self._state,
            "why": self._why,
            "began": self._began,
            "progress": self._progress(),
            "left": self._left(),
            "evaluation": evaluation.get("mean"),
            "games": evaluation.get("games"),
            "final": bool(evaluation.get("final")),
            "best": self._records.best,
            "training": newest.get("online_score_mean"),
            "spark": self._sparks(),
            **{name: newest.get(name) for name in ("update", "agent_steps", "wall_seconds")},
            **{f"{name}_per_s": self._rate(name) for name in ("update", "agent_steps")},
        }
        if self.goes_on:
            phase = self._records.told.get("phase") or ("training" if newest.get("update") else "starting")
            row["phase"] = shown(str(phase))
        return without_missing(row)

    def columns(self, names: Sequence[str], most: int = MOST_POINTS + 1) -> dict[str, list[float | None]]:
        """Series by name; empty for a name that has none. All series of `train` have the same length, and all of
        `evaluation` have.

        The newest `train` record is the last row of its series, even if thinning left it out.

        Args:
            most: rows; of more, so many evenly spaced ones with the first and the newest.
        """
        train, evaluations, newest = self._records.train, self._records.evaluations, scalars(self._records.newest)
        seconds = train.column(SECONDS)
        more = bool(newest) and (not len(seconds) or newest[SECONDS] > seconds[-1])
        of_train, of_evaluations = {*train.names, *newest}, set(evaluations.names)
        found: dict[str, list[float | None]] = {name: [] for name in names}
        for name in names:
            if name in of_evaluations:
                found[name] = as_json(_thinned(evaluations.column(name), most))
            elif name in of_train:
                column = train.column(name)
                column = np.append(column, newest.get(name, math.nan)) if more else column
                found[name] = as_json(_thinned(column, most))
        return found

    def names(self) -> list[str]:
        """All series that there are."""
        return sorted({*self._records.train.names, *self._records.evaluations.names})

    def details(self) -> dict[str, Any]:
        """Settings, events, videos, and where the time goes."""
        damaged = self._records.damaged
        notes = [f"{counted(damaged, 'damaged line')} of {rundir.METRICS} left out"] if damaged else []
        if not self.settings.readable:
            notes.append(f"{rundir.CONFIG} is damaged: its settings are unknown")
        return {
            "id": self.id,
            "settings": self.settings.by_group(),
            "events": [_event(event) for event in self._records.events],
            "videos": [
                {"name": shown(path.name), "index": index, "bytes": file.size, "changed": file.changed}
                for index, (path, file) in enumerate(self.videos())
            ],
            "time": self._time_split(),
            "ranks": self._ranks(),
            "notes": notes,
        }

    def videos(self) -> list[tuple[Path, File]]:
        """Videos of games, the newest first. Links are left out: they may lead to files that are not the run's."""
        found = []
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.path):
                is_video = entry.name.endswith(VIDEOS) and not entry.name.startswith(".")
                if is_video and entry.is_file(follow_symlinks=False) and (file := _file(Path(entry.path))):
                    found.append((Path(entry.path), file))
        return sorted(found, key=lambda video: (-video[1].changed, video[0].name))

    def log(self) -> list[str]:
        """The last lines of its log; none if the log is a link, which may lead to a file that is not the run's."""
        data = tail(self.path / rundir.LOG, TAIL_BYTES, follow=False)
        lines = shown_lines(data)
        return lines[1:] if len(data) == TAIL_BYTES else lines

    def _progress(self) -> float | None:
        """Share of the budget that is used up first, 0 to 1; None where there is none."""
        if self._state == "finished":
            return 1.0
        shares = [done / total for done, total in self._budgets() if total > 0]
        return min(1.0, max(0.0, *shares)) if shares else None

    def _budgets(self) -> Iterator[tuple[float, float]]:
        """(used, of) for seconds, agent steps and updates; of 0 where there is no such budget."""
        newest, value = self._records.newest, self.settings.value
        trained = max(0.0, newest.get("wall_seconds", 0.0) - self._records.minutes_began)
        yield trained, 60 * value("run", "minutes", 0.0)
        yield newest.get("agent_steps", 0), value("run", "agent_steps", 0)
        yield newest.get("update", 0), value("run", "max_updates", 0)

    def _left(self) -> float | None:
        """Seconds until the run ends, as it says itself, or at the pace that it had."""
        if not self.goes_on:
            return None
        newest, told = self._records.newest, self._records.told
        left = told.get("seconds_left")
        if isinstance(left, (int, float)):
            since = newest.get("wall_seconds", 0.0) - told.get("wall_seconds", 0.0)
            return max(0.0, left - max(0.0, since))
        (seconds, limit), *counts = self._budgets()
        known = [limit - seconds] if limit else []
        whole = newest.get("wall_seconds", 0.0)  # counts, unlike `seconds`, have what came before a resume
        known += [(total - done) * whole / done for done, total in counts if total and done > 0 and seconds > 0]
        return max(0.0, min(known)) if known else None

    def _rate(self, name: str) -> float | None:
        """Growth of a total per second: in the last minute of a run that is still running, else in all its training."""
        newest, train = self._records.newest, self._records.train
        if name not in newest or not newest["wall_seconds"]:
            return None
        seconds, totals = train.column(SECONDS), train.column(f"train/{name}")
        known = np.isfinite(totals)
        seconds, totals = seconds[known], totals[known]
        if self.goes_on and len(totals) > 1:
            since = min(int(np.searchsorted(seconds, newest["wall_seconds"] - RATES_OVER_SECONDS)), len(totals) - 2)
            elapsed = newest["wall_seconds"] - seconds[since]
            return float((newest[name] - totals[since]) / elapsed) if elapsed > 0 else None
        # Up to the first record with the final total: after that the run only evaluated.
        at = int(np.searchsorted(totals, newest[name]))
        ended = float(seconds[at]) if at < len(seconds) else float(newest["wall_seconds"])
        return float(newest[name] / ended) if ended > 0 else None

    def _sparks(self) -> list[float | None]:
        """A few scores over time, for a line in the table."""
        for series, name in ((self._records.train, SCORE), (self._records.evaluations, EVALUATION)):
            values = series.column(name)
            values = values[np.isfinite(values)]
            if values.size > 1:
                return as_json(values[np.linspace(0, values.size - 1, min(SPARKS, values.size)).astype(int)])
        return []

    def _time_split(self) -> dict[str, dict[str, float]]:
        """Role -> activity -> share of the wall time of its ranks, over all records in which there were updates.

        Results that are not finite, because of numbers beyond float32, are left out.
        """
        split: dict[str, dict[str, float]] = {}
        for name, values in self._active("time_split").items():
            role, _, activity = name.partition("/")
            share = float(np.nansum(values)) / values.size
            if math.isfinite(share):
                split.setdefault(shown(role), {})[shown(activity)] = round(share, 4)
        return split

    def _ranks(self) -> dict[str, dict[str, float]]:
        """Rank -> cores that it uses, the most MB that it took, ms that it waits for the exchange, during updates.

        Results that are not finite are left out here, too.
        """
        found: dict[str, dict[str, float]] = {}
        measures: dict[str, tuple[str, Callable[[np.ndarray], Any]]] = {
            "cpu_cores": ("cores", np.nanmean),
            "resident_mb": ("memory", np.nanmax),
            "exchange_ms_by_worker": ("exchange", np.nanmean),
        }
        for kind, (word, measure) in measures.items():
            for rank, values in self._active(kind).items():
                measured = float(measure(values)) if np.isfinite(values).any() else math.nan
                if math.isfinite(measured):
                    found.setdefault(shown(rank), {})[word] = round(measured, 4)
        return found

    def _active(self, kind: str) -> dict[str, np.ndarray]:
        """NAME -> column of each series train/KIND/NAME, of the records in which there were updates."""
        train, begun = self._records.train, f"train/{kind}/"
        active = train.column("train/updates_per_s") > 0
        names = [name for name in train.names if name.startswith(begun)] if active.any() else []
        return {name.removeprefix(begun): train.column(name)[active] for name in names}


def to_json(answer: Any) -> str:
    """One line of JSON. Raises ValueError for a number that is not finite."""
    return json.dumps(answer, allow_nan=False, separators=(",", ":"))


def _file(path: Path) -> File | None:
    """None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return File(status.st_size, status.st_mtime)


def _event(record: Mapping[str, Any]) -> dict[str, Any]:
    seconds = record.get("wall_seconds")
    at = {"wall_seconds": seconds} if isinstance(seconds, (int, float)) else {}
    return {"name": shown(record["name"]), "text": shown(record["text"]), **at}


def _thinned(column: np.ndarray, most: int) -> np.ndarray:
    """At most so many rows, evenly spaced, the first and the newest among them."""
    rows = len(column)
    return column if rows <= most else column[np.linspace(0, rows - 1, most).astype(int)]


def _first_written(path: Path) -> float:
    """When the first settings of a run were written: those of a resume come to a new file."""
    times = [file.changed for name in (rundir.CONFIG, "config-0.json") if (file := _file(path / name))]
    return min(times, default=math.nan)
