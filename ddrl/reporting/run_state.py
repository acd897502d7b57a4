"""The state of a run as its newest records tell it: phase, scores, events, and the time that is left."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

from ddrl.config import TrainConfig
from ddrl.reporting.metrics import is_resumed, minutes_began, whole
from ddrl.reporting.phases import EVALUATING, PHASES, STARTING, TRAINING

Record = Mapping[str, Any]
STARTUP_SECONDS = 6
"""About how many seconds it takes to load TensorFlow."""
_LOUD_EVENTS = 3
_QUIET_EVENTS = ("phase", "started")  # the head of the panel tells of them


class RunState:
    """The state of a run. All its methods take the time `now` in seconds of one clock.

    Attributes:
        phase: one of PHASES.
        train, evaluation, best: the newest `train` and `evaluation` records, and the best evaluation.
        scores, evaluations: (wall seconds of the run, score) of training and of evaluations.
        events: the newest events.

    Args:
        now: when the run is started.
    """

    def __init__(self, config: TrainConfig, now: float = 0.0) -> None:
        self.config = config
        self.phase = STARTING
        self.train: Record = {}
        self.evaluation: Record
        self.best: Record
        self.scores: list[tuple[float, float]] = []
        self.evaluations: list[tuple[float, float]]
        self._set_evaluations([])
        self.events: collections.deque[Record] = collections.deque(maxlen=_LOUD_EVENTS)
        self.lost_workers = 0
        self._phase_began = self._heard = now
        self._trained = 0.0  # seconds that count to the budget of minutes, at the newest `train` record or resume
        self._minutes_began = 0.0  # wall seconds of the run from which they count on
        self._end: float | None = None
        self._games: tuple[int, int] | None = None

    def enter(self, phase: str, now: float) -> None:
        """Notes that a phase begins; an unknown one is ignored."""
        if phase in PHASES and phase != self.phase:
            self.phase, self._phase_began = phase, now

    def add(self, record: Record, now: float) -> None:
        """Take in one record of metrics.jsonl. An unknown kind is ignored."""
        kind = record.get("kind")
        if "phase" in record:
            self.enter(record["phase"], now)
        elif kind == "train" and self.phase == STARTING:  # runs of older versions name no phases
            self.enter(TRAINING, now)
        if "seconds_left" in record:
            self._end = now + record["seconds_left"]
        if "evaluation_games" in record:  # absent between two reports of the evaluator
            self._games = (record.get("evaluation_games_over", 0), record["evaluation_games"])
        if kind == "train":
            self.train, self._heard = record, now
            self._trained = max(0.0, record["wall_seconds"] - self._minutes_began)
            if "online_score_mean" in record:
                self.scores.append((record["wall_seconds"], record["online_score_mean"]))
        elif kind == "evaluation":
            self._set_evaluations([*self._evaluated, record])
        elif kind == "event":
            self._add_event(record, now)

    @property
    def waiting(self) -> str:
        """A text that says what the command waits for before the first record."""
        ranks = self.config.ranks
        processes = f"{ranks} processes" if ranks > 1 else "one process"
        return f"starting {processes}; TensorFlow loads in about {STARTUP_SECONDS} s ..."

    def phase_seconds(self, now: float) -> float:
        """Seconds since the phase began."""
        return now - self._phase_began

    def trained_seconds(self, now: float) -> float:
        """Seconds of training that count to the budget of minutes; 0 before it begins."""
        if not self.train:
            return 0.0
        since = now - self._heard if self.phase == TRAINING else 0.0
        return self._trained + since

    def time_left(self, now: float) -> float | None:
        """Seconds until the command ends; None if unknown."""
        return None if self._end is None else max(0.0, self._end - now)

    @property
    def evaluation_games(self) -> tuple[int, int] | None:
        """Games of the final evaluation that are over, and all of them; None unless it is going on."""
        return self._games if self.phase == EVALUATING else None

    def budget(self, now: float) -> tuple[float, float, str] | None:
        """(Done, total, unit) of the first budget that is set; the unit of seconds is empty. None without a budget."""
        run = self.config.run
        if run.minutes > 0:
            return self.trained_seconds(now), run.minutes * 60, ""
        if run.agent_steps:
            return self.train.get("agent_steps", 0), run.agent_steps, "agent steps"
        return (self.train.get("update", 0), run.max_updates, "updates") if run.max_updates else None

    def training_left(self, now: float) -> float | None:
        """Seconds of training until the budget is used up, at the rate so far; None if unknown."""
        budget, trained = self.budget(now), self.trained_seconds(now)
        if self.phase != TRAINING or budget is None or budget[0] <= 0:
            return None
        done, total, unit = budget
        if unit and self._minutes_began:
            return None  # earlier parts did some of the work, and their time is not among what was trained
        return max(0.0, total - done) * (trained / done if unit else 1.0)

    def _set_evaluations(self, records: list[Record]) -> None:
        """Sets the run's evaluations so far, and the attributes that follow from them."""
        self._evaluated, compared = records, whole(records)
        self.evaluation = records[-1] if records else {}
        self.evaluations = [(record["wall_seconds"], record["mean"]) for record in compared]
        self.best = max(compared, key=lambda record: record["mean"]) if compared else {}

    def _add_event(self, record: Record, now: float) -> None:
        if record["name"] not in _QUIET_EVENTS:
            self.events.append(record)
        self.lost_workers += record["name"] == "worker_lost"
        if record["name"] == "restarted":  # `resumed` follows
            self.enter(STARTING, now)
        if is_resumed(record):
            start, self._heard = record["wall_seconds"], now
            self._minutes_began = minutes_began(record)
            self._trained = start - self._minutes_began
            self.scores = [point for point in self.scores if point[0] <= start]
            self._set_evaluations([record for record in self._evaluated if record["wall_seconds"] <= start])
