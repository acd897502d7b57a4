"""What studies of the Q-learning family share: batches of any size at one training intensity, and evaluations."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

import numpy as np

from ddrl import checks
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.studies.curves import CAPTIONS, EVALUATION, ONLINE
from ddrl.studies.settings import Budget, budget, changed, check_budget

INTENSITY = 8  # uses of each transition, whatever the batch
RATE_FACTORS: Mapping[str, Mapping[int, float]] = {
    "dqn": {32: 1.0, 512: 3.0, 1024: 6.0},
    "categorical-dqn": {32: 1.0, 256: 1.68},
    "rainbow": {32: 1.0},
}
"""Learning rate by batch size, over that of batch 32 (Stooke and Abbeel 2018, section 5.4.1)."""
EPSILONS = {"categorical-dqn": 0.01, "rainbow": 0.005}
"""Adam's epsilon times the batch size."""
WHOLE_TIME = 1.0  # share of a run's time that its evaluations may take: they are never put off
LONGEST_EVALUATION_MINUTES = 60.0


@dataclasses.dataclass(frozen=True)
class Scored(Budget):
    """Budget and scores of a point."""

    score: Literal["evaluation", "online"] = "evaluation"
    """evaluation: of games with frozen parameters, which take time of their own; online: of training games."""
    eval_every_steps: int = 250_000
    """Agent steps between evaluations."""
    eval_games: int = 30
    """Games of an evaluation."""
    eval_agent_steps: int = 0
    """Agent steps of one evaluation, in which games follow each other (0: --eval-games); Stooke and Abbeel 2018: 125,000."""
    eval_epsilon: float = 0.05
    """Probability of a random action in evaluations."""

    @property
    def caption(self) -> str:
        """What the scores are."""
        return CAPTIONS[self.score_name].replace("greedy games", f"games of epsilon {self.eval_epsilon:g}")

    @property
    def score_name(self) -> str:
        """As in the records of a run."""
        return ONLINE if self.score == "online" else EVALUATION


def check_scored(settings: Scored) -> None:
    """Refuses what no run can do."""
    check_budget(settings)
    checks.known(settings)
    checks.at_least(settings, 1, "eval_every_steps", "eval_games")
    checks.between(settings, 0.0, 1.0, "eval_epsilon", why="a probability")


def scored(settings: Scored, config: TrainConfig, seed: int) -> TrainConfig:
    """The settings with the study's budget and evaluations, and a seed."""
    # What a record says of agent steps is as old as the last report.
    report = {"log_every_seconds": 0.3} if settings.quick else {}
    return changed(
        config,
        run=budget(settings.minutes, settings.agent_steps) | report | {"seed": seed},
        evaluation={
            "evaluator": settings.score == "evaluation",
            "eval_games": settings.eval_games,
            "eval_epsilon": settings.eval_epsilon,
            "eval_agent_steps": settings.eval_agent_steps,
            "eval_every_updates": max(1, settings.eval_every_steps // steps_per_update(config)),
            "eval_time_share": WHOLE_TIME,
            "evaluation_minutes": LONGEST_EVALUATION_MINUTES,
        },
    )


def steps_per_update(config: TrainConfig) -> int:
    """Agent steps of all workers in one update."""
    return config.replay_data.steps_per_update * config.effective_batch // config.batch_size


def rate_factor(algorithm: str, size: int) -> float:
    """Between two of the published sizes on the line through their logarithms, beyond them as at the last one."""
    sizes, factors = zip(*sorted(RATE_FACTORS[algorithm].items()))
    return float(np.exp(np.interp(np.log(size), np.log(sizes), np.log(factors))))


def with_batch(config: TrainConfig, algorithm: str, size: int, rate: float = 0.0) -> TrainConfig:
    """Batches of another size, and fewer updates, so that every transition is used as often.

    The target period is rounded to whole updates. RMSProp's epsilon, inside the root, falls with the square of the
    batch: the published one belongs to gradients that are summed.

    Args:
        algorithm: dqn, categorical-dqn, rainbow.
        rate: learning rate (0: it grows as published).

    Raises:
        UsageError: a size that is not a multiple of 8.
    """
    if size % INTENSITY:
        raise UsageError(f"batch size {size}: give a multiple of {INTENSITY}, the uses of each transition")
    before, steps = config.optimizer, size // INTENSITY
    growth = rate_factor(algorithm, size) / rate_factor(algorithm, before.batch_size)
    optimizer = {"batch_size": size, "learning_rate": rate or before.learning_rate * growth}
    if algorithm in EPSILONS:
        optimizer["adam_epsilon"] = EPSILONS[algorithm] / size
    if before.optimizer == "rmsprop-centered":
        optimizer["rmsprop_epsilon"] = before.rmsprop_epsilon * (before.batch_size / size) ** 2
    unit = max(steps, config.rows)
    period = max(1, round(config.replay_data.target_period / unit)) * unit
    return changed(config, optimizer=optimizer, algorithm={"steps_per_update": steps, "target_period": period})
