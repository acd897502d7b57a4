"""A benchmark as a declaration: its options and its measurement; a table for people, or one JSON object."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

from ddrl.reporting import machine
from ddrl.reporting.json_output import write_json_output


@dataclasses.dataclass(frozen=True)
class BenchmarkArguments:
    """Options of every benchmark."""

    json: str = ""
    """Write one JSON object to this file (-: standard output) instead of a table."""

    def settings(self, *left_out: str) -> dict[str, Any]:
        """What was asked for, for the result, without where it goes and without these."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in ("json", *left_out)}


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """One command `ddrl bench NAME`.

    Attributes:
        arguments: the class of its options; it explains the measurement.
        measure: options -> what is told of them, JSON types, nested at most once. Raises UsageError.
        title: of the table, by the options.
        notes: unit or meaning of some of the values, by name.
    """

    name: str
    arguments: type[BenchmarkArguments]
    measure: Callable[[Any], Mapping[str, Any]]
    title: Callable[[Any], str]
    notes: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __call__(self, argv: Sequence[str]) -> int:
        """Measures and prints; returns the exit status."""
        arguments = tyro.cli(self.arguments, args=list(argv), prog=f"ddrl bench {self.name}")
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        emit(self.title(arguments), self.measure(arguments), arguments.json, self.notes)
        return 0


def emit(title: str, values: Mapping[str, Any], json_target: str, notes: Mapping[str, str] | None = None) -> None:
    """Writes the values with the machine that they were measured on.

    Args:
        title: of the table.
        values: JSON types, nested at most once.
        json_target: file for one JSON object, - for standard output, or nothing for a table.
        notes: unit or meaning of some of the values, by name.

    Raises:
        UsageError: when the file cannot be written.
    """
    values = {**values, "machine": machine.describe()}
    if json_target:
        write_json_output(json_target, values)
    else:
        _show(title, values, notes or {})


def _show(title: str, values: Mapping[str, Any], notes: Mapping[str, str]) -> None:
    table = Table("what", "value", "", title=title)
    for name, value in values.items():
        if name != "machine":
            table.add_row(name.replace("_", " "), _text(value), notes.get(name, ""))
    console = Console(highlight=False)
    console.print(table)
    console.print(f"{values['machine']['processor']}, {values['machine']['cores']} cores", markup=False)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.3f}"
    if isinstance(value, Mapping):
        return "\n".join(f"{name.replace('_', ' ')} {_text(part)}" for name, part in value.items())
    return str(value)
