"""Checks settings together with their game, chooses a network that fits it, and warns of settings seldom meant."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from cluster.job import detect_job
from ddrl import algorithms, checks
from ddrl.config import EnvironmentConfig, TrainConfig
from ddrl.config.settings import CONVOLUTIONAL, DENSE
from ddrl.errors import UsageError
from ddrl.exchange.step_functions import named_step_function
from ddrl.init_from import source_of
from ddrl.networks import is_own
from ddrl.structured import field_types, float_fields, legal_actions
from ddrl.trial import try_network
from ddrl.types import ActionSpace, Continuous, Machine

if TYPE_CHECKING:
    from ddrl.envs.base import GameFacts, Step

TRIAL_SEED = 0  # whatever --seed is, so that the runs of a study share a trial


@dataclasses.dataclass
class TriedGame:
    """What is known of a game that was tried before any rank starts.

    Attributes:
        observation_shape, observation_dtype, action_space, stamp: as `GameFacts`.
        rows: what its first reset and its first step gave; empty for a game that needs no trial.
    """

    observation_shape: tuple[int, ...]
    observation_dtype: np.dtype
    action_space: ActionSpace
    stamp: dict
    rows: tuple[Step, ...]


def check_game(config: TrainConfig, machine: Machine, resumes: bool = False) -> ActionSpace:
    """Checks settings and their game before any rank starts; returns the space of the game's actions.

    Args:
        config: settings.
        machine: the machine on which they are checked.
        resumes: a run goes on from a checkpoint of its own. It no longer needs that of --init-from, which may be gone,
            and keeps options of its network that do nothing.

    Raises:
        UsageError: neither the emulator nor Gymnasium has the game; its reset or step fails, or gives what a run would
            refuse; the algorithm does not take its actions; a user's network does not suit it, or a user's step
            function cannot be compiled; the network does not read an option; parameters of --init-from do not suit the
            network; or a replay, rollouts, or batches do not fit into the memory here. Ranks elsewhere check theirs.
    """
    from ddrl.memory import check_replay, check_rollouts, replays_of

    game = tried_game(config.environment)
    refuse_not_finite(config, game)
    algorithms.check_action_space(config, game.action_space)
    if step := named_step_function(config.optimizer.optimizer):
        step.kernel()
    if resumes:
        config = config.changed(run={"init_from": ""})
    else:
        refuse_unread(config, game)
    if not is_own(config.network):
        try_network(config, game)  # and --init-from: only the process that makes it knows its tensors
    elif config.run.init_from:
        network = algorithms.network_for(config, game.observation_shape, game.observation_dtype, game.action_space)
        source_of(config.run.init_from, network.parameter_shapes)
    in_job = detect_job(os.environ) is not None  # whose other ranks may be on other machines
    check_replay(config, game, 1 if in_job else replays_of(config), machine.memory_bytes)
    check_rollouts(config, game, 1 if in_job else config.exchange.workers, machine.memory_bytes)
    return game.action_space


def tried_game(config: EnvironmentConfig) -> TriedGame:
    """Tries a game before any rank starts: an environment that a user may have written is reset and stepped once.

    It is tried once for all that ask in a command, also if it fails: making it may take a user's environment minutes.

    Raises:
        UsageError: the game cannot be made; or its reset or step fails, or gives what a run would refuse, too.
    """
    from ddrl.envs import for_trial

    tried = _trial(for_trial(config))
    if isinstance(tried, UsageError):
        raise tried
    return tried


@functools.cache
def _trial(config: EnvironmentConfig) -> TriedGame | UsageError:
    """What came of a trial; the environment itself, which may be large, is not kept."""
    from ddrl.envs import is_light, make_for_trial
    from ddrl.envs.spaces import no_actions

    rows: tuple[Step, ...] = ()
    try:
        with contextlib.closing(make_for_trial(config)) as game:
            if is_light(config):
                game.reset(TRIAL_SEED)
                start = game.recv()
                game.send(no_actions(game.action_space, len(start.env_id), legal_actions(start.observation)))
                rows = start, game.recv()
            return TriedGame(game.observation_shape, game.observation_dtype, game.action_space, game.stamp, rows)
    except UsageError as error:
        return error


def forget_trials() -> None:
    """Has games tried anew: in a notebook, they may have changed since the last run."""
    _trial.cache_clear()


def refuse_not_finite(config: TrainConfig, tried: TriedGame) -> None:
    """Raises UsageError if a first observation or the first step is not finite, so that a run could not learn from it.

    A replay leaves such steps out, and a user's network may know how to read such observations. Rewards are looked at
    as they are learned from: clipped, an infinite one is finite.
    """
    if not tried.rows or config.has_replay:
        return
    game, (start, step) = config.environment.game, tried.rows
    if is_own(config.network):
        if wrong := _not_finite(start.observation):
            raise UsageError(f"{game} begins with {wrong}: have its reset give finite numbers")
        if wrong := _not_finite(step.observation):
            raise UsageError(f"{game} gave {wrong} from its first step: have it give finite numbers")
    wrong_rewards = step.reward[~np.isfinite(step.reward)]
    if wrong_rewards.size and not np.isfinite(config.algorithm.transform_reward(wrong_rewards)).all():
        raise UsageError(f"{game} gave the reward {wrong_rewards[0]} from its first step: have it give finite numbers")


def _not_finite(observation: np.ndarray) -> str:
    """The first number of observations [rows, ...] that is not finite, and where it is; empty if all are finite."""
    for name in float_fields(observation.shape[1:], observation.dtype):
        part = observation[name] if name else observation
        if not np.isfinite(part).all():
            return f"{part[~np.isfinite(part)][0]} in its observation{f' {name}' if name else ''}"
    return ""


def refuse_unread(config: TrainConfig, game: GameFacts) -> None:
    """Refuses options of the network that the network of a new run would not read; a user's network may read all."""
    from ddrl.networks.structured import StructuredNetwork

    network = config.network
    if is_own(network) and network.network != "ba3c":
        checks.unused(network, "only --network ba3c has this layer; leave it out", "fc_neurons")
    if not isinstance(game.action_space, Continuous):
        why = f"actions of {config.environment.game} are not continuous, so they have no deviation; give 0"
        checks.unused(network, why, "initial_log_deviation")
    shape, dtype = game.observation_shape, game.observation_dtype
    if network.network not in DENSE or not field_types(dtype):
        return
    if isinstance(algorithms.network_for(config, shape, dtype, game.action_space), StructuredNetwork):
        why = f"observations of {config.environment.game} have an image among their entries, and its network has "
        why += "layers of its own; leave it out, or the preset that sets it"
        checks.unused(network, why, "hidden_layers", "activation", "layer_norm")


