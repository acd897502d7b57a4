"""Options that are read before the others: --plugin, whose modules register names that other options accept."""

from __future__ import annotations

import argparse
import typing
from collections.abc import Sequence

from ddrl import command_line, plugin_modules
from ddrl.errors import UsageError

Kind = typing.TypeVar("Kind")


class Parser(argparse.ArgumentParser):
    """Reads a few options before the others are known; a mistake is a UsageError, and help is for a later parser."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog=prog, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> typing.NoReturn:
        raise UsageError(f"{message} ({self.prog} --help explains the options)")


def take_plugins(argv: Sequence[str], prog: str) -> tuple[list[str], list[str]]:
    """Loads the plugins that a command line names; returns them as they are recorded, and the other words.

    Raises:
        UsageError: one of them cannot be loaded.
    """
    peek = Parser(prog=prog)
    peek.add_argument("--plugin", action="append", default=[])
    found, rest = peek.parse_known_args(list(argv))
    return plugin_modules.load_named(found.plugin), rest


def read_with_plugins(kind: type[Kind], argv: Sequence[str], prog: str) -> Kind:
    """The options of a command about a run, whose plugins may have moved to where --plugin says.

    Raises:
        UsageError: as `take_plugins` and `command_line.read`.
    """
    return command_line.read(kind, take_plugins(argv, prog)[1], prog)


def joined(before: Sequence[str], new: Sequence[str]) -> tuple[str, ...]:
    """The plugins of a run and new ones; each module is there once, from its newest place."""
    return tuple({plugin_modules.module_of(plugin): plugin for plugin in [*before, *new]}.values())
