"""The plan of a study: its settings and points in DIR/study.json, written when it is begun or extended.

DIR/local.json has the settings of the machine, which are no part of the study: they may change, and are not packed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ddrl import plugin_modules, run_lock, rundir
from ddrl.checks import did_you_mean
from ddrl.errors import UsageError, read_as, written
from ddrl.option_values import setting_as_typed, value_as_typed
from ddrl.studies.points import POINTS, Point, State, is_name, state_of

PLAN, LOCAL = "study.json", "local.json"
REPEATS = "repeats"
"""The setting that may grow after a study has begun."""
FORMAT = 1


class Plan(NamedTuple):
    """A study that has been begun.

    Attributes:
        settings: the study's settings, from which the points were made; JSON types.
        points: the tasks of submitted arrays name them by their numbers, so new ones come after all others.
        command: the command that began the study, as it was typed, with a line for each that extended it; empty if an
            earlier version did not keep it.
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
        """The present state of a point, read from its directory."""
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


def load(directory: Path, study: str, option: str = "--dir", trusted: bool = True) -> Plan | None:
    """The plan in a directory, or None if no study was begun there.

    Args:
        study: name of the study that it must be of.
        option: the option that names the directory, for messages.
        trusted: whether to import the plugins that the plan names; if not, they must have been loaded before.

    Raises:
        UsageError: the plan is damaged, is that of another study or version of ddrl, names a point that would lie
            outside the directory, or is not trusted and names a plugin that was not loaded.
    """
    path = directory / PLAN
    if not (path.exists() or path.is_symlink()):
        return None
    data = rundir.read_json(path)
    if data is None or data.get("format") != FORMAT:
        why = "is damaged, was edited, or comes from another version of ddrl"
        raise UsageError(f"{path} {why}: choose another {option}")
    with read_as(str(path), f"choose another {option}"):
        if data["study"] != study:
            raise UsageError(f"{option} {directory}: it holds `ddrl study {data['study']}`; choose another {option}")
        if not trusted:
            _check_plugins(data["points"], f"{option} {directory}")
        points = tuple(_point(entry, str(path), trusted) for entry in data["points"])
        return Plan(directory, study, dict(data["settings"]), points, str(data.get("command", "")))


def begin(plan: Plan) -> None:
    """Makes the directory of a new study with its plan, whose points must have passed `check_names`.

    Raises:
        FileExistsError: another call, also on another node, has begun a study there meanwhile.
        UsageError: the directory cannot be written.
    """
    _write(plan, new=True)


def write(plan: Plan) -> None:
    """Writes the plan of a study, such as an extended one, into its directory. Its points must have passed
    `check_names`.

    Raises:
        UsageError: the directory cannot be written.
    """
    _write(plan, new=False)


def _write(plan: Plan, new: bool) -> None:
    entries = [
        {"name": p.name, "labels": dict(p.labels), "cores": p.cores, "config": rundir.config_to_dict(p.config)}
        for p in plan.points
    ]
    content = {
        "format": FORMAT, "study": plan.study, "command": plan.command, "settings": dict(plan.settings),
        "points": entries,
    }  # fmt: skip
    with written_in(plan.directory):
        plan.directory.mkdir(parents=True, exist_ok=True)
    with written_in(plan.directory, new):
        rundir.write_json(plan.directory / PLAN, content, new)


def local_settings(directory: Path, names: Collection[str]) -> dict[str, str]:
    """Those settings of the machine with these names that an earlier call kept in a study's directory."""
    kept = rundir.read_json(directory / LOCAL) or {}
    return {name: value for name, value in kept.items() if name in names and isinstance(value, str)}


def keep_local(directory: Path, settings: Mapping[str, str]) -> None:
    """Keeps the settings of the machine in a study's directory for later calls; empty ones are left out.

    Raises:
        UsageError: the directory cannot be written.
    """
    given = {name: value for name, value in settings.items() if value}
    if given == local_settings(directory, given):
        return
    with written_in(directory):
        rundir.write_json(directory / LOCAL, given)


@contextlib.contextmanager
def held(directory: Path) -> Iterator[None]:
    """Context manager that makes a study's directory and locks it, so that no other call runs or submits all points.

    A call that runs a single point locks only the directory of that point.

    Raises:
        UsageError: another call holds the lock, or the directory cannot be written.
    """
    with written_in(directory):
        directory.mkdir(parents=True, exist_ok=True)
    busy = f"--dir {directory}: another `ddrl study` is running in it; wait until it ends or stop it, or choose another"
    with run_lock.locked(directory, busy):
        yield


def written_in(directory: Path, new: bool = False) -> contextlib.AbstractContextManager[None]:
    """Context manager for code that writes in the directory of a study or a search; see `written`."""
    return written(f"--dir {directory}", "choose one that can be written", new)


def check_names(plan: Plan) -> None:
    """Checks that each point has a name, and so a directory, of its own.

    Raises:
        UsageError: two points have one name.
    """
    names = [point.name for point in plan.points]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"two points are called {twice[0]}: give each value once")


def check_same(plan: Plan, settings: Mapping[str, Any]) -> None:
    """Checks that these settings are those with which the study was begun, or have more repeats, which extend it.

    Raises:
        UsageError: another setting differs, or there are fewer repeats.
    """
    for name, value in settings.items():
        before = plan.settings.get(name, value)
        if name == REPEATS and value < before:
            raise UsageError(
                f"{setting_as_typed(name, value)}: the study in {plan.directory} has {before} of each point, and keeps "
                f"them; give {before} or more, leave the option out, or choose another --dir"
            )
        if before != value and name != REPEATS:
            raise UsageError(
                f"{setting_as_typed(name, value)}: the study in {plan.directory} was begun with "
                f"{value_as_typed(name, before)}, and its points keep that; leave the option out, or choose another "
                "--dir"
            )


def _check_plugins(entries: Sequence[Mapping[str, Any]], where: str) -> None:
    """Raises UsageError for plugins of points that this process has not loaded."""
    named = [plugin for entry in entries for plugin in rundir.plugins_of(entry["config"])]
    if strange := plugin_modules.not_loaded(dict.fromkeys(named)):
        given = " ".join(f"--plugin {name}" for name in strange)
        remedy = f"check them as you would check a program, then give {given}"
        raise UsageError(f"{where}: its {PLAN} names plugins that were not given: {remedy}")


def _point(entry: Mapping[str, Any], where: str, load: bool) -> Point:
    if not is_name(entry["name"]):
        raise ValueError(f"a point called {entry['name']!r:.80}")
    config = rundir.config_from_dict(entry["config"], f"{where}, point {entry['name']}", load)
    return Point(entry["name"], config, entry["labels"], entry["cores"])
