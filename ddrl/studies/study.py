"""A study as a declaration: its settings, the points that they make, and what its report says of finished ones."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddrl.studies.figures import Panel
from ddrl.studies.points import Outcome, Point
from ddrl.studies.settings import StudySettings, TrainingSettings, game_name
from ddrl.studies.tables import Table
from ddrl.studies.training import train_point
from ddrl.types import Machine

QUICK = {"preset": "smoke", "games": ("ddrl/Catch-v0",)}
"""Settings of points that train with --quick, where a study says nothing else."""

Labels = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Report:
    """What the finished points say.

    Attributes:
        heading: of the figure.
        caption: what its scores are, how many seeds, what the spread is.
        columns: panels of the figure in a row.
        notes: lines below the tables.
        finding: what was found, in one sentence.
    """

    heading: str
    caption: str
    tables: Sequence[Table]
    panels: Sequence[Panel]
    columns: int = 2
    notes: Sequence[str] = ()
    finding: str = ""


@dataclasses.dataclass(frozen=True)
class Study:
    """One experiment.

    Attributes:
        about: one line for `ddrl study --help`.
        defaults: its settings; their class explains the study and its options, and has axes(machine) -> the labels of
            each point in order, JSON types, its `seed` among them; config(machine, labels without the seed) -> settings
            of the point; report(finished points, at least one) -> Report.
        point_name: of a point by its labels, {game} without its namespace; or a function of settings and labels.
        quick_changes: of the defaults with --quick, beside QUICK.
        cores: (settings, labels) -> cores that a point may use (None: all).
        run: (point, its directory) -> nothing; leaves a result.json. Raises UsageError, RuntimeError or OSError.
    """

    name: str
    about: str
    defaults: StudySettings
    point_name: str | Callable[[Any, Labels], str]
    quick_changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    cores: Callable[[Any, Labels], int] | None = None
    run: Callable[[Point, Path], None] = train_point

    @property
    def quick(self) -> Any:
        """Its settings with --quick."""
        small: dict[str, Any] = QUICK if isinstance(self.defaults, TrainingSettings) else {}
        return dataclasses.replace(self.defaults, quick=True, **small | dict(self.quick_changes))

    def report(self, settings: Any, outcomes: Sequence[Outcome]) -> Report:
        """What finished points say, at least one."""
        report: Report = settings.report(outcomes)
        return report

    def points(self, settings: Any, machine: Machine) -> list[Point]:
        """All points.

        Raises:
            UsageError: settings that cannot be.
        """
        return [self._point(settings, machine, labels) for labels in settings.axes(machine)]

    def _point(self, settings: Any, machine: Machine, axes: Labels) -> Point:
        labels = {name: value for name, value in axes.items() if name != "seed"}
        config = settings.config(machine, labels).changed(run={"seed": axes["seed"]})
        texts = {**axes, "game": game_name(axes.get("game", ""))}
        name = self.point_name.format(**texts) if isinstance(self.point_name, str) else self.point_name(settings, texts)
        return Point(name, config, labels, self.cores(settings, labels) if self.cores else 0)


def product(**axes: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Labels of all combinations; the last axis changes with every one."""
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values))


def doublings(most: int) -> tuple[int, ...]:
    """1, 2, 4, ..., up to `most`; none where that is 0."""
    return tuple(2**k for k in range(most.bit_length()))
