"""All runs, and the answers to what the page asks. Every answer is JSON; runs are asked for by number."""

from __future__ import annotations

import base64
import contextlib
import itertools
import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ddrl.board.discovery import find_runs
from ddrl.board.run import BoardRun
from ddrl.board.series import MOST_POINTS
from ddrl.board.texts import shown
from ddrl.files import read_regular

SEARCH_SECONDS = 10.0
"""Between two searches for new runs."""
LOOK_SECONDS = 1.5
"""Between two looks at runs that go on."""
STILL_SECONDS = 10.0
"""Between two looks at runs that have ended: they are resumed now and then."""
READ_SECONDS = 0.5
"""How long one answer goes on reading long files that nobody has asked for yet."""
NUMBERS_IN_A_FILE, FEWEST_POINTS = 1_500_000, 64
"""Of all series in a page without a server, about 6 bytes each."""
LINES_IN_A_FILE = 200
"""Of each run's log."""
VIDEO_BYTES_IN_A_FILE = 40_000_000


class Board:
    """The runs below some directories. Files are read when the page asks and not otherwise, by one thread at a time.

    Args:
        roots: runs, or directories that hold some.
        clock: seconds, for tests.
    """

    def __init__(self, roots: Sequence[Path], clock: Callable[[], float] = time.monotonic) -> None:
        self._roots, self._clock = list(roots), clock
        self._lock = threading.Lock()
        self._runs: dict[Path, BoardRun] = {}
        self._looked: dict[int, float] = {}
        self._count, self._versions = 0, itertools.count(1)
        self._searched = -SEARCH_SECONDS

    @property
    def title(self) -> str:
        """The directories, for the heading."""
        return shown(", ".join(map(str, self._roots)))

    def runs(self, since: int | None = None, read_seconds: float = READ_SECONDS) -> dict[str, Any]:
        """Rows of the table: of those runs that are new to the page or have changed.

        Args:
            since: largest version that the page has, which all later changes exceed; 0: it has nothing yet; None: it
                gets everything at once.
            read_seconds: how long to go on with reading what was not read whole yet.
        """
        with self._lock:
            self._refresh()
            if since != 0:  # a page that has nothing yet gets its table at once
                self._read_more(read_seconds)
            runs = list(self._runs.values())
            changed = [run for run in runs if run.version > (since or 0)]
            return {
                "ids": [run.id for run in runs],
                "runs": [run.summary() for run in changed],
                "reading": sum(not run.whole for run in runs),
            }

    def series(self, ids: Sequence[int], names: Sequence[str]) -> dict[str, Any]:
        """Columns of runs: id -> {columns: {name: values}, names: of all that there are}; unknown runs are left out."""
        found = self._of_whole(ids, lambda run: {"columns": run.columns(names), "names": run.names()})
        return {str(number): series for number, series in found.items()}

    def details(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """Settings, events, videos and times of runs."""
        return list(self._of_whole(ids, BoardRun.details).values())

    def log(self, number: int) -> dict[str, Any]:
        """The end of a run's log."""
        with self._lock:
            run = self._run(number)
            return {"id": number, "lines": run.log() if run else []}

    def video(self, number: int, index: int) -> Path | None:
        """The file of a run's video by its place in the details, or None."""
        with self._lock:
            run = self._run(number)
            videos = run.videos() if run else []
            return videos[index][0] if 0 <= index < len(videos) else None

    def everything(self) -> dict[str, Any]:
        """All answers at once, for a page without a server: of many runs fewer points, of many videos the newest."""
        rows = self.runs(read_seconds=math.inf)
        ids = rows["ids"]
        details = self.details(ids)
        series = self.series(ids, ())
        share = NUMBERS_IN_A_FILE // max(sum(len(each["names"]) for each in series.values()), 1)
        most = min(max(share, FEWEST_POINTS), MOST_POINTS)
        with self._lock:
            for run in self._runs.values():
                series[str(run.id)]["columns"] = run.columns(run.names(), most)
        logs = [{**log, "lines": log["lines"][-LINES_IN_A_FILE:]} for log in map(self.log, ids)]
        return {**rows, "series": series, "details": details, "logs": logs, "videos": self._videos(details)}

    def _videos(self, details: Sequence[dict[str, Any]]) -> dict[str, str]:
        """Run/video -> the file as a data address, the newest ones up to a size of all."""
        listed = [(video["changed"], video["bytes"], each["id"], video) for each in details for video in each["videos"]]
        found, left = {}, VIDEO_BYTES_IN_A_FILE
        for _, size, number, video in sorted(listed, key=lambda one: -one[0]):
            path = self.video(number, video["index"])
            if path is not None and size <= left:
                kind = "image/gif" if path.suffix == ".gif" else "video/mp4"
                with contextlib.suppress(OSError):  # it may be gone since it was listed
                    data = base64.b64encode(read_regular(path)).decode("ascii")
                    found[f"{number}/{video['index']}"] = f"data:{kind};base64,{data}"
                    left -= size
        return found

    def _run(self, number: int) -> BoardRun | None:
        return next((run for run in self._runs.values() if run.id == number), None)

    def _of_whole(self, ids: Sequence[int], what: Callable[[BoardRun], dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """By id, `what` of those of the runs that are known, with all their metrics."""
        found = {}
        for number in ids:
            with self._lock:
                if (run := self._run(number)) is not None:
                    if not run.whole:
                        run.read()
                    found[number] = what(run)
        return found

    def _refresh(self) -> None:
        now = self._clock()
        if now - self._searched >= SEARCH_SECONDS:
            self._searched = now
            found = find_runs(self._roots, self._runs)
            self._runs = {path: self._runs.get(path) or self._new(path, name) for path, name in found.items()}
        for run in self._runs.values():
            since = now - self._looked.get(run.id, -STILL_SECONDS)
            if since >= (LOOK_SECONDS if run.goes_on else STILL_SECONDS):
                self._looked[run.id] = now
                run.look()

    def _new(self, path: Path, name: str) -> BoardRun:
        self._count += 1
        return BoardRun(self._count, path, name, self._versions)

    def _read_more(self, seconds: float) -> None:
        """Reads runs whole, the newest first: they are looked at first."""
        end = time.monotonic() + seconds
        for run in sorted(self._runs.values(), key=lambda run: -run.changed):
            if time.monotonic() >= end:
                return
            if not run.whole:
                run.read()
