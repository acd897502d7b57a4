"""The points of a study: one run each, in DIR/points/NAME, and what became of it."""

from __future__ import annotations

import dataclasses
import fcntl
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ddrl import rundir
from ddrl.config import TrainConfig
from ddrl.launch.outcome import ended_well
from ddrl.reporting.metrics import read_metrics, without_undone

POINTS = "points"
DAMAGED = "its result.json is half-written or damaged, so it runs again"


class Point(NamedTuple):
    """One run.

    Attributes:
        name: of its directory; unique.
        config: all its settings, the seed in `config.run.seed`.
        labels: JSON types, what tells it from the other points: algorithm, size, game, ...
        cores: that it may use, the first of this process' (0: all).
    """

    name: str
    config: TrainConfig
    labels: Mapping[str, Any]
    cores: int = 0


class State(NamedTuple):
    """What became of a point.

    Attributes:
        status: waiting, running, interrupted, failed or finished.
        why: of a failure, or of an end that cannot be read, in one line.
    """

    status: str
    why: str = ""


class Outcome(NamedTuple):
    """A point that has finished, and what it left.

    Attributes:
        result: its result.json.
        records: its metrics.jsonl without what a resume took back; empty where nothing was trained.
        path: its directory.
    """

    point: Point
    result: Mapping[str, Any]
    records: list[dict[str, Any]]
    path: Path


@dataclasses.dataclass(frozen=True)
class Group:
    """Outcomes with equal labels, at least one, which differ in their seed alone or in what was not asked for.

    Attributes:
        labels: the equal ones, which are also its items: group["game"].
    """

    labels: Mapping[str, Any]
    runs: Sequence[Outcome]

    def __getitem__(self, label: str) -> Any:
        return self.labels[label]

    @property
    def config(self) -> TrainConfig:
        """Settings of its first run."""
        return self.runs[0].point.config


def grouped(outcomes: Sequence[Outcome], *names: str) -> list[Group]:
    """Outcomes by the values of these labels, in the order of the first of each."""
    groups: dict[tuple[Any, ...], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(tuple(outcome.point.labels[name] for name in names), []).append(outcome)
    return [Group(dict(zip(names, values)), runs) for values, runs in groups.items()]


AnyGroup = TypeVar("AnyGroup", bound=Group)


def parted(groups: Sequence[AnyGroup], *names: str) -> list[list[AnyGroup]]:
    """Groups with equal values of these labels together, in the order of the first of each; a label that a group lacks
    is None."""
    parts: dict[tuple[Any, ...], list[AnyGroup]] = {}
    for group in groups:
        parts.setdefault(tuple(group.labels.get(name) for name in names), []).append(group)
    return list(parts.values())


def having(outcomes: Sequence[Outcome], **labels: Any) -> list[Outcome]:
    """Those with these labels."""
    return [o for o in outcomes if all(o.point.labels.get(name) == value for name, value in labels.items())]


def is_name(name: Any) -> bool:
    """Whether it can be the name of a point: of a directory among those of the study, and nowhere else."""
    return isinstance(name, str) and name not in ("", ".", "..") and "/" not in name and "\0" not in name


def state_of(path: Path) -> State:
    """What became of the point in directory `path`."""
    if not path.exists():
        return State("waiting")
    if _locked(path):
        return State("running")
    result = rundir.read_json(path / rundir.RESULT)
    if not isinstance(result, dict):
        return State("interrupted", DAMAGED if (path / rundir.RESULT).exists() else "")
    if ended_well(result):
        return State("finished", str(result.get("message", "")) if result.get("stopped_early") else "")
    if result.get("status") == "failed":
        return State("failed", " ".join(str(result.get("message", "")).split()))
    return State("interrupted")


def outcome_of(point: Point, path: Path) -> Outcome:
    """What a finished point left."""
    return Outcome(point, rundir.read_json(path / rundir.RESULT) or {}, without_undone(read_metrics(path)), path)


def note_failure(path: Path, message: str) -> None:
    """Writes why a point failed where its run did not do so itself, and where no other process runs it or has."""
    path.mkdir(parents=True, exist_ok=True)
    if state_of(path).status not in ("failed", "running", "finished"):
        rundir.write_json(path / rundir.RESULT, {"status": "failed", "message": message})


def _locked(path: Path) -> bool:
    """Whether a process that still runs holds the run directory."""
    try:
        descriptor = os.open(path / rundir.LOCK, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file system without locks
    finally:
        os.close(descriptor)
    return False
