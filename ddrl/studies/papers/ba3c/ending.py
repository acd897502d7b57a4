"""Runs of a study that the study ends before their budget is spent, with the reason in their result."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ddrl import rundir
from ddrl.files import leave_mark
from ddrl.json_lines import JsonLines
from ddrl.studies.measures import Records
from ddrl.studies.points import state_of

MARK = "ended_by_study.json"
LOOK_SECONDS = 2.0


class Other(NamedTuple):
    """A run of another cell: its records, and whether it has ended."""

    records: Records
    ended: bool


Train = Callable[[], None]
Over = Callable[[Records, Sequence[Other]], "dict[str, Any] | None"]
"""Why a run is over, as entries of its result (JSON types, with a `message`), by its records and those of other runs;
None while it is not."""


def train_until(train: Train, path: Path, others: Sequence[Path], over: Over) -> None:
    """Trains, and asks the run to end when it is over; its result is then `finished`, with the reason.

    It is judged once this start has written something: a resume may take back what an earlier start wrote, and removes
    the request of the earlier start.

    Args:
        train: trains in `path`.
        others: directories of the runs that it is compared with, which need not exist yet.

    Raises:
        UsageError, RuntimeError: as `train` does.
    """
    if _close(path):
        return  # it was over, but this process was stopped before it could mark the result
    before, ended = len(JsonLines(path / rundir.METRICS).read()), threading.Event()
    watch = threading.Thread(target=_watch, args=(path, others, over, before, ended), name="end of a run", daemon=True)
    watch.start()
    try:
        train()
    finally:
        ended.set()
        watch.join()
    _close(path)


def _close(path: Path) -> bool:
    """Marks the result of a run that was asked to end, and returns True; else removes the request."""
    why, result = rundir.read_json(path / MARK), rundir.read_json(path / rundir.RESULT)
    if why is not None and result is not None:
        if result.get("status") == "stopped":
            rundir.write_json(path / rundir.RESULT, result | {"status": "finished"} | why)
            return True
        if result.pop("unevaluated", False):
            rundir.write_json(path / rundir.RESULT, result)  # so that nobody resumes the run to evaluate it
    (path / MARK).unlink(missing_ok=True)
    return False


def _watch(path: Path, others: Sequence[Path], over: Over, before: int, ended: threading.Event) -> None:
    """Looks at the metrics of a run and of the others until it ends or is over; `before` of its records are older."""
    followed = {each: JsonLines(each / rundir.METRICS) for each in (path, *others)}
    records: dict[Path, list[dict[str, Any]]] = {each: [] for each in followed}
    while not ended.wait(LOOK_SECONDS):
        if (path / rundir.RESULT).exists():
            continue  # the result is that of an earlier start, or the run is ending
        for each, lines in followed.items():
            records[each] += lines.read()
        if len(records[path]) <= before:
            continue
        why = over(records[path], [Other(records[each], state_of(each).status == "finished") for each in others])
        if why is not None:
            rundir.write_json(path / MARK, why)
            leave_mark(path / rundir.STOP)
            return
