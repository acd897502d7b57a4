"""Options that nothing in a run reads, such as Adam's epsilon with RMSProp: users are told of those that they chose.

What contradicts another setting is refused (`ddrl.config.validation`). These options only do nothing, and presets and
older runs have values for them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Any

from ddrl.config import FromDataPoints, TrainConfig
from ddrl.exchange.optimizers import Adam, Optimizer, RMSProp, rule_of
from ddrl.networks import is_own
from ddrl.option_values import setting_as_typed
from ddrl.types import ActionSpace, Continuous


def _of(config: TrainConfig, name: str) -> Any:
    """A setting of the algorithm; 0 if it has none of that name."""
    return getattr(config.algorithm, name, 0)


def _own(config: TrainConfig) -> bool:
    """Whether the algorithm is one of the system's: what the loss of a plugin's reads is not known."""
    return type(config.algorithm).__module__.startswith("ddrl.")


def _atari(config: TrainConfig) -> bool:
    from ddrl.envs.game_names import atari_rom

    return atari_rom(config.environment.game) is not None


def _has_emulator_threads(config: TrainConfig) -> bool:
    from ddrl.envs.protocols import find_protocol

    environment = config.environment
    native = find_protocol(environment.protocol).native and not environment.wrappers
    return environment.backend == "envpool" or (native and _atari(config))


def _beta_changes(config: TrainConfig) -> bool:
    replay = config.replay
    return replay.priority_exponent > 0 and replay.importance_exponent != replay.importance_exponent_end


def _changes(config: TrainConfig) -> bool:
    """Whether anything changes over the length of the schedules."""
    schedules = (_of(config, "entropy_cost_schedule"), _of(config, "clip_range_schedule"))
    starts = _of(config, "entropy_cost_start") or _of(config, "discount_start")
    return bool(_rate_changes(config) or "linear" in schedules or starts or not _own(config))


def _rate_changes(config: TrainConfig) -> bool:
    return config.optimizer.learning_rate_schedule != "constant"


def _reads_as(config: TrainConfig, optimizer: type[Optimizer]) -> bool:
    """Whether the optimizer reads the settings of this one; what the class of a plugin's reads is not known."""
    rule = rule_of(config.optimizer.optimizer)
    return issubclass(rule, optimizer) or not rule.__module__.startswith("ddrl.")


READ_BY: tuple[tuple[str, str, Callable[[TrainConfig], Any]], ...] = (
    ("protocol episode_frames", "an Atari game", _atari),
    ("simulator_processes", "--football-view map", lambda c: c.environment.football_view == "map"),
    ("fc_neurons", "--network ba3c", lambda c: c.network.network == "ba3c" or not is_own(c.network)),
    ("compute_dtype", "a network for images", lambda c: c.network.network != "mlp"),
    ("groups", "--schedule asynchronous",
     lambda c: c.sampling.schedule != "synchronized" or not isinstance(c.algorithm.learns_from, FromDataPoints)),
    ("refresh_every_steps", "a longer rollout, with --workers 2 or more,",
     lambda c: c.sampling.refresh_every_steps < c.rollout_length and c.exchange.workers > 1),
    ("simulator_threads", "EnvPool, or Atari in ale-py's threads,", _has_emulator_threads),
    ("queue_batches", "--schedule asynchronous without --actors",
     lambda c: c.sampling.schedule == "asynchronous" and not c.apex.actors),
    ("discount_start_share", "--discount-start above 0", lambda c: _of(c, "discount_start")),
    ("entropy_cost_start_share", "--entropy-cost-start above 0", lambda c: _of(c, "entropy_cost_start")),
    ("entropy_cost_schedule", "--entropy-cost above 0", lambda c: _of(c, "entropy_cost")),
    ("log_epsilon", "--clip-range 0", lambda c: not _of(c, "clip_range")),
    ("pool_batches", "--epochs 2 or more", lambda c: _of(c, "epochs") > 1),
    ("value_min value_max", "--atoms above 0", lambda c: _of(c, "atoms")),
    ("loss", "--atoms 0", lambda c: not _of(c, "atoms")),
    ("epsilon_start", "--epsilon-steps above 0", lambda c: _of(c, "epsilon_steps")),
    ("epsilon_ladder epsilon_values", "a run of two or more simulators",
     lambda c: c.acting_ranks * c.rows > 1),
    ("importance_exponent importance_exponent_end", "--priority-exponent above 0",
     lambda c: c.replay.priority_exponent),
    ("importance_agent_steps", "an importance exponent that changes", _beta_changes),
    ("importance_updates", "an importance exponent that changes, with --importance-agent-steps 0,",
     lambda c: _beta_changes(c) and not c.replay.importance_agent_steps),
    ("adam_epsilon beta1 beta2", "--optimizer adam", lambda c: _reads_as(c, Adam)),
    ("rmsprop_decay rmsprop_epsilon rmsprop_epsilon_inside", "--optimizer rmsprop or rmsprop-centered",
     lambda c: _reads_as(c, RMSProp)),
    ("learning_rate_end", "--learning-rate-schedule linear", _rate_changes),
    ("learning_rate_agent_steps", "a linear schedule", _changes),
    ("learning_rate_updates", "a linear schedule, with --learning-rate-agent-steps 0,",
     lambda c: _changes(c) and not c.optimizer.learning_rate_agent_steps),
    ("updates", "an exchange with parameter servers",
     lambda c: c.exchange.asynchronous == (c.exchange.updates == "asynchronous")),
    ("store_chunks", "--exchange central_store, with --workers 2 or more,",
     lambda c: c.exchange.kind.chunked and c.exchange.workers > 1),
    ("quorum quorum_deadline_seconds max_staleness local_steps", "--workers 2 or more",
     lambda c: c.exchange.workers > 1),
    ("on_worker_loss", "a run of several processes", lambda c: not c.single_process),
    ("eval_games eval_agent_steps eval_time_share evaluation_minutes final_evaluation_minutes", "an evaluator",
     lambda c: c.evaluation.evaluator),
    ("eval_every_updates", "an evaluator, with --eval-time-share above 0,",
     lambda c: c.evaluation.evaluator and c.evaluation.eval_time_share),
    ("checkpoint_every_minutes", "a run without --reset-at-checkpoint", lambda c: not c.run.reset_at_checkpoint),
)  # fmt: skip
"""Names of settings, what alone reads them, and whether a run has that."""


def reader(config: TrainConfig, name: str, space: ActionSpace | None = None) -> str:
    """What alone would read a setting that nothing in the run reads; empty where something reads it.

    Args:
        config: settings of the run.
        name: of the setting.
        space: of the game's actions (None: not known yet). Continuous ones are never random in evaluations.
    """
    if hasattr(config.algorithm, name) and not _own(config):
        return ""
    if name == "eval_epsilon" and isinstance(space, Continuous):
        return "a game with discrete actions"
    return next((of for names, of, met in READ_BY if name in names.split() and not met(config)), "")


def unread(config: TrainConfig, names: Collection[str], space: ActionSpace | None = None) -> list[str]:
    """A line for each of these settings that is on, and that nothing in the run reads; see `reader`."""
    groups = [getattr(config, group.name) for group in dataclasses.fields(config)]
    return [
        f"{setting_as_typed(field.name, value)} does nothing in this run: only {of} uses it"
        for group in groups
        for field in dataclasses.fields(group)
        if field.name in names and ((value := getattr(group, field.name)) or field.default)
        if (of := reader(config, field.name, space))
    ]
