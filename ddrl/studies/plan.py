"""DIR/study.json: the settings and the points of a study, written once. Whoever runs or collects reads it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ddrl import rundir
from ddrl.checks import did_you_mean, flag
from ddrl.errors import UsageError, read_as
from ddrl.studies.points import POINTS, Point, State, is_name, state_of

PLAN = "study.json"
FORMAT = 1


class Plan(NamedTuple):
    """A study that has been begun.

    Attributes:
        settings: JSON types; what the points were made of.
        command: that began it, as it was typed; empty where an earlier version did not keep it.
    """

    directory: Path
    study: str
    settings: Mapping[str, Any]
    points: tuple[Point, ...]
    command: str = ""

    def path(self, point: Point) -> Path:
        """The directory of a point."""
        return self.directory / POINTS / point.name

    def state(self, point: Point) -> State:
        """What became of a point."""
        return state_of(self.path(point))

    def find(self, name: str) -> Point:
        """The point of this name, or of this number in the list, from 0.

        Raises:
            UsageError: there is none.
        """
        if name.isdecimal() and int(name) < len(self.points):
            return self.points[int(name)]
        for point in self.points:
            if point.name == name:
                return point
        meant = did_you_mean(name, [point.name for point in self.points]) or f"; --list shows all {len(self.points)}"
        raise UsageError(f"--point {name}: {self.directory} has none of that name{meant}")


def load(directory: Path, study: str) -> Plan | None:
    """The plan in a directory, or None where none was begun.

    Raises:
        UsageError: it is damaged, of another study or of another version of ddrl, or a point would be elsewhere.
    """
    path = directory / PLAN
    if not path.exists():
        return None
    data = rundir.read_json(path)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UsageError(f"{path} is damaged, was edited, or comes from another version of ddrl: choose another --dir")
    with read_as(str(path), "choose another --dir"):
        if data["study"] != study:
            raise UsageError(f"--dir {directory}: it holds `ddrl study {data['study']}`; choose another --dir")
        points = tuple(_point(entry, str(path)) for entry in data["points"])
        return Plan(directory, study, dict(data["settings"]), points, str(data.get("command", "")))


def write(plan: Plan) -> None:
    """Begins a study whose points have been through `check_names`: makes its directory with study.json.

    Raises:
        UsageError: the directory cannot be written.
    """
    entries = [
        {"name": p.name, "labels": dict(p.labels), "cores": p.cores, "config": rundir.config_to_dict(p.config)}
        for p in plan.points
    ]
    content = {
        "format": FORMAT, "study": plan.study, "command": plan.command, "settings": dict(plan.settings),
        "points": entries,
    }  # fmt: skip
    try:
        plan.directory.mkdir(parents=True, exist_ok=True)
        rundir.write_json(plan.directory / PLAN, content)
    except OSError as error:
        raise _refused(plan.directory, error) from error


@contextlib.contextmanager
def held(directory: Path) -> Iterator[None]:
    """Makes the directory of a study, and keeps out of it every other call that would run all its points, or submit
    them. Whoever runs one point holds the directory of that point alone.

    Raises:
        UsageError: another call is at it, or the directory cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(directory, error) from error
    busy = f"--dir {directory}: another `ddrl study` is running in it; wait until it ends or stop it, or choose another"
    with rundir.locked(directory, busy):
        yield


def _refused(directory: Path, error: OSError) -> UsageError:
    return UsageError(f"--dir {directory}: {error.strerror}; choose one that can be written")


def check_names(plan: Plan) -> None:
    """Each point has a directory of its own.

    Raises:
        UsageError: two points have one name.
    """
    names = [point.name for point in plan.points]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"two points are called {twice[0]}: give each value once")


def check_same(plan: Plan, settings: Mapping[str, Any]) -> None:
    """A study keeps the settings that it was begun with.

    Raises:
        UsageError: one of them differs.
    """
    for name, value in settings.items():
        before = plan.settings.get(name, value)
        if before != value:
            raise UsageError(
                f"{flag(name)} {_text(value)}: the study in {plan.directory} was begun with {_text(before)}, and its "
                "points keep that; leave the option out, or choose another --dir"
            )


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _point(entry: Mapping[str, Any], where: str) -> Point:
    if not is_name(entry["name"]):
        raise ValueError(f"a point called {entry['name']!r:.80}")
    config = rundir.config_from_dict(entry["config"], f"{where}, point {entry['name']}")
    return Point(entry["name"], config, entry["labels"], entry["cores"])
