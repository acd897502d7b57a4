"""The points of a study, each of them one run in DIR/points/NAME, with their states and results."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ddrl import run_lock, rundir
from ddrl.config import TrainConfig
from ddrl.launch.outcome import ended_well
from ddrl.reporting.metrics import read_metrics, without_undone

POINTS = "points"
DAMAGED = "its result.json is half-written or damaged, so it runs again"


class Point(NamedTuple):
    """One run of a study.

    Attributes:
        name: unique name, which is also that of its directory.
        config: all settings of the run; the seed is `config.run.seed`.
        labels: what distinguishes the point from others except for the seed: algorithm, size, game, ...; JSON types.
        cores: how many of the first cores of this process the run may use (0: all cores).
    """

    name: str
    config: TrainConfig
    labels: Mapping[str, Any]
    cores: int = 0


class State(NamedTuple):
    """The state of a point.

    Attributes:
        status: waiting, running, interrupted, failed or finished.
        why: in one line, why the point failed or was stopped early, or that its result cannot be read; else empty.
    """

    status: str
    why: str = ""


class Outcome(NamedTuple):
    """A finished point with its result and records.

    Attributes:
        result: its result.json.
        records: the records of its metrics.jsonl without those that a resume took back; empty if nothing was trained.
        path: its directory.
    """

    point: Point
    result: Mapping[str, Any]
    records: list[dict[str, Any]]
    path: Path


@dataclasses.dataclass(frozen=True)
class Group:
    """One or more outcomes that have equal values of some labels. They differ only in their seeds or in other labels.

    Attributes:
        labels: the labels with equal values, which are also the group's items, as in group["game"].
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
    """Groups outcomes by the values of these labels; the groups are in the order of their first outcomes."""
    groups: dict[tuple[Any, ...], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(tuple(outcome.point.labels[name] for name in names), []).append(outcome)
    return [Group(dict(zip(names, values)), runs) for values, runs in groups.items()]


AnyGroup = TypeVar("AnyGroup", bound=Group)


def parted(groups: Sequence[AnyGroup], *names: str) -> list[list[AnyGroup]]:
    """Divides groups into parts with equal values of these labels, in the order of the first group of each part.

    A label that a group lacks counts as None.
    """
    parts: dict[tuple[Any, ...], list[AnyGroup]] = {}
    for group in groups:
        parts.setdefault(tuple(group.labels.get(name) for name in names), []).append(group)
    return list(parts.values())


def having(outcomes: Sequence[Outcome], **labels: Any) -> list[Outcome]:
    """The outcomes that have these values of these labels."""
    return [o for o in outcomes if all(o.point.labels.get(name) == value for name, value in labels.items())]


def is_name(name: Any) -> bool:
    """Whether this can be the name of a point, whose directory must not lie outside the study's."""
    return isinstance(name, str) and name not in ("", ".", "..") and "/" not in name and "\0" not in name


def state_of(path: Path) -> State:
    """The state of the point in directory `path`."""
    if not path.exists():
        return State("waiting")
    if run_lock.is_held(path):
        return State("running")
    result = rundir.read_json(path / rundir.RESULT)
    if result is None:
        return State("interrupted", DAMAGED if (path / rundir.RESULT).exists() else "")
    if ended_well(result):
        return State("finished", str(result.get("message", "")) if result.get("stopped_early") else "")
    if result.get("status") == "failed":
        return State("failed", " ".join(str(result.get("message", "")).split()))
    return State("interrupted")


def outcome_of(point: Point, path: Path) -> Outcome:
    """Reads the outcome of a finished point from its directory."""
    return Outcome(point, rundir.read_json(path / rundir.RESULT) or {}, without_undone(read_metrics(path)), path)


def note_failure(path: Path, message: str) -> None:
    """Writes why a point failed, unless its run did so itself, or another process is running or has finished it."""
    path.mkdir(parents=True, exist_ok=True)
    if state_of(path).status not in ("failed", "running", "finished"):
        rundir.write_json(path / rundir.RESULT, {"status": "failed", "message": message})
