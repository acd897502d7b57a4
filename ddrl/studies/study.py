"""The declaration of a study: its settings, the points that are made from them, and the report on finished points."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddrl.errors import UsageError
from ddrl.studies.figures import Panel
from ddrl.studies.points import Outcome, Point
from ddrl.studies.settings import StudySettings, TrainingSettings, game_name
from ddrl.studies.tables import Table
from ddrl.studies.training import train_point
from ddrl.types import Machine

QUICK = {"preset": "smoke", "games": ("ddrl/Catch-v0",)}
"""What --quick changes in the settings of studies that train, unless their `quick_changes` say otherwise."""

Labels = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Report:
    """The content of a study's report, made from its finished points.

    Attributes:
        heading: title of the figure.
        caption: text below the figure: what the scores are, how many seeds there are, and what the spread is.
        columns: number of panels in a row of the figure.
        notes: lines below the tables.
        finding: what was found, in one sentence.
        careful: what makes the points hard to compare, a line each, which stand above the figure.
    """

    heading: str
    caption: str
    tables: Sequence[Table]
    panels: Sequence[Panel]
    columns: int = 2
    notes: Sequence[str] = ()
    finding: str = ""
    careful: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Study:
    """One experiment.

    Attributes:
        about: one line for `ddrl study --help`.
        defaults: the default settings. Their class explains the study and its options, and has three methods:
            axes(machine) -> the labels of each point in order, JSON types, its `seed` among them;
            config(machine, labels without the seed) -> the settings of the point;
            report(finished points, at least one) -> Report.
        point_name: a format string that makes a point's name from its labels, where {game} has no namespace; or a
            function (settings, labels) -> name.
        quick_changes: what --quick changes in the defaults, beside QUICK.
        cores: (settings, labels) -> the number of cores that a point may use, 0 for all (None: all for every point).
        run: (point, its directory, and by their names the settings `of_machine`) -> None; runs the point and leaves a
            result.json. Raises UsageError, RuntimeError or OSError.
        names_failed: the report also names points that failed: report(finished points, failed points) -> Report.
    """

    name: str
    about: str
    defaults: StudySettings
    point_name: str | Callable[[Any, Labels], str]
    quick_changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    cores: Callable[[Any, Labels], int] | None = None
    run: Callable[..., None] = train_point
    names_failed: bool = False

    @property
    def quick(self) -> Any:
        """The default settings with --quick."""
        small: dict[str, Any] = QUICK if isinstance(self.defaults, TrainingSettings) else {}
        return dataclasses.replace(self.defaults, quick=True, **small | dict(self.quick_changes))

    def report(self, settings: Any, outcomes: Sequence[Outcome], failed: Sequence[Point] = ()) -> Report:
        """The report on finished points, of which there must be at least one, and on those that failed."""
        report: Report = settings.report(outcomes, failed) if self.names_failed else settings.report(outcomes)
        return report

    def runner(self, settings: StudySettings) -> Callable[[Point, Path], None]:
        """The function (point, its directory) that runs a point on this machine."""
        return functools.partial(self.run, **settings.of_machine)

    def points(self, settings: Any, machine: Machine) -> list[Point]:
        """All points of the study with these settings.

        Raises:
            UsageError: the settings contradict each other, or do not fit the machine.
        """
        return [self._point(settings, machine, labels) for labels in settings.axes(machine)]

    def more_points(self, settings: Any, points: Sequence[Point]) -> list[Point]:
        """The points with these settings that a study begun with fewer repeats lacks, seed by seed.

        Each has the settings of the point that it repeats, which this machine or this version might choose otherwise.

        Args:
            settings: of the study, with the repeats that it is to have.
            points: those of the study that has begun.

        Raises:
            UsageError: they come from a version that gave them other names or seeds: they would be run twice.
        """
        known = {point.name for point in points}
        firsts = [p for p in points if p.config.run.seed == settings.seed and settings.is_repeated(p.labels)]
        strange = [p for p in firsts if p.name != self._name(settings, {**p.labels, "seed": settings.seed})]
        if strange or not firsts:
            name = (strange or points)[0].name
            raise UsageError(f"study.json: point {name} comes from another version of ddrl; choose another --dir")
        repeats = [
            first._replace(
                name=self._name(settings, {**first.labels, "seed": seed}),
                config=first.config.changed(run={"seed": seed}),
            )
            for seed in settings.seeds
            for first in firsts
        ]
        return [point for point in repeats if point.name not in known]

    def _point(self, settings: Any, machine: Machine, axes: Labels) -> Point:
        labels = {name: value for name, value in axes.items() if name != "seed"}
        config = settings.config(machine, labels).changed(run={"seed": axes["seed"]})
        return Point(self._name(settings, axes), config, labels, self.cores(settings, labels) if self.cores else 0)

    def _name(self, settings: Any, axes: Labels) -> str:
        texts = {**axes, "game": game_name(axes.get("game", ""))}
        return self.point_name.format(**texts) if isinstance(self.point_name, str) else self.point_name(settings, texts)


def product(**axes: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yields the labels of every combination of values; the last axis varies fastest."""
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values))


def doublings(most: int) -> tuple[int, ...]:
    """The powers of two 1, 2, 4, ... up to `most`; empty if that is 0."""
    return tuple(2**k for k in range(most.bit_length()))
