"""The settings of runs by their names on the command line: given from Python, written to a file, and compared."""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ddrl import algorithms, checks, rundir
from ddrl.checks import flag, hyphenated
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.options.config_files import yaml_text
from ddrl.options.other_libraries import meant_by

ALGORITHM = "algorithm"
OWN = ("run-dir",)  # settings in which runs always differ
RULES = ("eval-actions", "eval-epsilon", "eval-agent-steps")
"""Settings of evaluations that change the scores of one and the same policy."""


class Difference(NamedTuple):
    """A setting, and its value in each run; None where a run's algorithm has no such setting."""

    name: str
    values: tuple[Any, ...]


def with_settings(config: TrainConfig, names: Mapping[str, Any]) -> TrainConfig:
    """`config` with new values of settings that are named as on the command line, in snake case.

    Raises:
        UsageError: there is no such setting, a value has another type, or the settings are refused.
    """
    changes: dict[str, dict[str, Any]] = {}
    for name, (place, value) in typed(config, names).items():
        changes.setdefault(place, {})[name] = value
    return config.changed(**changes)


def typed(config: TrainConfig, names: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Name in snake case -> group and value, of the type that the setting has.

    Raises:
        UsageError: there is no such setting, or a value has another type.
    """
    groups: dict[str, tuple[str, Any]] = {}
    for group in dataclasses.fields(config):
        settings = getattr(config, group.name)
        hints = checks.hints(settings.__class__)
        groups |= {setting.name: (group.name, hints[setting.name]) for setting in dataclasses.fields(settings)}
    values: dict[str, tuple[str, Any]] = {}
    for name, value in names.items():
        if name not in groups:
            meant = algorithms_with(name) or meant_by(name, groups) or ": `ddrl train --help` lists all"
            raise UsageError(f"{name:.80}: {config.title} has no such setting{meant}")
        place, hint = groups[name]
        values[name] = place, rundir.decode_value(hint, plain(value, hint), flag(name))
    return values


def algorithms_with(name: str) -> str:
    """The end of a refusal that says which algorithms have a setting that another one lacks; empty if none has."""
    field = name.replace("-", "_")
    having = [
        title
        for title in algorithms.names()
        if field in {field.name for field in dataclasses.fields(algorithms.algorithm_named(title).settings)}
    ]
    return f"; {', '.join(having)} {'have' if len(having) > 1 else 'has'} it" if having else ""


def plain(value: Any, hint: Any) -> Any:
    """A value from Python as a setting has it: NumPy's numbers and arrays, paths, and whole floats such as 1e6 are
    converted, also in lists."""
    value = value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if typing.get_origin(hint) is tuple and isinstance(value, (list, tuple)):
        return [plain(item, typing.get_args(hint)[0]) for item in value]
    kinds = typing.get_args(hint) or (hint,)
    whole = isinstance(value, float) and value.is_integer() and int in kinds and float not in kinds
    return int(value) if whole else value


def by_group(config: TrainConfig) -> dict[str, dict[str, Any]]:
    """Group -> name, with hyphens -> value, for all settings."""
    return {
        group.name: {hyphenated(field.name): getattr(getattr(config, group.name), field.name) for field in fields}
        for group in dataclasses.fields(config)
        if (fields := dataclasses.fields(getattr(config, group.name)))
    }


def by_name(config: TrainConfig) -> dict[str, Any]:
    """Name, with hyphens -> value, for all settings; first comes the name of the algorithm."""
    values = {name: value for group in by_group(config).values() for name, value in group.items()}
    return {ALGORITHM: config.title} | values


def differences(configs: Sequence[TrainConfig]) -> list[Difference]:
    """The settings that are not the same in all runs, except for the run directory."""
    named = [by_name(config) for config in configs]
    names = dict.fromkeys(name for values in named for name in values if name not in OWN)
    found = [Difference(name, tuple(values.get(name) for values in named)) for name in names]
    return [each for each in found if any(value != each.values[0] for value in each.values)]


def as_yaml(config: TrainConfig, algorithm: str, preset: str, heading: Sequence[str], run_dir: bool = True) -> str:
    """A file for --config with every setting of a run.

    Args:
        algorithm, preset: as on the command line.
        heading: lines of a comment at the top.
        run_dir: include the run directory.
    """
    first: dict[str, Any] = {ALGORITHM: algorithm, "preset": preset}
    if config.run.plugins:
        first["plugin"] = config.run.plugins
    groups = {"": first, **by_group(config)}
    groups["run"].pop("plugins")  # whose option is --plugin
    if not run_dir:
        groups["run"] = {name: value for name, value in groups["run"].items() if name not in OWN}
    return yaml_text(groups, heading)
