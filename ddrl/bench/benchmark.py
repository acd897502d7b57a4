"""A benchmark as a declaration: its options and its measurement; tables for people, or one JSON object."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tyro
from rich.console import Console
from rich.table import Column, Table

from ddrl import algorithms, checks
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.options import command_line, early_options, train_options
from ddrl.options.other_libraries import meant_by
from ddrl.reporting import machine
from ddrl.reporting.json_output import check_json_output, write_json_output

WIDTH = 160  # columns of the tables when the output is no terminal


@dataclasses.dataclass(frozen=True)
class BenchmarkArguments:
    """Options of every benchmark."""

    json: str = ""
    """Write one JSON object to this file (-: standard output) instead of a table."""

    def settings(self, *left_out: str) -> dict[str, Any]:
        """The values of all options, for the result; without `json` (where the result goes) and those in `left_out`."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in ("json", *left_out)}


@dataclasses.dataclass(frozen=True)
class TakesTrainOptions(BenchmarkArguments):
    """Options of a benchmark that takes those of `ddrl train`, too."""

    train_options: tyro.conf.Suppress[tuple[str, ...]] = ()
    """What is no option of the benchmark's own."""


def some_positive(arguments: BenchmarkArguments, *names: str) -> None:
    """Refuses the arguments unless each of these fields is a list of one or more finite numbers above 0."""
    for name in names:
        values = getattr(arguments, name)
        if not values or not all(checks.is_finite(value) and value > 0 for value in values):
            checks.refuse(arguments, name, "give one or more finite numbers above 0")


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """One command `ddrl bench NAME`.

    Attributes:
        arguments: the class of its options, whose docstring explains the measurement.
        measure: takes the options and returns the measured values, in JSON types; see `show`. Raises UsageError.
        title: the title of the table; {train_options.NAME} stands for an option.
        notes: unit or meaning of some of the values, by name.
        details: a further explanation for `--help`.
        failed: takes the measured values; whether they are a failure, so that the exit status is 1.
    """

    name: str
    arguments: type[BenchmarkArguments]
    measure: Callable[[Any], Mapping[str, Any]]
    title: str
    notes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    details: str = ""
    failed: Callable[[Mapping[str, Any]], bool] = lambda values: False

    def __call__(self, argv: Sequence[str]) -> int:
        """Measures and prints; returns the exit status."""
        arguments = self.parse(argv)
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        if arguments.json:
            check_json_output(arguments.json)  # now, rather than after the measurement
        values = {**self.measure(arguments), "machine": machine.describe()}
        if arguments.json:
            write_json_output(arguments.json, values)
        else:
            show(self.title.format(options=arguments), values, self.notes)
        return int(self.failed(values))

    def parse(self, argv: Sequence[str]) -> BenchmarkArguments:
        """Reads the options from the command line; a benchmark with an option `plugin` loads the plugins it names.

        Raises:
            UsageError: the values cannot be used.
            SystemExit: the parser refused the command line, or printed the help.
        """
        about = "\n\n".join(filter(None, (inspect.getdoc(self.arguments), self.details)))
        takes = issubclass(self.arguments, TakesTrainOptions)
        prog = f"ddrl bench {self.name}"
        if any(field.name == "plugin" for field in dataclasses.fields(self.arguments)):
            _, argv = early_options.take_plugins(argv, prog)
        arguments, rest = command_line.read_known(self.arguments, argv, prog, description=about, others=takes)
        if isinstance(arguments, TakesTrainOptions):
            self._refuse_mistyped(rest, prog)
            return dataclasses.replace(arguments, train_options=tuple(rest))
        return arguments

    def _refuse_mistyped(self, rest: Sequence[str], prog: str) -> None:
        """Refuses a mistyped option: close to one of the benchmark's own, and not an option of `ddrl train`."""
        own, others = command_line.names_of(command_line.options_of(self.arguments)), option_names()
        for name in (command_line.name_of(word) for word in rest if word.startswith("--")):
            meant = meant_by(name, own, "--")
            if meant and name.removeprefix("no-") not in others:
                raise UsageError(f"--{name}: there is no such option{meant} ({prog} --help explains the options)")


def option_names() -> set[str]:
    """The names of all options of `ddrl train`, of every algorithm."""
    kinds: list[type] = [train_options.TrainArguments, *(known.settings for known in algorithms.ALGORITHMS.values())]
    kinds += [type(group.default) for group in dataclasses.fields(TrainConfig) if group.name != "algorithm"]
    return {option.name for kind in kinds for option in command_line.options_of(kind)}


def show(title: str, values: Mapping[str, Any], notes: Mapping[str, str]) -> None:
    """Prints what was measured, and on what machine.

    Args:
        title: the title of the table.
        values: the measured values, in JSON types. A mapping of mappings becomes a table of its own; each mapping in
            a list of mappings becomes a line.
        notes: unit or meaning of some of the values, by name.
    """
    options: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}  # values may look like markup
    console = Console(**options)
    console = console if console.is_terminal else Console(**options, width=WIDTH)
    table, lines = Table("what", "value", "", title=title), []
    for name, value in values.items():
        if name == "machine" or value in ({}, []):
            continue
        if isinstance(value, Mapping) and any(isinstance(row, Mapping) for row in value.values()):
            console.print(_table(name, value))
        elif isinstance(value, Sequence) and value and isinstance(value[0], Mapping):
            lines += [f"{_words(name)}: {', '.join(_parts(entry))}" for entry in value]
        else:
            table.add_row(_words(name), _text(value), notes.get(name, ""))
    if table.rows:
        console.print(table)
    for line in (*lines, machine.in_words(values["machine"])):
        console.print(line, soft_wrap=True)


def _table(name: str, rows: Mapping[str, Mapping[str, Any]]) -> Table:
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    table = Table(Column(no_wrap=True), *map(_words, columns), title=_words(name))
    for row_name, row in rows.items():
        table.add_row(row_name, *(_text(row.get(column, "")) for column in columns))
    return table


def _words(name: str) -> str:
    return name.replace("_", " ")


def _parts(values: Mapping[str, Any]) -> list[str]:
    return [f"{_words(name)} {_text(value)}" for name, value in values.items()]


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"
    return "\n".join(_parts(value)) if isinstance(value, Mapping) else str(value)
