"""What a study is: settings, the points made of them, what runs a point, and what is reported of the finished ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ddrl.studies.figures import Panel
from ddrl.studies.points import Outcome, Point
from ddrl.studies.settings import StudySettings
from ddrl.studies.tables import Table
from ddrl.studies.training import train_point
from ddrl.types import Machine


class Report(NamedTuple):
    """What the finished points say.

    Attributes:
        heading: of the figure.
        caption: what its scores are, how many seeds, what the spread is.
        columns: panels of the figure in a row.
        notes: lines below the tables.
        runs: a row for each finished run, for runs.csv and results.json alone.
    """

    heading: str
    caption: str
    tables: Sequence[Table]
    panels: Sequence[Panel]
    columns: int = 2
    notes: Sequence[str] = ()
    runs: Table | None = None


class Study(NamedTuple):
    """One experiment.

    Attributes:
        defaults: its settings; their class explains the study and its options.
        quick: its settings with --quick.
        points: (settings, machine) -> all points. Raises UsageError for settings that cannot be.
        report: (settings, finished points, at least one) -> report.
        run: (point, its directory) -> nothing; leaves a result.json. Raises UsageError, RuntimeError or OSError.
    """

    name: str
    defaults: StudySettings
    quick: StudySettings
    points: Callable[[Any, Machine], list[Point]]
    report: Callable[[Any, Sequence[Outcome]], Report]
    run: Callable[[Point, Path], None] = train_point
