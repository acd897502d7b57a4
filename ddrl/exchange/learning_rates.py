"""The learning rate of an update, and the share of the schedules that is left, which it and the losses follow.

`plugins.learning_rate_schedules` has the schedules of the learning rate by their names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ddrl import plugins
from ddrl.errors import UsageError, in_one_line, raised_at

if TYPE_CHECKING:
    from ddrl.exchange.settings import OptimizerConfig


def constant(left: float, start: float, end: float) -> float:
    """The rate at the start, always."""
    return start


def linear(left: float, start: float, end: float) -> float:
    """From the rate at the start to that at the end, in proportion to what is left."""
    return end + (start - end) * left


plugins.register_learning_rate_schedule("constant", constant)
plugins.register_learning_rate_schedule("linear", linear)


def anneal(config: OptimizerConfig, version: Any, agent_steps_per_update: float = 0.0) -> Any:
    """The factor alpha of linear schedules at `version`, which falls from 1 to 0 (Schulman et al. 2017, table 5).

    Args:
        config: settings with the length of the schedules.
        version: number of updates behind the parameters; for an array of versions, the result is an array.
        agent_steps_per_update: agent steps of all workers in one update; needed if the schedules run over agent steps.

    Raises:
        ValueError: `agent_steps_per_update` is needed, but not given; the factor would never fall.
    """
    if config.learning_rate_agent_steps:
        if agent_steps_per_update <= 0.0:
            raise ValueError("schedules over agent steps need the agent steps of an update")
        return 1.0 - np.minimum(version * agent_steps_per_update / config.learning_rate_agent_steps, 1.0)
    return 1.0 - np.minimum(version / config.learning_rate_updates, 1.0)


def check_schedule(config: OptimizerConfig) -> None:
    """Tries the schedule of the learning rate at its start, in its middle, and at its end.

    Raises:
        UsageError: it has no such options, fails, or gives no rate.
    """
    schedule, text = _schedule_of(config), config.learning_rate_schedule
    for left in (1.0, 0.5, 0.0):
        try:
            schedule(left)
        except UsageError:
            raise
        except Exception as error:
            why = f"{in_one_line(error)}{raised_at(error)}"
            raise UsageError(f"--learning-rate-schedule {text:.80}: its function fails: {why}; fix it") from error


def rate_of(
    config: OptimizerConfig, effective_batch: int, agent_steps_per_update: float = 0.0
) -> Callable[[int], float]:
    """A function that gives the learning rate of the update that is applied to a version.

    It is the schedule's rate, times the scaling by the effective batch, times the warm-up's factor. The function raises
    a UsageError where the schedule of a plugin gives no rate.

    Args:
        config: settings of schedule, scaling, and warm-up.
        effective_batch: data-points per update; used if the rate is scaled by it.
        agent_steps_per_update: as in `anneal`.
    """
    schedule, scale = _schedule_of(config), 1.0
    if config.learning_rate_scaling != "none":
        growth = effective_batch / config.learning_rate_batch
        scale = growth if config.learning_rate_scaling == "linear" else math.sqrt(growth)

    def at(version: int) -> float:
        rate = schedule(anneal(config, version, agent_steps_per_update)) * scale
        if config.warmup_updates:
            rate *= min((version + 1) / config.warmup_updates, 1.0)
        return rate

    return at


def _schedule_of(config: OptimizerConfig) -> Callable[[float], float]:
    """The schedule that the settings name, as a function of what is left of it; it refuses what is no rate."""
    text, ends = config.learning_rate_schedule, (config.learning_rate, config.learning_rate_end)
    schedule = plugins.learning_rate_schedules.with_options("learning-rate-schedule", text)

    def at(left: float) -> float:
        rate = schedule(left, *ends)
        if not isinstance(rate, (int, float, np.number)) or not 0.0 <= rate < math.inf:
            raise UsageError(
                f"--learning-rate-schedule {text:.80}: where {left:g} of it is left, its function gave {rate!r:.80}; "
                "have it return a finite number of at least 0"
            )
        return float(rate)

    return at


def anneal_of(config: OptimizerConfig, agent_steps_per_update: float = 0.0) -> Callable[[int], float]:
    """Returns `anneal` as a function of the version alone, with the other arguments fixed."""
    return lambda version: anneal(config, version, agent_steps_per_update)
