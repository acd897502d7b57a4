"""The phase of a run, and an estimate of the time until its command ends, with learning curve and video."""

from __future__ import annotations

import math
from typing import Any

from ddrl.checkpoint import Checkpoint
from ddrl.config import TrainConfig
from ddrl.config.evaluation import WHOLE_GAMES_SECONDS
from ddrl.reporting.phases import EVALUATING, STARTING, TRAINING, drawing_seconds
from ddrl.roles.evaluations import Evaluations
from ddrl.wording import plural


class TimeLeft:
    """Estimates the time that is left, from what the chief tells it about beginnings and ends.

    Times are in seconds since this part of the run began.

    Args:
        config: settings of the run, with its budgets.
        start: the checkpoint from which this part of the run started.
        evaluations: the run's evaluations, which give the time that the final one may take.
        spent_seconds: see `JobContext`.
    """

    def __init__(self, config: TrainConfig, start: Checkpoint, evaluations: Evaluations, spent_seconds: float = 0.0):
        self._spent = spent_seconds
        self._run, self._games, self._evaluations = config.run, config.evaluation.eval_games, evaluations
        self._phase = STARTING
        self._first = (0.0, start.version, start.agent_steps)
        self._trained: float | None = None
        self._evaluates = True
        self._final_start = self._final_limit = 0.0
        self._final_over = 0

    def first_update(self, seconds: float, agent_steps: int) -> None:
        """Notes that learning begins.

        Its rate is measured from here on: what went before, such as filling a replay, tells nothing about it.
        """
        self._phase, self._first = TRAINING, (seconds, self._first[1], agent_steps)

    def training_over(self, seconds: float, evaluates: bool) -> None:
        """Notes that training is over, how long it took in all starts, and whether a final evaluation follows."""
        self._trained, self._evaluates = seconds, evaluates

    def final_evaluation(self, seconds: float, limit: float) -> None:
        """Notes that the final evaluation begins, which may take `limit` seconds."""
        self._phase, self._final_start, self._final_limit = EVALUATING, seconds, limit

    def games_over(self, games: int) -> None:
        """Notes how many games of the final evaluation are over."""
        self._final_over = games

    def now(self, seconds: float, version: int, agent_steps: int) -> dict[str, Any]:
        """The fields `phase` and, if it can be estimated, `seconds_left` of a record; see `ddrl.reporting.phases`."""
        left = self._left(seconds, version, agent_steps)
        return {"phase": self._phase} | ({} if left is None else {"seconds_left": round(left, 1)})

    def _left(self, seconds: float, version: int, agent_steps: int) -> float | None:
        drawing = drawing_seconds(self._run.video)
        if self._phase == EVALUATING:
            spent = max(seconds - self._final_start, 0.0)
            by_pace = spent / self._final_over * (self._games - self._final_over) if self._final_over else math.inf
            return min(max(self._final_limit - spent, 0.0), by_pace) + drawing
        training = 0.0 if self._trained is not None else self._of_training(seconds, version, agent_steps)
        if training is None:
            return None
        trained = self._spent + seconds + training if self._trained is None else self._trained
        return training + self._evaluates * self._evaluations.final_seconds(trained) + drawing

    def _of_training(self, seconds: float, version: int, agent_steps: int) -> float | None:
        """Seconds of training that are left; None if there is no budget, or no rate yet from which to estimate them."""
        run, (began, first_version, first_steps) = self._run, self._first
        spent = seconds - began
        lefts = [60.0 * run.minutes - self._spent - seconds] if run.minutes else []
        totals = (run.agent_steps, agent_steps, first_steps), (run.max_updates, version, first_version)
        for budget, done, first in totals:
            if budget and done > first and spent > 0.0:
                lefts.append((budget - done) * spent / (done - first))
        return max(min(lefts), 0.0) if lefts else None


def plan(config: TrainConfig, spent_seconds: float = 0.0) -> str:
    """A text that says what is to come, training and all that follows, and how long it may take.

    Args:
        config: settings of the run.
        spent_seconds: see `JobContext`.
    """
    minutes, rest = config.run.minutes, "the rest of " if spent_seconds else ""
    limit = config.evaluation.longest_final_seconds(60.0 * minutes or math.inf)
    text = f"training for {rest}{minutes:g} {plural('minute', minutes)}" if minutes else "training"
    if limit:
        at_most = "" if limit >= WHOLE_GAMES_SECONDS else f" of {limit:.0f} s at most (--final-evaluation-minutes)"
        text += f", then the final evaluation{at_most}"
    return text + (", then the learning curve and a video" if config.run.video else ", then the learning curve")
