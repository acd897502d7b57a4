"""The search space: NAME=log(LOW,HIGH), NAME=uniform(LOW,HIGH) or NAME=choice(A,B,...) for settings of `ddrl train`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ddrl.checks import did_you_mean, hyphenated, is_finite
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.option_values import item_of, value_of
from ddrl.options.command_line import Option
from ddrl.options.other_libraries import meant_by
from ddrl.options.unread import reader

EXPRESSION = re.compile(r"\s*(?:--)?([A-Za-z][\w-]*)\s*=\s*(\w+)\s*\((.*)\)\s*", re.DOTALL)
KINDS = ("log", "uniform", "choice")
FORM = 'write it as "NAME=log(LOW,HIGH)", "NAME=uniform(LOW,HIGH)", or "NAME=choice(A,B)"'
Score = Literal["online", "evaluation"]


class Dimension(NamedTuple):
    """A setting that is searched.

    Attributes:
        kind: log: any number of a range, uniform in its logarithm; uniform: any number of a range; choice: one of some.
        texts: the ends of the range, or the choices, as they were typed.
    """

    option: Option
    kind: str
    texts: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the setting on the command line."""
        return self.option.name

    @property
    def whole(self) -> bool:
        """Whether the numbers of its range are whole."""
        return self.values() == tuple(map(int, self.values())) and type(self.values()[0]) is int

    def values(self) -> tuple[Any, ...]:
        """The ends of the range, or the choices."""
        return tuple(_value(self.option, text) for text in self.texts)

    def value(self, suggested: Any) -> Any:
        """The value of the setting for what Optuna suggested: a number of the range, or the text of a choice."""
        return _value(self.option, suggested) if self.kind == "choice" else suggested


def read_space(texts: Sequence[str], options: Sequence[Option]) -> tuple[Dimension, ...]:
    """The dimensions of these expressions.

    Args:
        options: options of the algorithm.

    Raises:
        UsageError: an expression cannot be read, names an unknown setting, or has values that its setting cannot have.
    """
    space = tuple(_dimension(text, options) for text in texts)
    names = [dimension.name for dimension in space]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"--space {twice[0]}: it is given twice; give each setting once")
    return space


def settings_of(base: TrainConfig, space: Sequence[Dimension], suggested: Mapping[str, Any]) -> TrainConfig:
    """The settings of a trial, from those of all trials and from what Optuna suggested.

    Raises:
        UsageError: the settings contradict each other.
    """
    groups: dict[str, dict[str, Any]] = {}
    for dimension in space:
        option = dimension.option
        groups.setdefault(option.group, {})[option.field] = dimension.value(suggested[option.name])
    return base.changed(**groups)


def check(base: TrainConfig, space: Sequence[Dimension]) -> list[TrainConfig]:
    """Tries each end of a range and each choice, so that a mistake shows before the first trial; returns the settings.

    Each is tried beside the first values of all other dimensions, and beside their last ones.

    Raises:
        UsageError: a value is refused beside both, or no trial would read a setting.
    """
    usual, last = ({dimension.name: _ends(dimension)[end] for dimension in space} for end in (0, -1))
    tried = []
    for dimension in space:
        for value in _ends(dimension):
            refusals = []
            for others in (usual, last):
                try:
                    tried.append(settings_of(base, space, others | {dimension.name: value}))
                except UsageError as error:
                    refusals.append(error)
            if len(refusals) == 2:
                raise UsageError(f"--space {dimension.name}={value}: {refusals[0]}") from refusals[0]
    for dimension in space:
        if all(readers := [reader(config, dimension.option.field) for config in tried]):
            raise UsageError(f"--space {dimension.name}: no trial would use it; only {readers[0]} does")
    return tried


def _ends(dimension: Dimension) -> Sequence[Any]:
    return dimension.texts if dimension.kind == "choice" else dimension.values()


def _dimension(text: str, options: Sequence[Option]) -> Dimension:
    match = EXPRESSION.fullmatch(text)
    if match is None:
        raise UsageError(f"--space {text:.80}: {FORM}")
    name, kind = hyphenated(match[1]), match[2]
    by_name = {option.name: option for option in options if option.group not in ("", "run", "evaluation")}
    if name not in by_name:
        raise UsageError(f"--space {name}: there is no such setting of learning{meant_by(name, by_name)}")
    if kind not in KINDS:
        raise UsageError(f"--space {text:.80}: {kind} is none of {', '.join(KINDS)}{did_you_mean(kind, KINDS)}")
    texts = tuple(part.strip() for part in match[3].split(","))
    dimension = Dimension(by_name[name], kind, texts)
    try:
        _check_values(dimension)
    except ValueError as error:
        raise UsageError(f"--space {text:.80}: {error}") from error
    return dimension


def _check_values(dimension: Dimension) -> None:
    values = dimension.values()
    if dimension.kind == "choice":
        if len(set(values)) != len(values):
            raise ValueError("give every choice once")
        return
    if len(values) != 2 or not all(type(value) in (int, float) and is_finite(value) for value in values):
        raise ValueError(f"{dimension.kind} takes two numbers; for other values, use choice(A,B)")
    low, high = values
    if low >= high:
        raise ValueError("the first number must be below the second")
    if dimension.kind == "log" and low <= 0:
        raise ValueError("log takes no number of 0 or below; begin above 0, or use uniform")


def _value(option: Option, text: str) -> Any:
    kind = item_of(option.hint)
    return value_of(option.hint, text) if kind is None else tuple(value_of(kind, each) for each in text.split())
