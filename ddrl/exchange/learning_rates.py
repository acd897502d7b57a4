"""The learning rate of an update, and the linear schedules that it and the losses follow."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ddrl.exchange.settings import OptimizerConfig


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


def learning_rate(
    config: OptimizerConfig, version: int, effective_batch: int = 0, agent_steps_per_update: float = 0.0
) -> float:
    """The learning rate of the update that is applied to `version`.

    It is the schedule's rate, times the scaling by the effective batch, times the warm-up's factor.

    Args:
        config: settings of schedule, scaling and warm-up.
        version: number of updates behind the parameters.
        effective_batch: data-points per update; used if the rate is scaled by it.
        agent_steps_per_update: as in `anneal`.
    """
    rate = config.learning_rate
    if config.learning_rate_schedule == "linear":
        left = anneal(config, version, agent_steps_per_update)
        rate = config.learning_rate_end + (rate - config.learning_rate_end) * left
    if config.learning_rate_scaling != "none":
        growth = effective_batch / config.learning_rate_batch
        rate *= growth if config.learning_rate_scaling == "linear" else math.sqrt(growth)
    if config.warmup_updates:
        rate *= min((version + 1) / config.warmup_updates, 1.0)
    return rate


def rate_of(
    config: OptimizerConfig, effective_batch: int, agent_steps_per_update: float = 0.0
) -> Callable[[int], float]:
    """Returns `learning_rate` as a function of the version alone, with the other arguments fixed."""
    return lambda version: learning_rate(config, version, effective_batch, agent_steps_per_update)


def anneal_of(config: OptimizerConfig, agent_steps_per_update: float = 0.0) -> Callable[[int], float]:
    """Returns `anneal` as a function of the version alone, with the other arguments fixed."""
    return lambda version: anneal(config, version, agent_steps_per_update)
