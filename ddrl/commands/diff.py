"""`ddrl diff RUN RUN`: the settings in which two runs differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tyro

from ddrl import rundir
from ddrl.options import early_options
from ddrl.options.named_settings import differences
from ddrl.studies.provenance import value_text
from ddrl.terminal import printable


@dataclasses.dataclass(frozen=True)
class DiffArguments:
    """Print the settings in which two runs differ, apart from their directories. A '-' stands where a run has no such
    setting."""

    first: tyro.conf.Positional[str]
    """Directory of a run."""
    second: tyro.conf.Positional[str]
    """Directory of the run to compare it with."""
    plugin: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """The new name or path of a plugin of the runs that has moved. May be given several times."""


def main(argv: Sequence[str]) -> int:
    """Prints a line for each setting; returns the exit status."""
    arguments = early_options.read_with_plugins(DiffArguments, argv, "ddrl diff")
    names = (arguments.first, arguments.second)
    found = differences([rundir.load_config(name) for name in names])
    if not found:
        print(f"{names[0]} and {names[1]} have the same settings")
        return 0
    values = [[printable(value_text(value)).replace("\n", " ") for value in each.values] for each in found]
    rows = [("", *map(printable, names)), *((each.name, *pair) for each, pair in zip(found, values))]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for name, before, after in rows:
        print(f"{name:<{widths[0]}}  {before:<{widths[1]}}  {after}")
    return 0
