"""Settings that several studies share, and functions that make the settings of their points."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shlex
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

from ddrl import checks
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.studies.measures import EVALUATION, SCORES, scores_caption, steps_to, times_to
from ddrl.studies.points import Group, Point
from ddrl.studies.statistics import TimeToScore
from ddrl.studies.tables import Columns
from ddrl.types import Machine

Settings = TypeVar("Settings", bound="StudySettings")
LONGEST_EVALUATION_MINUTES = 60.0
MOST_REPEATS = 1_000  # of each point; every one is a run with a directory


@dataclasses.dataclass(frozen=True)
class StudySettings:
    """What every study's points depend on."""

    repeats: int = 1
    """Runs of each point, each with a seed of its own. A larger number extends a study that has begun."""
    seed: int = 1
    """The first seed; the repeats take the next ones."""
    quick: bool = False
    """Tiny sizes, a few minutes in all: does the whole study work here? This does not answer its question."""

    def __post_init__(self) -> None:
        """Checks that no number is negative, and that lists have no duplicates and are empty only if their default is.

        Raises:
            UsageError: a setting is refused.
        """
        checks.known(self)
        checks.between(self, 1, MOST_REPEATS, "repeats")
        for name, hint in typing.get_type_hints(type(self)).items():
            value = getattr(self, name)
            if hint in (int, float):
                checks.at_least(self, 0, name)
            elif isinstance(value, tuple) and (value or getattr(type(self), name)):
                if not value or len(set(value)) != len(value):
                    checks.refuse(self, name, "give one or more, each once")
                if hint == tuple[int, ...] and min(value) < 1:
                    checks.refuse(self, name, "each must be at least 1")

    @property
    def seeds(self) -> range:
        """The seeds of the repeats."""
        return range(self.seed, self.seed + self.repeats)

    def is_repeated(self, labels: Mapping[str, Any]) -> bool:
        """Whether points with these labels have all seeds; the others run once, with the first seed."""
        return True

    @property
    def of_machine(self) -> dict[str, str]:
        """Name -> value of the settings that belong to this machine and not to the study, such as where a program is.

        study.json does not hold them, and each call may give them anew; paths are absolute.
        """
        return {}

    def needs(self, points: Sequence[Point], to_run: Sequence[Point]) -> dict[str, str]:
        """Those settings `of_machine` that points need, after a check that this machine has what they name.

        Args:
            points: all points of the study.
            to_run: those that are about to run.

        Raises:
            UsageError: it lacks that, a setting is missing, or one is given that no point of the study needs.
        """
        return {}


@dataclasses.dataclass(frozen=True)
class TrainingSettings(StudySettings):
    """What points depend on that are made of the settings of `ddrl train`."""

    preset: str = "laptop"
    """Preset of `ddrl train` that each point begins with, such as default, laptop, or smoke."""
    games: tuple[str, ...] = ("breakout",)
    """Games, as for `ddrl train --game`."""
    train_options: str = ""
    """More options of `ddrl train` for each point, in one word: --train-options="--network nature"."""

    @property
    def report_seconds(self) -> float:
        """Seconds between measurements of a run, unless --train-options give them as --log-every-seconds."""
        return 5.0


@dataclasses.dataclass(frozen=True)
class BudgetSettings(TrainingSettings):
    """What points that learn depend on: how long they go on."""

    minutes: float = 0.0
    """Wall time of a point, in minutes (0: as many as --agent-steps take)."""
    agent_steps: int = 0
    """Agent steps of a point, over all its workers (0: as many as --minutes allow)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.minutes and not self.agent_steps:
            checks.refuse(self, "minutes", "a point would never end; give --minutes or --agent-steps")

    @property
    def score_name(self) -> str:
        """Name of the score in the records of a run."""
        return EVALUATION

    @property
    def report_seconds(self) -> float:
        """Seconds between measurements of a run; short runs are measured more often, so that they have a rate."""
        return 1.0 if 0 < self.minutes <= 2 else super().report_seconds

    @property
    def run(self) -> dict[str, Any]:
        """Changes to the settings group `run` that set the budget."""
        return budget(self.minutes, self.agent_steps)


@dataclasses.dataclass(frozen=True)
class ScoredSettings(BudgetSettings):
    """What points depend on that have one of two scores."""

    score: Literal["evaluation", "online"] = "evaluation"
    """evaluation: the score of games with frozen parameters, which take time of their own; online: that of training
    games."""

    @property
    def score_name(self) -> str:
        """Name of the score in the records of a run."""
        return SCORES[self.score]


@dataclasses.dataclass(frozen=True)
class TargetSettings(BudgetSettings):
    """What points depend on whose time to a score is measured."""

    target_score: float | None = None
    """Score for which the time is measured (None: none)."""
    eval_games: int = 50
    """Games of an evaluation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target_score is not None:
            checks.finite(self, "target_score")

    def evaluated(self, stop: bool) -> dict[str, Any]:
        """Changes to the settings group `evaluation`: whether there are evaluations, their games, and their target.

        Args:
            stop: runs end when an evaluation reaches the target; else they note when one did, and go on.
        """
        evaluator = self.score_name == EVALUATION
        target = self.target_score if evaluator else None
        return {
            "evaluator": evaluator, "eval_games": self.eval_games,
            "target_score": target, "stop_at_target": stop or target is None,
        }  # fmt: skip

    def times(self, group: Group) -> TimeToScore | None:
        """When the runs of a group reached the target score; None without a target."""
        if self.target_score is None:
            return None
        return times_to(group.runs, self.score_name, self.target_score, self.minutes)

    @property
    def timed(self) -> Columns:
        """Columns with time and agent steps to the target, for a table of groups; empty without a target."""
        target = self.target_score
        if target is None:
            return {}
        return {
            f"to {target:g}": lambda group: (times := self.times(group)) and times.text(),
            "agent steps to it": lambda group: steps_to(group.runs, self.score_name, target),
        }


