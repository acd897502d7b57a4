"""Options that all studies have, and what their points are made with."""

from __future__ import annotations

import dataclasses
import functools
import shlex
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from ddrl import checks
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.types import Machine

Settings = TypeVar("Settings", bound="StudySettings")
Preset = Literal["default", "laptop", "smoke", "stooke"]


@dataclasses.dataclass(frozen=True)
class StudySettings:
    """What every study's points depend on."""

    preset: Preset = "laptop"
    """Preset of `ddrl train` that every point begins with."""
    games: tuple[str, ...] = ("breakout",)
    """Games, as for `ddrl train --game`."""
    repeats: int = 1
    """Runs of every point, each with a seed of its own."""
    seed: int = 1
    """The first seed; the repeats take the next ones."""
    train_options: str = ""
    """More options of `ddrl train` for every point, in one word: --train-options="--network nature"."""
    quick: bool = False
    """Tiny sizes, minutes in all: does the whole study work here? Says nothing about the question."""

    def __post_init__(self) -> None:
        checks.known(self)
        checks.at_least(self, 1, "repeats")
        checks.at_least(self, 0, "seed")
        not_empty(self, "games")

    @property
    def seeds(self) -> range:
        """Of the repeats."""
        return range(self.seed, self.seed + self.repeats)


@dataclasses.dataclass(frozen=True)
class Budget:
    """How long a point that learns goes on."""

    minutes: float = 0.0
    """Wall time of a point, in minutes (0: as many as --agent-steps take)."""
    agent_steps: int = 0
    """Agent steps of a point, over all its workers (0: as many as --minutes allow)."""


def check_budget(settings: Any) -> None:
    """Refuses a budget below 0, or none."""
    checks.at_least(settings, 0, "minutes", "agent_steps")
    if not settings.minutes and not settings.agent_steps:
        checks.refuse(settings, "minutes", "a point would never end; give --minutes or --agent-steps")


def not_empty(settings: Any, *names: str) -> None:
    """Fields must be lists with something in them, and nothing twice."""
    for name in names:
        values = getattr(settings, name)
        if not values or len(set(values)) != len(values):
            given = " ".join(map(str, values)) or "(nothing)"
            raise UsageError(f"{checks.flag(name)} {given}: give one or more, each once")


def one_of(settings: Any, name: str, choices: Mapping[str, Any] | tuple[str, ...]) -> None:
    """A field must be a list of some of these."""
    not_empty(settings, name)
    for value in getattr(settings, name):
        if value not in choices:
            raise UsageError(f"{checks.flag(name)} {value}: choose from {', '.join(choices)}")


def to_json(settings: StudySettings) -> dict[str, Any]:
    """JSON types: lists for tuples."""
    values = dataclasses.asdict(settings)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def from_json(kind: type[Settings], values: Mapping[str, Any]) -> Settings:
    """The inverse; a setting that is not there has its default.

    Raises:
        UsageError: a setting that this version does not know.
    """
    unknown = sorted(set(values) - set(typing.get_type_hints(kind)))
    if unknown:
        raise UsageError(f"study.json: setting {unknown[0]!r} is of another version of ddrl; choose another --dir")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


@functools.lru_cache
def base_config(settings: StudySettings, algorithm: str, game: str, machine: Machine) -> TrainConfig:
    """The settings of `ddrl train ALGORITHM` for a game, without evaluator and video.

    Raises:
        UsageError: --train-options that cannot be.
    """
    from ddrl.options import parse

    try:
        words = shlex.split(settings.train_options)
    except ValueError as error:
        raise UsageError(f"--train-options {settings.train_options}: {error}") from error
    config = parse([algorithm, "--preset", settings.preset, "--game", game, *words], machine).config
    return changed(config, evaluation={"evaluator": False}, run={"video": False})


def changed(config: TrainConfig, **groups: Mapping[str, Any]) -> TrainConfig:
    """The settings with some of each group changed: changed(config, sampling={"simulators": 8}, run=...)."""
    changes = {name: dataclasses.replace(getattr(config, name), **values) for name, values in groups.items()}
    return dataclasses.replace(config, **changes)


def budget(minutes: float, agent_steps: int = 0) -> dict[str, Any]:
    """The changes of `run` for a budget. Short runs report often, so that their rate can be told."""
    return {
        "minutes": minutes,
        "agent_steps": agent_steps,
        "max_updates": 0,
        "log_every_seconds": 1.0 if 0 < minutes <= 2 else 5.0,
    }


def game_name(game: str) -> str:
    """A game as part of a point's name."""
    return game.split("/")[-1].lower()
