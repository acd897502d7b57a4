"""Small checks of settings: a UsageError of one line names the flag, its value and the limit."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import sys
import typing
from collections.abc import Collection, Iterable
from typing import Any, Literal

from ddrl.errors import UsageError

LARGEST_SEED = 2**64 - 1
AS_CLOSE = 0.1  # how much less similar to a mistyped name than the closest one another may be (ratio of letters)


def hyphenated(name: str) -> str:
    """The name of a field as on the command line, without dashes in front."""
    return name.replace("_", "-")


def flag(name: str) -> str:
    """The command-line flag of a field."""
    return "--" + hyphenated(name)


def switch(name: str, value: bool) -> str:
    """The command-line flag that gives a boolean field this value: --video or --no-video."""
    return flag(name if value else f"no_{name}")


def closest(word: str, known: Iterable[str]) -> list[str]:
    """Up to three names that a mistyped one may mean, about equally close; case and the marks - and _ do not count."""
    names = {_letters(name): name for name in map(str, known)}
    found = difflib.get_close_matches(_letters(word), names, n=3, cutoff=0.6)
    ratios = [difflib.SequenceMatcher(None, each, _letters(word)).ratio() for each in found]
    return [names[each] for each, ratio in zip(found, ratios) if ratio > ratios[0] - AS_CLOSE]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a refusal of a mistyped name: '; did you mean ppo or appo?', or empty."""
    names = closest(word, known)
    return f"; did you mean {' or '.join(names)}?" if names else ""


def _letters(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def refuse(config: Any, name: str, why: str) -> typing.NoReturn:
    """Raises the UsageError for field `name` of `config`. A boolean is named as it is typed: --video or --no-video."""
    value = getattr(config, name)
    if isinstance(value, bool):
        raise UsageError(f"{switch(name, value)}: {why}")
    shown = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    raise UsageError(f"{flag(name)} {shown or '(nothing)':.80}: {why}")


def is_finite(value: float) -> bool:
    """Whether a number is finite, and not an integer too large for a float, at which arithmetic would fail."""
    return abs(value) <= sys.float_info.max


def at_least(config: Any, minimum: float, *names: str, why: str = "") -> None:
    """Fields must be finite numbers >= minimum."""
    for name in names:
        value = getattr(config, name)
        if not is_finite(value) or value < minimum:
            refuse(config, name, f"must be a finite number of at least {minimum}" + (f" ({why})" if why else ""))


def finite(config: Any, *names: str) -> None:
    """Fields must be finite numbers."""
    for name in names:
        if not is_finite(getattr(config, name)):
            refuse(config, name, "must be a finite number")


def all_finite(config: Any) -> None:
    """Numbers in fields must be finite: NaN goes through every comparison, and the JSON of files has no infinity."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        numbers = [item for item in (value if isinstance(value, tuple) else (value,)) if isinstance(item, float)]
        if not all(map(math.isfinite, numbers)):
            refuse(config, field.name, "must be a finite number")


def above(config: Any, limit: float, *names: str, why: str = "") -> None:
    """Fields must be finite numbers > limit."""
    for name in names:
        value = getattr(config, name)
        if not is_finite(value) or value <= limit:
            refuse(config, name, f"must be a finite number above {limit}" + (f" ({why})" if why else ""))


def between(config: Any, low: float, high: float, *names: str, why: str = "") -> None:
    """Fields must be in [low, high]."""
    for name in names:
        if not low <= getattr(config, name) <= high:
            refuse(config, name, f"must be between {low} and {high}" + (f" ({why})" if why else ""))


def seed(config: Any) -> None:
    """The field `seed` must fit into 64 bits, since random draws are hashes of such seeds."""
    if not 0 <= config.seed <= LARGEST_SEED:
        refuse(config, "seed", f"must be a whole number between 0 and {LARGEST_SEED} (64 bits)")


def decay(config: Any, *names: str) -> None:
    """Fields must be in [0, 1): a moving average with decay 1 never sees a gradient."""
    for name in names:
        if not 0.0 <= getattr(config, name) < 1.0:
            refuse(config, name, "must be at least 0 and below 1, or the moving average never sees a gradient")


def unused(config: Any, why: str, *names: str) -> None:
    """The named fields, or all if none is named, must have their default values."""
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    for name in names or defaults:
        if getattr(config, name) != defaults[name]:
            refuse(config, name, why)


def known(config: Any) -> None:
    """Fields declared as a Literal must hold one of its values (configurations are also read from files)."""
    kind: type = type(config)
    for name, hint in hints(kind).items():
        if typing.get_origin(hint) is Literal and getattr(config, name) not in typing.get_args(hint):
            choices = typing.get_args(hint)
            meant = did_you_mean(str(getattr(config, name)), choices)
            refuse(config, name, f"must be one of {', '.join(map(str, choices))}{meant}")


def registered(config: Any, name: str, known: Collection[str], others: str = "", with_options: bool = False) -> None:
    """Field `name` must be one of `known`; the refusal also mentions `others`, further possible values in words.

    `with_options`: options may follow it, as in NAME:KEY=VALUE; they are not looked at.
    """
    value = getattr(config, name)
    named = value.partition(":")[0] if with_options else value
    if named not in known:
        why = f"must be one of {', '.join(known)}{others}, or what a --plugin registers"
        refuse(config, name, why + did_you_mean(str(named), known))


@functools.cache
def hints(kind: type) -> dict[str, typing.Any]:
    """Name -> type of the fields of a class, which takes a while to find out."""
    return typing.get_type_hints(kind)