@dataclasses.dataclass(frozen=True)
class EvaluatedSettings(ScoredSettings):
    """What points of the Q-learning family depend on: evaluations by agent steps."""

    eval_every_steps: int = 250_000
    """Agent steps between evaluations."""
    eval_games: int = 30
    """Games of an evaluation."""
    eval_agent_steps: int = 0
    """Agent steps of one evaluation, in which games follow one another (0: --eval-games); Stooke and Abbeel 2018:
    125,000."""
    eval_epsilon: float = 0.05
    """Probability of a random action in evaluations."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least(self, 1, "eval_every_steps")

    @property
    def caption(self) -> str:
        """The part of a caption that says what the scores are."""
        return scores_caption(self.score_name, self.eval_epsilon)

    def scored(self, config: TrainConfig) -> TrainConfig:
        """The settings of a point with the study's budget and evaluations."""
        steps_per_update = (
            config.replay_data.steps_per_update * config.effective_batch // config.batch_size
        )  # agent steps of all workers together
        # A record's agent steps are those of the last report, so quick runs, which are short, report often.
        report = {"log_every_seconds": 0.3} if self.quick else {}
        return config.changed(
            run=self.run | report,
            evaluation={
                "evaluator": self.score == "evaluation",
                "eval_games": self.eval_games,
                "eval_epsilon": self.eval_epsilon,
                "eval_agent_steps": self.eval_agent_steps,
                "eval_every_updates": max(1, self.eval_every_steps // steps_per_update),
                "eval_time_share": 1.0,  # evaluations may take all of a run's time, so none is put off
                "evaluation_minutes": LONGEST_EVALUATION_MINUTES,
            },
        )


@dataclasses.dataclass(frozen=True)
class TimedSettings(TrainingSettings):
    """What points depend on whose speed is measured."""

    seconds: float = 60.0
    """Time of each run, warm-up included."""
    warm_up_seconds: float = 15.0
    """Time at the beginning that does not count."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_warm_up(self)

    @property
    def report_seconds(self) -> float:
        """Seconds between measurements of a run, few enough to compute a rate."""
        return 1.0

    @property
    def run(self) -> dict[str, Any]:
        """Changes to the settings group `run` that set the time."""
        return budget(self.seconds / 60.0)


def check_warm_up(settings: Any) -> None:
    """Raises UsageError if runs have less than 3 s left after their warm-up."""
    if settings.seconds < settings.warm_up_seconds + 3.0:
        checks.refuse(
            settings, "seconds", f"must be at least 3 more than --warm-up-seconds {settings.warm_up_seconds:g}"
        )


def one_of(settings: Any, name: str, choices: Mapping[str, Any] | tuple[str, ...]) -> None:
    """Raises UsageError if the list in field `name` has a value that is none of the choices."""
    for value in getattr(settings, name):
        if value not in choices:
            raise UsageError(f"{checks.flag(name)} {value}: choose from {', '.join(choices)}")


def to_json(settings: StudySettings) -> dict[str, Any]:
    """The settings of the study by name in JSON types, with lists for tuples and without those of the machine."""
    values, of_machine = dataclasses.asdict(settings), settings.of_machine
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if name not in of_machine
    }


def from_json(kind: type[Settings], values: Mapping[str, Any]) -> Settings:
    """The inverse of `to_json`; a setting that is missing has its default, and settings of the machine may be there.

    Raises:
        UsageError: a setting that this version does not know.
    """
    unknown = sorted(set(values) - set(typing.get_type_hints(kind)))
    if unknown:
        raise UsageError(f"study.json: setting {unknown[0]!r} comes from another version of ddrl; choose another --dir")
    fields: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in values.items()}
    return kind(**fields)


@functools.lru_cache
def base_config(settings: TrainingSettings, algorithm: str, game: str, machine: Machine) -> TrainConfig:
    """The settings of `ddrl train ALGORITHM` for a game, without evaluator, video, and a target of the preset's.

    Raises:
        UsageError: --train-options cannot be read, or are refused.
    """
    from ddrl.options.train_options import parse

    try:
        words = shlex.split(settings.train_options)
    except ValueError as error:
        raise UsageError(f"--train-options {settings.train_options}: {error}") from error
    often = ["--log-every-seconds", f"{settings.report_seconds:g}"]
    given = parse([algorithm, "--preset", settings.preset, "--game", game, *often, *words], machine)
    evaluation: dict[str, Any] = {"evaluator": False}
    if "target_score" not in given.chosen:  # a preset's, at which a study's runs do not end
        evaluation["target_score"] = None
    return given.config.changed(evaluation=evaluation, run={"video": False})


def budget(minutes: float, agent_steps: int = 0) -> dict[str, Any]:
    """Changes to the settings group `run` that set a budget."""
    return {"minutes": minutes, "agent_steps": agent_steps, "max_updates": 0}


@contextlib.contextmanager
def refusals_of(what: str) -> Iterator[None]:
    """Context manager that puts `what` in front of the message of any UsageError raised inside."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{what}: {error}") from error


def game_name(game: str) -> str:
    """A game as part of a point's name: in lower case, without its namespace."""
    return game.rsplit("/", maxsplit=1)[-1].lower()
