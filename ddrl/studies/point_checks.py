"""What the settings of all points of a study are refused for, or warned of, before its first point runs."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable
from typing import Any

from ddrl import checks
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.option_values import setting_as_typed
from ddrl.options.named_settings import differences
from ddrl.options.unread import reader, unread
from ddrl.studies.settings import StudySettings, TrainingSettings, base_config
from ddrl.types import Machine


def check_heard(settings: StudySettings, configs: Iterable[TrainConfig], machine: Machine) -> None:
    """Refuses an option in --train-options that no point heeds, because the study sets the same option itself.

    Args:
        configs: settings of all points.

    Raises:
        UsageError: there is such an option.
    """
    unheard = _given(settings)
    for config in configs:
        if not unheard:
            return
        try:
            given = base_config(settings, config.algorithm.name, config.environment.game, machine)
        except UsageError:  # the options are valid only together with those that the study sets
            return
        unheard = {name for name in unheard if _value(given, name) not in (None, _value(config, name))}
    if unheard:
        option = checks.flag(min(unheard))
        raise UsageError(f"--train-options {option}: the study sets {option} itself, in every run; leave it out")


def unread_by_all(settings: StudySettings, configs: Iterable[TrainConfig]) -> list[str]:
    """A line for each option in --train-options that no point reads.

    Args:
        configs: settings of all points.
    """
    given = _given(settings)
    lines = [unread(config, given) for config in configs] if given else []
    return [line for line in lines[0] if all(line in others for others in lines)] if lines else []


def refuse_equal(configs: Iterable[TrainConfig]) -> None:
    """Refuses points of one algorithm and game that differ only in what neither of them reads: they would be compared,
    and are the same.

    Raises:
        UsageError: there are such points.
    """
    compared: dict[tuple[str, str], list[TrainConfig]] = {}
    for config in configs:
        compared.setdefault((config.title, config.environment.game), []).append(config)
    for alike in compared.values():
        names = [each.name.replace("-", "_") for each in differences(alike)]
        # Nothing is learned from settings of evaluation and run, and studies set them themselves.
        names = [name for name in names if not (hasattr(alike[0].evaluation, name) or hasattr(alike[0].run, name))]
        known: dict[Any, TrainConfig] = {}
        for config in alike:
            read = tuple((name, _value(config, name)) for name in names if not reader(config, name))
            other = known.setdefault(read, config)
            for name in names:
                typed = {setting_as_typed(name, _value(each, name)) for each in (other, config)}
                if len(typed) > 1:
                    why = f"points differ in it, and only {reader(config, name)} uses it; leave it out"
                    raise UsageError(f"{' and '.join(sorted(typed))}: {why}")


def check_environments(configs: Iterable[TrainConfig]) -> None:
    """Raises UsageError for a game that cannot be made here, or fails when it is tried, for options that its network
    does not read, and for points that differ only in settings that none of them reads, before a study begins.

    Once a study has begun, its points record such failures themselves, as the tasks of a Slurm array must.
    """
    from ddrl.options.game_settings import refuse_not_finite, refuse_unread, tried_game

    configs = list(configs)
    refuse_equal(configs)
    for config in configs:
        game = tried_game(config.environment)
        refuse_not_finite(config, game)
        refuse_unread(config, game)


def _given(settings: StudySettings) -> set[str]:
    """Names in snake case of the options in --train-options."""
    words = shlex.split(settings.train_options) if isinstance(settings, TrainingSettings) else []
    names = {word.removeprefix("--").partition("=")[0].replace("-", "_") for word in words if word.startswith("--")}
    return {name.removeprefix("no_") for name in names}


def _value(config: TrainConfig, name: str) -> Any:
    """The value of a setting in whichever group has it; None if none has."""
    groups = [getattr(config, group.name) for group in dataclasses.fields(config)]
    return next((getattr(group, name) for group in groups if hasattr(group, name)), None)
