"""What a benchmark found: a table for people, or one JSON object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from ddrl.reporting import machine
from ddrl.reporting.json_output import write_json_output


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
