"""Turns what a user types into the name of an Atari ROM, without asking the emulator which ROMs there are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from ddrl import plugins

Value = TypeVar("Value")

SPELLING = re.compile(r"^(?:ALE/)?([A-Za-z0-9_]+?)(?:NoFrameskip|Deterministic)?(?:-v[045])?$")


def rom_name(game: str) -> str:
    """A game's ROM name in snake case: Breakout, ALE/Breakout-v5 and breakout are one game.

    Empty if the text cannot be the name of a ROM, or if a plugin has given that name to an environment, which is then
    meant.
    """
    match = SPELLING.match(game)
    if match is None or game in plugins.environments.names():
        return ""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", match.group(1)).lower()


def of_game(table: Mapping[str, Value], game: str) -> Value | None:
    """What a table by ROM names in snake case has for a game; None if it has nothing.

    Underscores do not count, as where a game is looked up: river_raid, RiverRaid, and riverraid are one game.
    """
    key = rom_name(game).replace("_", "")
    return next((value for name, value in table.items() if name.replace("_", "") == key), None)
