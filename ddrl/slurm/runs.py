"""How far a run is, from the files that it has written so far, without waiting for locks or importing plugins."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ddrl import checks, rundir, sealed
from ddrl.files import tail
from ddrl.reporting.metrics import is_sound, minutes_began, whole
from ddrl.reporting.texts import duration
from ddrl.run_lock import is_lively
from ddrl.wording import counted, plural

TAIL_BYTES = 4 * 2**20  # of metrics.jsonl: hours of lines
LOG_TAIL_BYTES = 2**16
SPEAKERS = ("ddrl: ", "slurmstepd", "srun: error: ", "srun: fatal: ")
"""Beginnings of the lines in a job's output that say why it ended."""
STARTS = ("run directory ", "ddrl ended with status ")
"""Beginnings of the lines with which a start of the run begins, or job.sh says that there will be another one."""


class RunState(NamedTuple):
    """How far a run is.

    Attributes:
        status: the status in its result, such as finished or failed; empty without a result.
        message: the message in its result.
        done: how much of its budget is used, such as '35% of 200 updates'; empty if it has not begun.
        progress: the same with its phase and the time left, which are those of a run that goes on.
        score: in a few words; empty if there is none yet.
        seconds_left: seconds until its command ends, by its newest `train` record; None if that says nothing about what
            the run does now, or if the run has ended.
    """

    status: str
    message: str
    done: str
    progress: str
    score: str
    seconds_left: float | None


def read_run(path: Path) -> RunState:
    """The state of the run in directory `path`."""
    result, config = (rundir.read_json(path / name) or {} for name in (rundir.RESULT, rundir.CONFIG))
    data = tail(path / rundir.METRICS, TAIL_BYTES)
    none: Mapping[str, Any] = {}
    resumes = list(backwards(data, "event", "resumed"))
    resumed = resumes[0][1] if resumes else none
    train = next(standing(data, "train", resumes), none)
    # An evaluation that time cut off has only the mean of its short games.
    evaluation = next((each for each in standing(data, "evaluation", resumes) if whole([each])), none)
    status = str(result.get("status", ""))
    # A record from before a resume does not say what the run does now.
    current = bool(train) and not (resumed and train["wall_seconds"] <= resumed.get("wall_seconds", 0.0))
    left = train.get("seconds_left") if current and not status else None
    phase = "" if status else train.get("phase") if current else "starting"
    done = _done(_as_object(config.get("run")), train, resumed) if train else ""
    progress = done + _outlook(phase, left) if done else "starting" if config and not status else ""
    return RunState(status, str(result.get("message", "")), done, progress, _score(train, evaluation), left)


def wrote_lately(path: Path) -> bool:
    """Whether the run in directory `path` has no result and has just written metrics, so that it may well go on."""
    run = _as_object((rundir.read_json(path / rundir.CONFIG) or {}).get("run"))
    try:
        changed = (path / rundir.METRICS).stat().st_mtime
    except OSError:
        return False
    return not (path / rundir.RESULT).exists() and is_lively(changed, _number(run.get("log_every_seconds")))


def why_gone(output: Path) -> str:
    """The last line of a job's output that says why it ended; empty without one since the last start of the run.

    A job that was put back into the queue goes on in the same output, which may say why an earlier start ended.
    """
    lines = tail(output, LOG_TAIL_BYTES).decode(errors="replace").splitlines()
    newest = itertools.takewhile(lambda line: not line.startswith(STARTS), reversed(lines))
    return next((line.strip() for line in newest if line.startswith(SPEAKERS)), "")


def backwards(data: bytes, kind: str, name: str = "") -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields place and content of the sound records of a kind, and of a name if it is given, the newest first.

    Args:
        data: the end of a metrics.jsonl, in which the places are counted.
    """
    mark = f'"name": "{name}"' if name else f'"kind": "{kind}"'
    stop = data.rfind(b"\n") + 1
    while (place := data.rfind(mark.encode(), 0, stop)) >= 0:
        start = data.rfind(b"\n", 0, place) + 1
        try:
            record = sealed.read_line(data[start : data.find(b"\n", place) + 1]).content
        except ValueError:
            record = {}
        if record.get("kind") == kind and is_sound(record):
            yield start, record
        stop = start


def standing(data: bytes, kind: str, resumes: Sequence[tuple[int, Mapping[str, Any]]]) -> Iterator[Mapping[str, Any]]:
    """Yields the records of a kind, the newest first, without those that a resume took back, as `without_undone` does.

    Args:
        resumes: the events of resumes, as `backwards` yields them.
    """
    for place, record in backwards(data, kind):
        later = (resumed.get("wall_seconds", math.inf) for at, resumed in resumes if at > place)
        if record["wall_seconds"] <= min(later, default=math.inf):
            yield record


def _done(run: Mapping[str, Any], train: Mapping[str, Any], resumed: Mapping[str, Any]) -> str:
    """A text such as '35% of 20,000,000 agent steps'."""
    minutes, steps, updates = (_number(run.get(name)) for name in ("minutes", "agent_steps", "max_updates"))
    if steps:
        return _share(train.get("agent_steps", 0), steps, "agent step")
    if updates:
        return _share(train.get("update", 0), updates, "update")
    if minutes:
        return _share(max(0.0, train["wall_seconds"] - minutes_began(resumed)) / 60, minutes, "minute")
    return counted(train.get("agent_steps", 0), "agent step")


def _outlook(phase: Any, left: float | None) -> str:
    """A text such as ', evaluating, 1:02 left'; it names no phase while the run trains, and no time if that is None."""
    told = f", {phase}" if phase and isinstance(phase, str) and phase != "training" else ""
    return told + ("" if left is None else f", {duration(left)} left")


def _share(done: float, total: float, unit: str) -> str:
    return f"{min(1.0, done / total):.0%} of {total:,} {plural(unit, total)}"


def _score(train: Mapping[str, Any], evaluation: Mapping[str, Any]) -> str:
    parts = [f"{train['online_score_mean']:.1f}"] if "online_score_mean" in train else []
    return ", ".join(parts + ([f"evaluated {evaluation['mean']:.1f}"] if evaluation else []))


def _as_object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float:
    return value if isinstance(value, (int, float)) and checks.is_finite(value) and value > 0 else 0
