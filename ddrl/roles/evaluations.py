"""Decides when the chief has a version evaluated, and how long that may take.

Evaluations are regular, and take no more than their share of the run's time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ddrl.config import EvaluationConfig
from ddrl.config.evaluation import WHOLE_GAMES_SECONDS
from ddrl.reporting.metrics import is_resumed
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.wording import counted

SHORTEST_SECONDS = 8.0  # an evaluation gets this much, whatever its share of the time: with less it would say nothing
PARTS = 6  # a run's share of the time is enough for at least so many evaluations
WHOLE = 4.0  # how much longer an evaluation may take that plays all games, as the target may have been reached
TO_SCORE = "time_to_score_seconds"  # in the run's result, and in checkpoints
REACHED = "target_reached"  # the event, with seconds, update, and target
AT_ONCE, FINAL_AT_ONCE = 4, 20  # games at once: with few, the first are over sooner; with many, all are over sooner


def announcement(config: EvaluationConfig, limit: float) -> str:
    """The text of the event with which the final evaluation begins, which may take `limit` seconds."""
    games = counted(config.eval_games, "game")
    at_most = "" if limit >= WHOLE_GAMES_SECONDS else f", {limit:.0f} s at most"
    return f"the final evaluation: {games}{at_most}; Ctrl-C ends it and keeps the games that are over"


def unfinished_text(content: Mapping[str, Any]) -> str:
    """The text of the event for an evaluation of which no game was over in time."""
    stuck = f", {content['stuck']} of them stuck without a reward" if content.get("stuck") else ""
    text = f"no game was over within {content['seconds']:.0f} s ({content['timed_out']} unfinished{stuck})"
    if content.get("ended"):
        return text
    more = "give it more time with --final-evaluation-minutes" if content.get("final") else "the next one has more time"
    return f"{text}; {more}"


class Evaluations:
    """Keeps account of evaluations; one that falls due while another is still playing is skipped and counted.

    The time of evaluations is counted in seconds of the whole machine: an evaluator that gets a quarter of one of two
    cores takes an eighth of the machine.

    Attributes:
        idle: whether no evaluation is under way.
        seconds: time of the whole machine that evaluations have taken.
        to_score: wall time of the run, in seconds, at which it took the first parameters that reached the target score,
            under the name TO_SCORE; empty until then, and for another target.
        reached: whether no evaluation has to check the target: it was reached in this part of the run, or, if the run
            goes on at the target, in an earlier one.

    Args:
        version: version of the parameters at the start of this part of the run.
        state: what `state` returned in the part before, or None.
    """

    def __init__(self, config: EvaluationConfig, version: int, state: Mapping[str, Any] | None = None):
        state = state or {}
        self.config = config
        self.idle = True
        known = config.target_score is not None and state.get("target_score") == config.target_score
        self.to_score = {name: float(state[name]) for name in (TO_SCORE,) if known and name in state}
        self.reached = self._reached_before()
        self.seconds = float(state.get("seconds", 0.0))
        self._next_seconds = float(state.get("last_seconds", 0.0))
        self._next_version = version - version % config.eval_every_updates + config.eval_every_updates
        self._playing: int | None = None
        self._limit = self._needed = 0.0
        self._game_seconds: float | None = None

    def state(self) -> dict[str, Any]:
        """The state that a checkpoint keeps."""
        found = {"target_score": self.config.target_score, **self.to_score} if self.to_score else {}
        return {"seconds": self.seconds, "last_seconds": self._next_seconds, **found}

    def remember(self, records: Sequence[Mapping[str, Any]], version: int) -> None:
        """Takes from the metrics when the target was reached, if that was after the checkpoint was written, as a final
        evaluation is.

        Args:
            records: of the earlier parts of the run, oldest first.
            version: of the checkpoint; parameters of later versions are undone.
        """
        target = self.config.target_score
        if self.to_score or target is None:
            return
        for record in reversed(records):
            if is_resumed(record):
                version = min(version, record.get("update", 0))
            elif record.get("name") == REACHED and record.get("target") == target and record["update"] <= version:
                self.to_score = {TO_SCORE: float(record["seconds"])}
        self.reached = self._reached_before()

    def _reached_before(self) -> bool:
        return bool(self.to_score) and not self.config.stop_at_target

    def due(self, version: int, elapsed: float, metrics: RankMetrics) -> bool:
        """Whether `version` is to be published and evaluated; `elapsed` is the wall time of the run in seconds."""
        if version < self._next_version or not self.config.eval_time_share:
            return False
        if not self.idle:
            metrics.count("evaluations_skipped")
            self._next_version = version + self.config.eval_every_updates
            return False
        share = self.config.eval_time_share
        if self.seconds + self._next_seconds > share * (elapsed + self._next_seconds):
            return False  # the evaluation stays due until its share of the time has grown enough
        self._next_version = version + self.config.eval_every_updates
        return True

    def during_training(self, elapsed: float, planned: float) -> dict[str, Any]:
        """The settings of an evaluation that starts now: games at once (0: all), longest time, and target if needed.

        Args:
            elapsed: wall time of the run so far, in seconds.
            planned: wall time of the whole run in seconds, or 0 if it is not known.
        """
        config = self.config
        longest = config.longest_seconds
        if config.plays_all_games:
            return {"at_once": 0, "limit_seconds": longest}
        part = config.eval_time_share * max(elapsed, planned) / PARTS
        saved = min(
            config.eval_time_share * elapsed - self.seconds, 2.0 * part
        )  # unused time, which adds up on a machine with few updates a minute
        self._limit = min(longest, max(SHORTEST_SECONDS, part, saved, self._needed))
        open_target = config.target_score is not None and not self.reached
        target = {"target": config.target_score, "target_seconds": WHOLE * longest} if open_target else {}
        return {"at_once": AT_ONCE, "limit_seconds": self._limit, **target}

    def at_the_end(self, trained_seconds: float) -> dict[str, Any]:
        """The settings of the final evaluation, which plays all games if time allows; with limit 0 there is none."""
        limit = self.config.longest_final_seconds(trained_seconds)
        return {"at_once": 0 if self.config.plays_all_games else FINAL_AT_ONCE, "limit_seconds": limit, "final": True}

    def final_seconds(self, trained_seconds: float) -> float:
        """The seconds that the final evaluation will probably take, estimated from the pace of earlier ones."""
        limit = self.config.longest_final_seconds(trained_seconds)
        return limit if self._game_seconds is None else min(limit, self._game_seconds * self.config.eval_games)

    def start(self, version: int) -> None:
        """Notes that the evaluator was asked to play with this version."""
        self._playing, self.idle = version, False

    def finish(self, content: Mapping[str, Any]) -> bool:
        """Takes a result; returns False if it is not of the evaluation that is under way."""
        if content["version"] != self._playing:
            return False
        seconds, games = content["seconds"], content.get("games")
        took = content.get("machine_seconds", seconds)
        self.seconds += took
        # If no game was over, the next evaluation waits until it may take twice as long; else none would ever be over.
        self._needed = 0.0 if games != 0 else min(2.0 * seconds, self.config.longest_seconds)
        # An evaluation that played all games for the target took longer than the next one will.
        longest = max(min(seconds, self._limit) if self._limit else seconds, self._needed)
        self._next_seconds = longest * (took / seconds if seconds else 1.0)
        if games:  # a budget of agent steps takes as long, however many games are over in it
            self._game_seconds = seconds / (self.config.eval_games if self.config.eval_agent_steps else games)
        self._playing, self.idle = None, True
        return True

    def reach(self, wall_seconds: float) -> None:
        """Notes that parameters taken after so many seconds of the run's wall time have reached the target score."""
        self.reached = True
        self.to_score = self.to_score or {TO_SCORE: wall_seconds}

    def lost(self) -> None:
        """Notes that no result will come: the evaluator died, or its result is not awaited any longer."""
        self._playing, self.idle = None, True
