"""Values of options as texts: how a text is read as a value of a type, and how a value is shown."""

from __future__ import annotations

import decimal
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal

from ddrl.checks import did_you_mean, flag, switch

LARGEST_EXPONENT = 30  # of a whole number: larger than any limit, and still quick to write out


def value_of(hint: Any, text: str) -> Any:
    """Reads a text as a value of a type: a choice, a number, a text, a boolean, or an optional one of these.

    Raises:
        ValueError: the text is no such value; the message says why.
    """
    if typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    if (kind := without_none(hint)) is not hint:
        return None if text == "None" and type(None) in typing.get_args(hint) else value_of(kind, text)
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        if text not in choices:
            named = list(filter(None, choices))  # an empty one stands for what is not given
            raise ValueError(f"must be one of {', '.join(map(str, named))}{did_you_mean(text, named)}")
        return text
    if hint is bool:
        return _truth(text)
    if hint is int:
        return _whole_number(text)
    if hint is float:
        try:
            return float(text)
        except ValueError as error:
            raise ValueError("must be a number") from error
    return text


def item_of(hint: Any) -> Any:
    """The type of the values in a list; None if the type is no list."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else None


def without_none(hint: Any) -> Any:
    """The type of an optional value, or the type itself."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    return next(kind for kind in typing.get_args(hint) if kind is not type(None))


def shown(value: Any) -> str:
    """A value as it would be typed; empty for an empty one."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (tuple, list)):
        return " ".join(map(shown, value))
    if isinstance(value, (int, float)):
        return min(_ways_to_write(value), key=len)
    return str(value)


def setting_as_typed(name: str, value: Any) -> str:
    """A setting as a user types it: --batch-size 32, --video, or --no-video."""
    return switch(name, value) if isinstance(value, bool) else f"{flag(name)} {shown(value) or '(nothing)'}"


def value_as_typed(name: str, value: Any) -> str:
    """A value as a user types it behind its option; a boolean is the option itself, such as --no-layer-norm."""
    return setting_as_typed(name, value).removeprefix(f"{flag(name)} ")


def _ways_to_write(value: float) -> Iterator[str]:
    """Yields a number in digits and, if it is large or small enough, also with an exponent."""
    yield f"{value:.6g}" if float(f"{value:.6g}") == value and "e" not in f"{value:.6g}" else str(value)
    digits, exponent = f"{value:e}".split("e")
    power = f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"
    if float(power) == value and not 1e-4 <= abs(value) < 1e5:
        yield power


def _truth(text: str) -> bool:
    known = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    if text.lower() not in known:
        raise ValueError("must be true or false")
    return known[text.lower()]


def _whole_number(text: str) -> int:
    try:
        number = decimal.Decimal(text)
    except decimal.InvalidOperation:
        number = decimal.Decimal("nan")
    if not number.is_finite() or number.adjusted() > LARGEST_EXPONENT or number != number.to_integral_value():
        raise ValueError("must be a whole number, such as 1000000 or 1e6")
    return int(number)
