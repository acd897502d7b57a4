"""Which settings go together with a replay. Each check names both sides, and what to do."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from ddrl import checks
from ddrl.config.algorithm import FromReplay, refuse_data
from ddrl.wording import counted, plural

if TYPE_CHECKING:
    from ddrl.config.settings import TrainConfig

SCHEDULES = ("standard", "concurrent")


def check(config: TrainConfig, data: FromReplay) -> None:
    """Refuses settings that contradict each other.

    Args:
        config: all settings.
        data: what its algorithm learns from.

    Raises:
        UsageError: with the setting to change.
    """
    sampling, optimizer, algorithm = config.sampling, config.optimizer, config.algorithm
    if config.apex.actors:
        return  # the rest is that of `ddrl.config.validation_apex`
    if sampling.schedule not in SCHEDULES:
        apart = "; asynchronous needs --actors of 1 or more" if sampling.schedule == "asynchronous" else ""
        why = f"{algorithm.name} learns from a replay; use {' or '.join(SCHEDULES)}{apart}"
        checks.refuse(sampling, "schedule", why)
    if not optimizer.batch_size:
        why = "a replay has no rollouts to take whole; give the number of transitions per gradient"
        checks.refuse(optimizer, "batch_size", why)
    why = f"{algorithm.name} acts with whole groups until its next update; leave it at 0"
    checks.unused(sampling, why, "rollout_length", "predictors", "predict_batch")
    if data.target_average and sampling.schedule == "concurrent":
        why = f"it acts with target networks that are copied, and {algorithm.name} averages its own; use standard"
        checks.refuse(sampling, "schedule", why)
    _check_periods(config, data)
    _check_replay(config, data)


def _check_periods(config: TrainConfig, data: FromReplay) -> None:
    algorithm, rows, steps = config.algorithm, config.rows, data.steps_per_update
    if steps % rows and rows % steps:
        why = f"{rows} simulators step together; it must divide their number, or be a multiple of it"
        refuse_data(algorithm, "steps_per_update", why)
    if data.target_average or not data.target_period % max(steps, rows):
        return
    if any(field.name == "target_updates" for field in dataclasses.fields(algorithm)):
        whole = rows // math.gcd(rows, steps)
        why = f"{rows} simulators step together; use a multiple of {whole}, so that periods are whole"
        checks.refuse(algorithm, "target_updates", why)
    why = f"must be a multiple of --steps-per-update {steps} and of the {rows} simulators, so that periods are whole"
    refuse_data(algorithm, "target_period", why)


def _check_replay(config: TrainConfig, data: FromReplay) -> None:
    replay, rows = config.replay, config.replay.replay_capacity // config.rows
    if replay.replay_minimum > replay.replay_capacity:
        why = f"must be at most --replay-capacity {replay.replay_capacity}, or learning could never begin"
        checks.refuse(replay, "replay_minimum", why)
    first = data.n_step * config.rows
    if replay.replay_minimum < first:
        steps = plural("step", data.n_step)
        why = f"the first transition takes --n-step {data.n_step} {steps} of {counted(config.rows, 'simulator')}"
        checks.refuse(replay, "replay_minimum", f"{why}; raise it to {first}")
    if data.n_step >= rows:
        room = f"with {counted(config.rows, 'simulator')}, the replay holds only {counted(rows, 'step')} of each"
        refuse_data(config.algorithm, "n_step", f"{room}; raise --replay-capacity")


def warnings(config: TrainConfig) -> list[str]:
    """What may be meant, and mostly is not: one line each."""
    data = config.replay_data
    if config.sampling.schedule != "concurrent" or not config.replay.priority_exponent:
        return []
    minibatches = data.target_period // data.steps_per_update
    late = f"--schedule concurrent sets priorities at the end of a target period, up to {minibatches} minibatches late"
    return [f"{late}, and acts with the parameters of its beginning; --schedule standard does neither"]
