"""Which settings go together. Each check names both sides, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddrl import checks
from ddrl.config import validation_apex, validation_replay
from ddrl.config.algorithm import (
    FromDataPoints,
    FromReplay,
    FromRollouts,
    FromUnrolls,
    data_of,
    refuse_data,
    refuse_single_advantages,
)
from ddrl.types import Discrete
from ddrl.wording import counted, plural

if TYPE_CHECKING:
    from ddrl.config.settings import TrainConfig


def check(config: TrainConfig) -> None:
    """Refuses settings that contradict each other.

    Raises:
        UsageError: with the setting to change.
    """
    checks.all_finite(config.algorithm)
    data = data_of(config.algorithm)
    validation_apex.check(config)
    if isinstance(data, FromReplay):
        validation_replay.check(config, data)
    else:
        _check_no_replay(config)
    if isinstance(data, FromDataPoints):
        _check_data_points(config, data)
    elif isinstance(data, FromUnrolls):
        _check_unrolls(config, data)
    elif isinstance(data, FromRollouts):
        _check_rollouts(config, data)
    config.algorithm.refuse(config)
    _check_layers(config)
    if not config.has_gaussian_policy:
        why = f"{config.algorithm.name} has no Gaussian policy; leave it out"
        checks.unused(config.network, why, "initial_log_deviation")
    if Discrete not in config.algorithm.takes and config.evaluation.eval_epsilon:
        why = f"{config.algorithm.name} is evaluated without noise; leave it at 0"
        checks.refuse(config.evaluation, "eval_epsilon", why)
    _check_drawn_actions(config)
    if config.exchange.workers < 2:
        why = "there is no other worker, and so nobody who waits for the last one; use --workers 2 or more"
        if config.apex.actors:
            why = "actors do not wait for each other, so there is no straggler; leave it out"
        checks.unused(config.environment, why, "step_time_straggler")
    _check_resets(config)
    _check_refresh(config)
    _check_deterministic(config)


def _check_drawn_actions(config: TrainConfig) -> None:
    """Of evaluations: they need a policy, and are random enough."""
    evaluation = config.evaluation
    if not evaluation.draws_actions:
        return
    if config.has_replay:
        why = f"{config.algorithm.name} has no policy that evaluations could draw from; leave it out"
        checks.refuse(evaluation, "eval_actions", why)
    if evaluation.eval_epsilon:
        checks.refuse(evaluation, "eval_epsilon", "drawn actions are random by themselves; use --eval-epsilon 0")


def warnings(config: TrainConfig) -> list[str]:
    """What may be meant, and mostly is not: one line each."""
    replay = validation_replay.warnings(config) if config.has_replay else []
    settings = config.algorithm
    if settings.normalize_rewards and settings.reward_clip:
        clip = f"--normalize-rewards normalizes what --reward-clip {settings.reward_clip:g} leaves of the rewards"
        replay.append(f"{clip}: they are clipped to +-10 afterward anyway; use --reward-clip 0")
    return replay + config.algorithm.warnings(config) + validation_apex.warnings(config)


def _check_layers(config: TrainConfig) -> None:
    if config.algorithm.dense_alone:
        if config.network.network != "mlp":
            why = f"{config.algorithm.name} has dense layers only (--policy-layers, --critic-layers); use mlp"
            checks.refuse(config.network, "network", why)
        why = f"{config.algorithm.name} has --policy-layers and --critic-layers; leave it out"
        checks.unused(config.network, why, "hidden_layers")
        return
    why = f"{config.algorithm.name} has the layers of --network; leave it out"
    checks.unused(config.network, why, "policy_layers", "critic_layers")


def _check_no_replay(config: TrainConfig) -> None:
    name = config.algorithm.name
    if config.sampling.schedule in validation_replay.SCHEDULES:
        why = f"{name} has no replay; leave it out, or train one that has a replay, such as dqn"
        checks.refuse(config.sampling, "schedule", why)
    checks.unused(config.replay, f"{name} has no replay; leave it out")


def _check_data_points(config: TrainConfig, data: FromDataPoints) -> None:
    sampling, optimizer, name = config.sampling, config.optimizer, config.algorithm.name
    if sampling.schedule == "double-buffered":
        checks.refuse(
            sampling, "schedule", f"{name} has no rollouts of one length; use synchronized, or train a2c or ppo"
        )
    _no_rollouts(config)
    checks.unused(sampling, f"{name} has a predictor thread for each of its --groups; leave it at 0", "predictors")
    if not optimizer.batch_size:
        why = f"{name} has no rollouts to take whole; give the number of data-points per gradient"
        checks.refuse(optimizer, "batch_size", why)
    if sampling.schedule == "asynchronous":
        return
    why = "the synchronized schedule waits for all simulators; leave it at 0, or use --schedule asynchronous"
    checks.unused(sampling, why, "predict_batch")
    if data.epochs > 1:
        why = f"the synchronized schedule uses each data-point of {name} once; use 1, or --schedule asynchronous"
        refuse_data(config.algorithm, "epochs", why)
    at_once = config.rows * data.unroll_length
    if optimizer.batch_size < at_once:
        players = " x players" * (config.rows > sampling.simulators)
        why = f"one step of the synchronized schedule can complete {at_once} data-points (--simulators x "
        why += f"--unroll-length{players}); raise it to {at_once}, or use --schedule asynchronous"
        checks.refuse(optimizer, "batch_size", why)


def _check_unrolls(config: TrainConfig, data: FromUnrolls) -> None:
    sampling, unroll = config.sampling, data.unroll_length
    if sampling.schedule != "asynchronous":
        why = f"{config.algorithm.name} corrects for the lag of --schedule asynchronous; use that, or train a2c"
        checks.refuse(sampling, "schedule", why)
    _no_rollouts(config)
    _whole_groups(config)
    step = unroll * (config.rows // sampling.groups)
    if config.batch_size % step:
        group = f"the {counted(step // unroll, 'simulator')} of a group"
        why = f"must be a multiple of {step}, which is --unroll-length {unroll} x {group}"
        why += ", since a batch has whole unrolls (or 0, for one of each simulator)"
        checks.refuse(config.optimizer, "batch_size", why)


def _no_rollouts(config: TrainConfig) -> None:
    why = f"{config.algorithm.name} learns from unrolls of --unroll-length; leave it at 0"
    checks.unused(config.sampling, why, "rollout_length")


def _check_rollouts(config: TrainConfig, data: FromRollouts) -> None:
    sampling, name, rollout = config.sampling, config.algorithm.name, config.rollout_length
    if sampling.schedule == "asynchronous":
        why = f"{name} learns from its own policy's rollouts; use synchronized or double-buffered, or train impala"
        checks.refuse(sampling, "schedule", why)
    _whole_groups(config)
    if rollout % data.unroll_length:
        why = f"must be a multiple of --unroll-length {data.unroll_length}: advantages reach to the end of an unroll"
        checks.refuse(sampling, "rollout_length", why)
    total = rollout * config.rows
    if total % config.batch_size:
        sizes = f"{rollout} {plural('step', rollout)} x {counted(config.rows, 'simulator')}"
        why = f"does not divide the rollout of {total} data-points ({sizes})"
        checks.refuse(config.optimizer, "batch_size", f"{why}; use a divisor of {total}, or 0 for the whole rollout")
    if data.normalize_advantages:
        refuse_single_advantages(config)
    if not data.shuffle and config.batch_size % config.rows:
        why = f"{name} takes whole steps of all simulators; use a multiple of {config.rows}"
        checks.refuse(config.optimizer, "batch_size", why)
    if sampling.schedule == "double-buffered":
        _check_double_buffered(config)


def _check_double_buffered(config: TrainConfig) -> None:
    exchange = config.exchange
    promise = "the lag of --schedule double-buffered is exactly one rollout"
    if exchange.asynchronous:
        checks.refuse(exchange, "updates", f"{promise}; use --updates synchronous, or --schedule synchronized")
    checks.unused(exchange, f"{promise}, so every gradient counts; leave it at 0", "quorum", "quorum_deadline_seconds")


def _whole_groups(config: TrainConfig) -> None:
    group = config.rows // config.sampling.groups
    if config.sampling.predictors and 0 < config.sampling.predict_batch < group:
        why = f"predictors take whole groups, here of {group} observations, one of each player; 0 takes all"
        checks.refuse(config.sampling, "predict_batch", why)
    if config.sampling.predict_batch and not config.sampling.predictors:
        name = config.algorithm.name
        why = f"{name} steps whole groups; use more --groups for smaller queries, --predictors for larger ones"
        checks.refuse(config.sampling, "predict_batch", why)


def _check_resets(config: TrainConfig) -> None:
    run, exchange = config.run, config.exchange
    if config.environment.reset == "in-pause":
        if config.sampling.schedule == "asynchronous":
            why = "the asynchronous schedule has no pause to reset in; use at-once or swap"
            checks.refuse(config.environment, "reset", why)
        if config.sampling.schedule == "concurrent":
            why = "a target period has no pause to reset in, and simulators would idle; use at-once or swap"
            checks.refuse(config.environment, "reset", why)
        if isinstance(config.algorithm.learns_from, FromDataPoints):
            why = f"{config.algorithm.name} has no rollouts to reset between; use at-once or swap"
            checks.refuse(config.environment, "reset", why)
    if not run.reset_at_checkpoint:
        return
    if config.sampling.schedule not in ("synchronized", "standard"):
        reasons = {
            "asynchronous": "asynchronous acting never resumes to the bit; use --schedule synchronized",
            "double-buffered": "a rollout is in progress at every checkpoint; use --schedule synchronized",
            "concurrent": "a period is in progress at every checkpoint; use --schedule standard",
        }
        checks.refuse(run, "reset_at_checkpoint", reasons[config.sampling.schedule])
    if exchange.may_close_early:
        checks.refuse(
            run, "reset_at_checkpoint", "workers that miss a step cannot reset with the others; leave out the quorum"
        )
    if exchange.asynchronous:
        why = "with asynchronous updates no run equals another; leave it out"
        checks.refuse(run, "reset_at_checkpoint", why)
    if not run.checkpoint_every_updates:
        why = "games begin anew with the same updates in every run; say with which: --checkpoint-every-updates"
        checks.refuse(run, "reset_at_checkpoint", why)


def _check_refresh(config: TrainConfig) -> None:
    sampling, exchange = config.sampling, config.exchange
    if not sampling.refresh_every_steps:
        return
    if sampling.schedule != "synchronized" or isinstance(config.algorithm.learns_from, FromDataPoints):
        why = "only rollouts of the synchronized schedule can be refreshed; leave it at 0"
        checks.refuse(sampling, "refresh_every_steps", why)
    if not exchange.kind.refreshes:
        why = "nothing newer comes before a rollout ends; use --exchange central_store, or 0"
        checks.refuse(sampling, "refresh_every_steps", why)


def _check_deterministic(config: TrainConfig) -> None:
    """What --deterministic cannot promise anything of."""
    if not config.run.deterministic:
        return
    promise = "--deterministic promises equal bits for an equal seed"
    sampling, exchange = config.sampling, config.exchange
    if sampling.schedule == "asynchronous":
        why = f"{promise}, and here timing decides which parameters act; use synchronized or double-buffered"
        checks.refuse(sampling, "schedule", why)
    if exchange.asynchronous and exchange.updates == "synchronous":  # by its nature, then
        why = f"{promise}, and its workers update parameters in any order; use allreduce or parameter_server"
        checks.refuse(exchange, "exchange", why)
    if exchange.updates == "asynchronous":
        why = f"{promise}, and gradients are applied in the order that they arrive; use --updates synchronous"
        checks.refuse(exchange, "updates", why)
    why = f"{promise}, and timing decides whose gradients make a quorum; leave it at 0"
    checks.unused(exchange, why, "quorum", "quorum_deadline_seconds")
