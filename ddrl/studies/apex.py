"""What studies of Ape-X share: budget, scores, and what their tables and curves tell of runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from ddrl import checks
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.studies.curves import CAPTIONS, EVALUATION, ONLINE, from_intervals, spread_text
from ddrl.studies.figures import Panel
from ddrl.studies.measures import Interval, agent_steps_per_second, bootstrap, rate_per_second
from ddrl.studies.points import Outcome
from ddrl.studies.reached import times_to
from ddrl.studies.settings import Budget, StudySettings, base_config, budget, changed, check_budget
from ddrl.studies.sized import last_score, warm_up
from ddrl.types import Machine


@dataclasses.dataclass(frozen=True)
class ApexSettings(Budget, StudySettings):
    """What all points of a study of Ape-X have."""

    simulators: int = 0
    """Simulators of each actor (0: the preset's)."""
    step_time_ms: float = 0.0
    """Time that a step of a simulator takes at least, in milliseconds: actors with slow simulators need little of a
    small machine's cores, so that their number counts (0: off)."""
    score: Literal["evaluation", "online"] = "evaluation"
    """evaluation: of an evaluator that inserts nothing, with --eval-epsilon; online: of training games, most of which
    explore."""
    eval_every_updates: int = 1000
    """Updates between evaluations."""
    eval_games: int = 30
    """Games of an evaluation."""
    eval_epsilon: float = 0.00164
    """Probability of a random action in evaluations (Horgan et al. 2018: that of the greediest actor)."""
    target_score: float | None = None
    """Score whose time is measured (None: final scores alone)."""
    stop_at_target: bool = False
    """End a run when an evaluation reaches --target-score."""
    minutes: float = 10.0
    """Wall time of a point, in minutes (0: as many as --agent-steps take)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_budget(self)
        checks.known(self)
        checks.at_least(self, 0, "simulators", "step_time_ms")
        checks.at_least(self, 1, "eval_every_updates", "eval_games")
        checks.between(self, 0.0, 1.0, "eval_epsilon", why="a probability")
        if self.target_score is not None:
            checks.finite(self, "target_score")
        if self.stop_at_target and (self.target_score is None or self.score != "evaluation"):
            checks.refuse(self, "stop_at_target", "there is no target of evaluations; give --target-score")

    @property
    def score_name(self) -> str:
        """As in the records of a run."""
        return ONLINE if self.score == "online" else EVALUATION


def apex_config(settings: ApexSettings, game: str, machine: Machine, seed: int) -> TrainConfig:
    """`ddrl train apex-dqn` with the study's budget and evaluations.

    Raises:
        UsageError: --train-options that cannot be.
    """
    config = base_config(settings, "apex-dqn", game, machine)
    if not config.apex.actors:
        raise UsageError("--train-options: a study of Ape-X needs actors; leave --actors to the study")
    return changed(
        config,
        sampling={"simulators": settings.simulators or config.sampling.simulators},
        environment={"step_time_mean_ms": settings.step_time_ms} if settings.step_time_ms else {},
        run=budget(settings.minutes, settings.agent_steps) | {"seed": seed, "log_every_seconds": 1.0},
        evaluation={
            "evaluator": settings.score == "evaluation",
            "eval_games": settings.eval_games,
            "eval_every_updates": settings.eval_every_updates,
            "eval_epsilon": settings.eval_epsilon,
            "eval_time_share": 1.0,  # it plays beside the learner
            "target_score": settings.target_score if settings.stop_at_target else None,
        },
    )


def caption(settings: ApexSettings, outcomes: Sequence[Outcome]) -> str:
    """What the scores are, what actors are slowed to, and what the spread is."""
    what = CAPTIONS[settings.score_name].replace("greedy games", f"games of epsilon {settings.eval_epsilon:g}")
    slowed = f"; simulators take {settings.step_time_ms:g} ms a step" if settings.step_time_ms else ""
    return f"{what}{slowed}; {spread_text(outcomes)}"


def result_columns(settings: ApexSettings) -> tuple[str, ...]:
    """Names of what `results` gives. Runs that end with the target have no final score."""
    final = () if settings.stop_at_target else ("final score",)
    timed = () if settings.target_score is None else (f"time to {settings.target_score:g}",)
    rates = ("agent steps/s", "inserts/s", "updates/s")
    return ("seeds", "agent steps", "updates", *final, *timed, *rates)


def results(settings: ApexSettings, runs: Sequence[Outcome]) -> list[Any]:
    """What repeats of one point came to."""
    most = [max((r.get(name, 0) for run in runs for r in run.records), default=0) for name in ("agent_steps", "update")]
    final = [] if settings.stop_at_target else [bootstrap([last_score(run, settings.score_name) for run in runs])]
    timed = []
    if settings.target_score is not None:
        timed = [times_to(runs, settings.score_name, settings.target_score, settings.minutes).text()]
    rates = [bootstrap([agent_steps_per_second(run.records, warm_up(run)) for run in runs])]
    for name in ("inserts_per_s", "updates_per_s"):
        rates.append(bootstrap([rate_per_second(run.records, name, warm_up(run)) for run in runs]))
    return [len(runs), *most, *final, *timed, *rates]


def stop_notes(settings: ApexSettings) -> list[str]:
    """What to know of runs that ended with the target."""
    if not settings.stop_at_target:
        return []
    return [
        "runs end with the first evaluation that reaches the target, by luck where evaluations vary much; in the "
        "curves they keep their last score"
    ]


def end_panels(
    settings: ApexSettings,
    game: str,
    what: str,
    lines: Mapping[str, Sequence[tuple[float, Sequence[Outcome]]]],
    log_x: bool,
) -> Iterator[Panel]:
    """Final scores over what was varied, unless runs ended with the target; times to it, of the values with which every
    run reached it.

    Args:
        what: was varied.
        lines: label -> (value, its runs), by value.
    """
    scores, times = [], []
    for label, found in lines.items():
        final = [(value, bootstrap([last_score(run, settings.score_name) for run in runs])) for value, runs in found]
        scores.append(from_intervals([(value, score) for value, score in final if score is not None], label))
        if settings.target_score is not None:
            times.append(from_intervals(list(_times(settings, found)), label))
    if not settings.stop_at_target:
        yield Panel(f"{game}: at the end", what, f"{settings.score} score", scores, log_x=log_x)
    if any(curve.x for curve in times):
        label = f"minutes to {settings.target_score:g}"
        yield Panel(f"{game}: time to the score", what, label, times, log_x=log_x, zero=True)


def _times(
    settings: ApexSettings, found: Sequence[tuple[float, Sequence[Outcome]]]
) -> Iterator[tuple[float, Interval]]:
    for value, runs in found:
        times = times_to(runs, settings.score_name, settings.target_score, settings.minutes)
        if not times.missed:
            yield value, bootstrap([seconds / 60.0 for seconds in times.reached])
