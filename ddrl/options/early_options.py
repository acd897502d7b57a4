"""Options that are read before the others: --plugin, whose modules register names that other options accept."""

from __future__ import annotations

import argparse
import os
import shlex
import typing
from collections.abc import Sequence

from ddrl import plugin_modules
from ddrl.errors import UsageError
from ddrl.options import command_line

Kind = typing.TypeVar("Kind")
PLAIN = {"expected one argument": "it needs a value", "ignored explicit argument": "it takes no value"}
"""Beginning of a message of argparse -> what `command_line` says of the same mistake."""


class Parser(argparse.ArgumentParser):
    """Reads a few options before the others are known; a mistake is a UsageError, and help is for a later parser."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog=prog, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> typing.NoReturn:
        option, _, why = message.removeprefix("argument ").partition(": ")
        plain = next((text for begin, text in PLAIN.items() if why.startswith(begin)), "")
        raise UsageError(f"{f'{option}: {plain}' if plain else message} ({self.prog} --help explains the options)")


def take_plugins(argv: Sequence[str], prog: str) -> tuple[list[str], list[str]]:
    """Loads the plugins that a command line names; returns them as they are recorded, and the other words.

    Raises:
        UsageError: one of them cannot be loaded.
    """
    named, rest = split_plugins(argv, prog)
    return plugin_modules.load_named(named), rest


def split_plugins(argv: Sequence[str], prog: str) -> tuple[list[str], list[str]]:
    """The plugins that a command line names, which are not loaded, and the other words.

    Raises:
        UsageError: --plugin has no value, or several with commas between them.
    """
    peek = Parser(prog=prog)
    peek.add_argument("--plugin", action="append", default=[])
    found, rest = peek.parse_known_args(list(argv))
    for plugin in found.plugin:
        if "," in plugin and not os.path.exists(plugin):
            modules = filter(None, map(str.strip, plugin.split(",")))
            one_each = shlex.join(word for module in modules for word in ("--plugin", module))
            raise UsageError(f"--plugin {plugin}: a comma does not separate modules; write {one_each}")
    return found.plugin, rest


def read_with_plugins(kind: type[Kind], argv: Sequence[str], prog: str) -> Kind:
    """The options of a command about a run, whose plugins may have moved to where --plugin says.

    Raises:
        UsageError: as `take_plugins` and `command_line.read`.
    """
    return command_line.read(kind, take_plugins(argv, prog)[1], prog)


def moved(before: Sequence[str], now: Sequence[str], begun: str) -> tuple[str, ...]:
    """The plugins of what has begun, each from where it is now.

    Args:
        before: as they were recorded then.
        now: those of them that have moved, as they are recorded now.
        begun: what has begun, in words, and how it keeps its plugins.

    Raises:
        UsageError: one of `now` is not among them.
    """
    places = {plugin_modules.module_of(plugin): plugin for plugin in now}
    known = {plugin_modules.module_of(plugin) for plugin in before}
    if strange := [place for module, place in places.items() if module not in known]:
        raise UsageError(f"--plugin {strange[0]}: {begun}; leave the option out, or choose another --dir")
    return tuple(places.get(plugin_modules.module_of(plugin), plugin) for plugin in before)


def joined(before: Sequence[str], new: Sequence[str]) -> tuple[str, ...]:
    """The plugins of a run and new ones; each module is there once, from its newest place."""
    return tuple({plugin_modules.module_of(plugin): plugin for plugin in [*before, *new]}.values())
