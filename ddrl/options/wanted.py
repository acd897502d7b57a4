"""What `ddrl train` is to do: the settings of a command line, once its game and its checkpoint are known to exist."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from ddrl import algorithms
from ddrl.checkpoint import list_checkpoints
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.init_from import with_source_fixed
from ddrl.named_runs import go_on
from ddrl.options.game_settings import check_game, unusual
from ddrl.options.train_options import TrainArguments, parse, warn
from ddrl.options.unread import unread
from ddrl.reporting.loggers import check_names
from ddrl.types import Machine


class Wanted(NamedTuple):
    """What `ddrl train` is to do.

    Attributes:
        config: all settings.
        resume: the directory of the run to resume; None for a new run.
        trains_more: train further even if the run lacks only its final evaluation.
        minutes_of_run: --minutes is a budget of the whole run, as the other budgets are, and not of this start.
    """

    config: TrainConfig
    resume: Path | None
    trains_more: bool = False
    minutes_of_run: bool = False


def checked(argv: Sequence[str], machine: Machine, with_game: bool = True) -> Wanted:
    """What a command line asks for, after a check that its game and the checkpoint to resume from exist.

    Args:
        argv: the words after the command.
        machine: the machine on which they are read.
        with_game: check the game and its replay, too, and choose a network that fits the game if none was given.

    Raises:
        UsageError: the settings are refused, or the game or checkpoint does not exist.
    """
    return ready(parse(argv, machine, fit=with_game), machine, with_game)


def ready(
    arguments: TrainArguments, machine: Machine, with_game: bool = True, tell: Callable[[str], None] = warn
) -> Wanted:
    """As `checked`, for arguments that were read before.

    Args:
        arguments: from `train_options.parse` or `train_options.settings_of`.
        machine: the machine on which they were read.
        with_game: check the game and its replay, too, and tell the user what was chosen.
        tell: called with each text for the user.

    Raises:
        UsageError: as `checked`.
    """
    config, has_checkpoint = arguments.config, bool(arguments.resume and list_checkpoints(arguments.resume))
    if arguments.resume and not arguments.resume_or_start and not has_checkpoint:
        raise UsageError(f"--resume {arguments.resume}: {go_on(arguments.resume)}")
    check_names(config.run.loggers, config.run.callbacks)
    if with_game:
        config = config if has_checkpoint else with_source_fixed(config)
        space = check_game(config, machine, resumes=has_checkpoint)
        control = "mujoco" in {*algorithms.names()[arguments.algorithm].presets} - {arguments.preset}
        told = [] if arguments.resume else unusual(config, space, control)
        vain = [f"warning: {line}" for line in unread(config, arguments.chosen, space)]
        for note in (*arguments.notes, *vain, *told):
            tell(note)
    resume = Path(arguments.resume) if arguments.resume else None
    return Wanted(config, resume, arguments.trains_more, arguments.resume_or_start)
