"""Settings of evaluation. Imports nothing but checks."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from ddrl import checks

MOST_GAMES = 65_536  # each of them is an environment; a larger number was mistyped
WHOLE_GAMES_SECONDS = 3 * 3600.0  # after which even an evaluation of whole games is not waited for any more
FINAL_EVALUATION_SHARE = 0.08  # of training's time: with its start, curve and video a command takes at most 15% more
SHORTEST_FINAL_SECONDS = 15.0


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """Evaluation."""

    evaluator: bool = True
    """Have an evaluator: a rank of its own, or the worker itself when there is one process."""
    eval_every_updates: int = 1000
    """Updates between evaluations; one that falls due while the previous one is still playing is skipped and
    counted."""
    eval_games: int = 50
    """Games per evaluation, with frozen parameters. An evaluation during training plays as many of them as its share of
    the time allows; the one at the end plays all."""
    eval_actions: Literal["greedy", "drawn"] = "greedy"
    """What evaluation games do. greedy: what the policy prefers, but for --eval-epsilon; drawn: actions drawn from the
    policy, as training draws them."""
    eval_agent_steps: int = 0
    """Total agent steps of one evaluation, in which --eval-games environments play one game after another; finished
    games count (0: one game each)."""
    eval_epsilon: float = 0.0
    """Probability of a random action in evaluation games. The presets of dqn have 0.05, as in Mnih et al. 2015, and
    those of its relatives mostly less."""
    eval_time_share: float = 0.1
    """Largest share of the machine's time that evaluations during training may take (0 to 1; 0: none; 1: each of them
    plays all its games)."""
    evaluation_minutes: float = 3.0
    """Longest time of one evaluation during training, in minutes; games that are unfinished by then have no score (0:
    all games, however long they take)."""
    final_evaluation_minutes: float | None = None
    """Longest time of the evaluation at the end of the run, in minutes; Ctrl-C ends it and keeps the games played
    (None: 8% of the training time, at least 15 seconds, or --evaluation-minutes if every evaluation plays all its
    games; 0: no such evaluation)."""
    target_score: float | None = None
    """Stop when the mean score of all --eval-games games reaches this, and record the time it took. When the first
    games of an evaluation reach it, the evaluator plays all games again, and only those count."""
    stop_at_target: bool = True
    """End the run when --target-score is reached; off: record when, and go on."""

    def __post_init__(self) -> None:
        checks.known(self)
        checks.at_least(self, 0.0, "evaluation_minutes")
        if self.final_evaluation_minutes is not None:
            checks.at_least(self, 0.0, "final_evaluation_minutes")
        checks.at_least(self, 1, "eval_every_updates")
        checks.between(self, 1, MOST_GAMES, "eval_games")
        checks.at_least(self, 0, "eval_agent_steps")
        checks.between(self, 0.0, 1.0, "eval_time_share", "eval_epsilon")
        if not self.stop_at_target and self.target_score is None:
            checks.refuse(self, "stop_at_target", "there is no --target-score to reach; give one, or leave it out")
        if self.target_score is not None:
            if not math.isfinite(self.target_score):
                checks.refuse(self, "target_score", "must be a finite number, or None for no target")
            if not self.evaluator:
                checks.refuse(
                    self, "target_score", "only an evaluator can tell when it is reached; leave out --no-evaluator"
                )
            if not self.eval_time_share:
                checks.refuse(
                    self, "target_score", "with --eval-time-share 0 no evaluation tells when it is reached; use more"
                )
            if self.eval_agent_steps:
                why = (
                    "--eval-agent-steps scores only games that end in time, mostly short ones; leave out one of the two"
                )
                checks.refuse(self, "target_score", why)

    @property
    def draws_actions(self) -> bool:
        """Whether evaluation games draw their actions from the policy."""
        return self.eval_actions == "drawn"

    @property
    def longest_seconds(self) -> float:
        """Of one evaluation during training. Whole games end by their protocol's own limit; this is far beyond."""
        return 60.0 * self.evaluation_minutes or WHOLE_GAMES_SECONDS

    @property
    def plays_all_games(self) -> bool:
        """Whether every evaluation plays all its games, as no share of the time bounds it."""
        return not self.evaluation_minutes or self.eval_time_share == 1.0

    def longest_final_seconds(self, trained_seconds: float) -> float:
        """Of the evaluation at the end of a run; 0: there is none.

        Args:
            trained_seconds: that training took; infinite where that is not known yet.
        """
        if not self.evaluator:
            return 0.0
        if self.final_evaluation_minutes is not None:
            return 60.0 * self.final_evaluation_minutes
        if self.plays_all_games:
            return self.longest_seconds
        return min(max(FINAL_EVALUATION_SHARE * trained_seconds, SHORTEST_FINAL_SECONDS), WHOLE_GAMES_SECONDS)
