"""`ddrl study hts`: HTS-RL beside its own synchronous algorithms (Liu et al. 2020, section 5)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from ddrl import checks
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.studies.hts_report import report
from ddrl.studies.points import Point
from ddrl.studies.settings import (
    Budget,
    StudySettings,
    base_config,
    budget,
    changed,
    check_budget,
    game_name,
    not_empty,
    one_of,
)
from ddrl.studies.study import Study
from ddrl.types import Machine

PARTS = ("speed-up", "alpha", "predictors", "scores")
ALGORITHMS = ("a2c", "ppo")
EVALUATION_GAMES = 10  # of each policy; ten policies make the paper's 100 episodes


@dataclasses.dataclass(frozen=True)
class HtsSettings(Budget, StudySettings):
    """HTS-A2C and HTS-PPO beside synchronous A2C and PPO (Liu et al. 2020). speed-up: ratio of agent steps/s over the
    variance of step times (figure 4); alpha: agent steps/s over the steps between two synchronizations (table 5);
    predictors: agent steps/s and equal parameters for any number of predictor threads (table 4); scores: evaluation
    scores at the end, at a time limit, and the time to reach a score (tables 1 and 2), with --repeats 5."""

    parts: tuple[str, ...] = PARTS
    """speed-up, alpha, predictors, scores."""
    algorithms: tuple[str, ...] = ALGORITHMS
    """a2c, ppo."""
    impala: bool = False
    """Have IMPALA among the scores, too."""
    simulators: int = 16
    """Simulators. The synchronous algorithms step all of them together."""
    groups: int = 4
    """Groups of simulators in HTS-RL, each of which steps without waiting for the others (0: one simulator each, as in
    the paper; on few cores so many threads get in each other's way)."""
    predictors: int = 4
    """Predictor threads of HTS-RL (0: every group queries the policy itself)."""
    predict_batch: int = 0
    """Observations per query of HTS-RL's predictors at most, to which smaller queries are padded (0: simulators /
    predictors, a group at least)."""
    step_time_ms: float = 5.0
    """Mean time that a step takes at least, in milliseconds (not in the part scores). 0, with --variations 0: as long
    as the environment takes by itself."""
    variations: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0)
    """Standard deviations of the step time over its mean, for the part speed-up; the other parts take the one
    nearest to 1."""
    least_alpha: int = 20
    """HTS-RL synchronizes after so many steps at least, rounded up to whole unrolls (not in the part alpha)."""
    alphas: tuple[int, ...] = (4, 16, 64, 128, 256, 512)
    """Steps between two synchronizations, for the part alpha."""
    predictor_counts: tuple[int, ...] = (1, 4, 8, 16)
    """Predictor threads, for the part predictors."""
    seconds: float = 60.0
    """Time of each run that is about speed, the warm-up included."""
    warm_up_seconds: float = 15.0
    """Time at their beginning that does not count."""
    agent_steps: int = 2_000_000
    """Agent steps of each run that is about scores (0: as many as --minutes allow)."""
    eval_every_updates: int = 1000
    """Updates between evaluations of 10 games; the metrics look back on ten of them."""
    time_limit_minutes: float = 0.0
    """Time of the final time metric (0: when the method that is fastest has ended, as in the paper)."""
    required_scores: tuple[float, ...] = (0.4, 0.8)
    """Scores whose required time is measured."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_budget(self)
        one_of(self, "parts", PARTS)
        one_of(self, "algorithms", ALGORITHMS)
        not_empty(self, "variations", "alphas", "predictor_counts", "required_scores")
        checks.at_least(self, 1, "simulators", "least_alpha", "eval_every_updates")
        checks.at_least(self, 0, "groups", "predictors", "predict_batch")
        checks.at_least(self, 0.0, "step_time_ms", "warm_up_seconds", "time_limit_minutes")
        if min(*self.alphas, *self.predictor_counts, 1) < 1 or min(self.variations) < 0:
            raise UsageError("--alphas and --predictor-counts are at least 1, --variations at least 0")
        if not self.step_time_ms and any(self.variations):
            checks.refuse(self, "step_time_ms", "there are no step times to vary; above 0, or with --variations 0")
        if self.seconds < self.warm_up_seconds + 3.0:
            checks.refuse(self, "seconds", f"at least 3 more than --warm-up-seconds {self.warm_up_seconds:g}")

    @property
    def variation(self) -> float:
        """That of the parts alpha and predictors."""
        return min(self.variations, key=lambda value: abs(value - 1.0))


def points(settings: HtsSettings, machine: Machine) -> list[Point]:
    """All of them, part by part. The parts about speed play the first game alone."""
    makers = {"speed-up": _speed_up, "alpha": _alpha, "predictors": _predictors}
    found: list[Point] = []
    for part in settings.parts:
        if part == "scores":
            found += _scores(settings, machine)
            continue
        for algorithm in settings.algorithms:
            config = _timed(settings, base_config(settings, algorithm, settings.games[0], machine))
            for seed in settings.seeds:
                for labels, point in makers[part](settings, changed(config, run={"seed": seed})):
                    labels = {"part": part, "algorithm": algorithm, "game": settings.games[0], **labels}
                    text = "-".join(str(value) for name, value in labels.items() if name != "game")
                    found.append(Point(f"{text}-seed{seed}", point, labels))
    return found


Labelled = Iterator[tuple[dict[str, Any], TrainConfig]]


def _speed_up(settings: HtsSettings, config: TrainConfig) -> Labelled:
    for variation in settings.variations:
        varied = changed(config, environment={"step_time_cv": variation})
        yield {"variation": variation, "method": "synchronous"}, varied
        yield {"variation": variation, "method": "hts"}, double_buffered(settings, varied)


def _alpha(settings: HtsSettings, config: TrainConfig) -> Labelled:
    for alpha in settings.alphas:
        yield {"alpha": alpha}, double_buffered(settings, config, alpha)


def _predictors(settings: HtsSettings, config: TrainConfig) -> Labelled:
    for count in settings.predictor_counts:
        made = double_buffered(settings, config)
        yield {"predictors": count}, changed(made, sampling={"predictors": count}, run={"deterministic": True})


def _scores(settings: HtsSettings, machine: Machine) -> list[Point]:
    found = []
    for game in settings.games:
        for method in _methods(settings):
            config = base_config(settings, method, game, machine)
            config = changed(
                config,
                evaluation={
                    "evaluator": True,
                    "eval_games": EVALUATION_GAMES,
                    "eval_every_updates": settings.eval_every_updates,
                },
            )
            for seed in settings.seeds:
                seeded = changed(config, run=budget(settings.minutes, settings.agent_steps) | {"seed": seed})
                labels = {"part": "scores", "method": method, "game": game}
                found.append(Point(f"scores-{game_name(game)}-{method}-seed{seed}", seeded, labels))
    return found


def _methods(settings: HtsSettings) -> list[str]:
    pairs = [name for algorithm in settings.algorithms for name in (algorithm, f"hts-{algorithm}")]
    return pairs + ["impala"] * settings.impala


def _timed(settings: HtsSettings, config: TrainConfig) -> TrainConfig:
    """The synchronous algorithm with step times: one group of all simulators, as its usual implementations have."""
    return changed(
        config,
        sampling={"simulators": settings.simulators, "groups": 1},
        environment={"step_time_mean_ms": settings.step_time_ms, "step_time_cv": settings.variation},
        run=budget(settings.seconds / 60.0) | {"log_every_seconds": 1.0},
    )


def double_buffered(settings: HtsSettings, config: TrainConfig, alpha: int = 0) -> TrainConfig:
    """HTS-RL of a synchronous algorithm: groups, predictors, and as much data in each update.

    Args:
        alpha: steps between two synchronizations (0: --least-alpha, in whole unrolls of the algorithm's own length).
    """
    unroll, simulators = config.algorithm.learns_from.unroll_length, config.sampling.simulators
    if alpha:
        unroll = max(length for length in range(1, min(unroll, alpha) + 1) if alpha % length == 0)
    alpha = alpha or unroll * math.ceil(settings.least_alpha / unroll)
    batch = config.optimizer.batch_size or unroll * simulators
    groups = settings.groups or simulators
    # Of the settings alone, whatever the part predictors has: padded to another size, parameters could differ in bits.
    together = max(simulators // groups, simulators // settings.predictors) if settings.predictors else 0
    return changed(
        config,
        algorithm={"unroll_length": unroll},
        optimizer={"batch_size": math.gcd(batch, alpha * simulators)},
        sampling={
            "schedule": "double-buffered",
            "rollout_length": alpha,
            "groups": groups,
            "predictors": settings.predictors,
            "predict_batch": settings.predict_batch or together,
        },
    )


STUDY = Study(
    name="hts",
    defaults=HtsSettings(),
    quick=HtsSettings(
        quick=True,
        preset="smoke",
        games=("ddrl/Catch-v0",),
        algorithms=("a2c",),
        simulators=8,
        predictors=2,
        step_time_ms=2.0,
        variations=(0.0, 1.0),
        alphas=(8, 32),
        predictor_counts=(1, 4),
        least_alpha=20,
        seconds=6.0,
        warm_up_seconds=2.0,
        minutes=0.15,
        agent_steps=0,
        eval_every_updates=30,
    ),
    points=points,
    report=report,
)
