"""The learning rate of an update, and the linear schedules that it and the losses follow."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ddrl.exchange.settings import OptimizerConfig


def anneal(config: OptimizerConfig, version: Any, agent_steps_per_update: float = 0.0) -> Any:
    """What is left of the linear schedules at `version`: alpha, from 1 to 0 (Schulman et al. 2017, table 5).

    Args:
        config: how long they run.
        version: updates behind the parameters; an array of versions gives one of what is left.
        agent_steps_per_update: of all workers; needed where the schedules run over agent steps.

    Raises:
        ValueError: it is needed and not there, so that nothing would ever fall.
    """
    if config.learning_rate_agent_steps:
        if agent_steps_per_update <= 0.0:
            raise ValueError("schedules over agent steps need the agent steps of an update")
        return 1.0 - np.minimum(version * agent_steps_per_update / config.learning_rate_agent_steps, 1.0)
    return 1.0 - np.minimum(version / config.learning_rate_updates, 1.0)


def learning_rate(
    config: OptimizerConfig, version: int, effective_batch: int = 0, agent_steps_per_update: float = 0.0
) -> float:
    """Learning rate of the update that is applied to `version`.

    It is that of the schedule, times the growth with the effective batch (data-points per update), times the warm-up.

    Args:
        config: of the schedule.
        version: updates behind the parameters.
        effective_batch: data-points per update; used where the rate grows with it.
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
    """`learning_rate` of a run of such `effective_batch` and `agent_steps_per_update`, as a function of the version."""
    return lambda version: learning_rate(config, version, effective_batch, agent_steps_per_update)


def anneal_of(config: OptimizerConfig, agent_steps_per_update: float = 0.0) -> Callable[[int], float]:
    """`anneal` of a run of such `agent_steps_per_update`, as a function of the version."""
    return lambda version: anneal(config, version, agent_steps_per_update)
