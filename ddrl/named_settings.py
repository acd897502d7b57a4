"""The settings of runs by their names on the command line: written to a file, and compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from ddrl.checks import flag
from ddrl.config import TrainConfig
from ddrl.config_files import yaml_text

ALGORITHM = "algorithm"
OWN = ("run-dir",)  # of each run, whatever else it shares with others


class Difference(NamedTuple):
    """A setting, and its value in each run; None where a run's algorithm has no such setting."""

    name: str
    values: tuple[Any, ...]


def by_group(config: TrainConfig) -> dict[str, dict[str, Any]]:
    """Group -> names -> values."""
    return {
        group.name: {flag(field.name)[2:]: getattr(getattr(config, group.name), field.name) for field in fields}
        for group in dataclasses.fields(config)
        if (fields := dataclasses.fields(getattr(config, group.name)))
    }


def by_name(config: TrainConfig) -> dict[str, Any]:
    """Names -> values, the algorithm's own name first."""
    values = {name: value for group in by_group(config).values() for name, value in group.items()}
    return {ALGORITHM: config.title} | values


def differences(configs: Sequence[TrainConfig]) -> list[Difference]:
    """The settings that are not the same in all runs, but for where they are."""
    named = [by_name(config) for config in configs]
    names = dict.fromkeys(name for values in named for name in values if name not in OWN)
    found = [Difference(name, tuple(values.get(name) for values in named)) for name in names]
    return [each for each in found if any(value != each.values[0] for value in each.values)]


def as_yaml(config: TrainConfig, algorithm: str, preset: str, heading: Sequence[str], run_dir: bool = True) -> str:
    """A file for --config with every setting of a run.

    Args:
        algorithm, preset: as on the command line.
        heading: lines of comment above all.
        run_dir: the directory, too.
    """
    first: dict[str, Any] = {ALGORITHM: algorithm, "preset": preset}
    if config.run.plugins:
        first["plugin"] = config.run.plugins
    groups = {"": first, **by_group(config)}
    groups["run"].pop("plugins")  # whose option is --plugin
    if not run_dir:
        groups["run"] = {name: value for name, value in groups["run"].items() if name not in OWN}
    return yaml_text(groups, heading)