def with_fitting_network(config: TrainConfig) -> tuple[TrainConfig, str]:
    """The settings with mlp in place of a network for images if the game has no images, and a note of that.

    Otherwise the settings as they are, and an empty note.

    Raises:
        UsageError: as `tried_game`, if it takes a trial to know.
    """
    from ddrl.envs.game_names import FOOTBALL, atari_rom

    game, network = config.environment.game, config.network.network
    if network not in CONVOLUTIONAL or game.startswith(FOOTBALL) or atari_rom(game) is not None:
        return config, ""
    tried = tried_game(config.environment)
    shape, dtype, space = tried.observation_shape, tried.observation_dtype, tried.action_space
    try:
        algorithms.network_for(config, shape, dtype, space)
    except UsageError:
        with contextlib.suppress(UsageError):  # it is the actions or other settings that do not fit
            fitting = config.changed(network={"network": DENSE[0]})
            algorithms.network_for(fitting, shape, dtype, space)
            note = f"{game} has no images, which --network {network} needs; using --network {DENSE[0]}"
            return fitting, note
    return config, ""


def unusual(config: TrainConfig, space: ActionSpace, presets: bool) -> Iterator[str]:
    """Yields warnings of settings that suit Atari, but are seldom meant for a game with continuous actions.

    Args:
        config: settings of a new run.
        space: space of the game's actions.
        presets: whether another preset of the algorithm is for continuous control.
    """
    clip = config.algorithm.reward_clip
    if isinstance(space, Continuous) and clip and not config.algorithm.normalize_rewards:
        remedy = f"--reward-clip 0{', or --preset mujoco' if presets else ''}"
        clipped = f"rewards of {config.environment.game} are clipped to [-{clip:g}, {clip:g}] for learning"
        yield f"warning: {clipped}, like those of Atari games; give {remedy}"
