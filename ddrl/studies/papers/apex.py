"""Studies of Ape-X: Horgan et al. 2018, Distributed Prioritized Experience Replay."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ddrl import checks
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.reporting.texts import counted
from ddrl.studies.curves import SECONDS, STEPS, learning_panel, over, spread_text
from ddrl.studies.figures import Panel
from ddrl.studies.findings import extremes, name_among, reached, sentences
from ddrl.studies.measures import count, final, mean, most, rate, scores_caption
from ddrl.studies.points import Group, Outcome, grouped, having
from ddrl.studies.settings import ScoredSettings, TargetSettings, base_config, one_of
from ddrl.studies.statistics import Interval
from ddrl.studies.study import Labels, Report, Study, product
from ddrl.studies.tables import Columns, table
from ddrl.types import Machine

STOPPED = (
    "runs end with the first evaluation that reaches the target, which is partly luck where evaluations vary much; in "
    "the curves, they keep their last score"
)


@dataclasses.dataclass(frozen=True)
class ApexSettings(TargetSettings, ScoredSettings):
    """What all points of a study of Ape-X have."""

    simulators: int = 0
    """Simulators of each actor (0: the preset's)."""
    step_time_ms: float = 0.0
    """Shortest time of a simulator's step, in milliseconds: actors with slow simulators need little of a small
    machine's cores, so that their number matters (0: off)."""
    eval_every_updates: int = 1000
    """Updates between evaluations, by an evaluator that inserts nothing."""
    eval_epsilon: float = 0.00164
    """Probability of a random action in evaluations (Horgan et al. 2018: that of the greediest actor)."""
    stop_at_target: bool = False
    """End a run when an evaluation reaches --target-score."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stop_at_target and (self.target_score is None or self.score != "evaluation"):
            checks.refuse(self, "stop_at_target", "evaluations have no target; give --target-score")

    @property
    def report_seconds(self) -> float:
        """The learner's updates are told apart by the second."""
        return 1.0

    def base(self, game: str, machine: Machine) -> TrainConfig:
        """`ddrl train apex-dqn` with the study's budget and evaluations.

        Raises:
            UsageError: --train-options that cannot be.
        """
        config = base_config(self, "apex-dqn", game, machine)
        if not config.apex.actors:
            raise UsageError("--train-options: a study of Ape-X needs actors; leave --actors out, which the study sets")
        names = ("eval_games", "eval_every_updates", "eval_epsilon")
        evaluation: dict[str, Any] = {name: getattr(self, name) for name in names}
        evaluation["evaluator"] = self.score == "evaluation"
        evaluation["eval_time_share"] = 1.0  # it plays beside the learner
        evaluation["target_score"] = self.target_score if self.stop_at_target else None
        return config.changed(
            sampling={"simulators": self.simulators or config.sampling.simulators},
            environment={"step_time_mean_ms": self.step_time_ms} if self.step_time_ms else {},
            run=self.run,
            evaluation=evaluation,
        )

    def reported(
        self, heading: str, outcomes: Sequence[Outcome], tables: Mapping[str, tuple[Sequence[Group], Columns]],
        panels: Sequence[Panel], columns: int, notes: Sequence[str],
    ) -> Report:  # fmt: skip
        """A report whose tables say what repeats of a point came to.

        Args:
            tables: title -> its groups, and what tells them apart.
        """
        groups = next(iter(tables.values()))[0]
        if self.stop_at_target:  # there is no final score
            assert self.target_score is not None
            finding = extremes(groups, self._minutes, f"time to {self.target_score:g} in minutes")
            late = [
                (name_among(group, groups), times) for group in groups if (times := self.times(group)) and times.missed
            ]
            finding += f" {sentences([reached(late, self.target_score)])}" if late else ""
        else:
            finding = extremes(groups, final(self.score_name), f"final {self.score} score")
        slowed = f"; simulators take {self.step_time_ms:g} ms a step" if self.step_time_ms else ""
        return Report(
            heading=heading,
            caption=f"{scores_caption(self.score_name, self.eval_epsilon)}{slowed}; {spread_text(outcomes)}",
            finding=finding,
            tables=[table(title, groups, {**labels, **self._columns()}) for title, (groups, labels) in tables.items()],
            panels=panels,
            columns=columns,
            notes=[*notes, *([STOPPED] if self.stop_at_target else [])],
        )

    def _columns(self) -> Columns:
        """Runs that end with the target have no final score."""
        last: Columns = {} if self.stop_at_target else {"final score": final(self.score_name)}
        timed: Columns = {}
        if self.target_score is not None:
            timed = {f"time to {self.target_score:g}": lambda group: (times := self.times(group)) and times.text()}
        return {
            "seeds": count, "agent steps": most("agent_steps"), "updates": most("update"), **last, **timed,
            "agent steps/s": mean(rate()), "inserts/s": mean(rate("inserts_per_s")),
            "updates/s": mean(rate("updates_per_s")),
        }  # fmt: skip

    def curves(
        self, title: str, groups: Sequence[Group], label: Callable[[Group], str], against: str = SECONDS
    ) -> Panel:
        """Scores while learning."""
        y_label = f"{self.score} score"
        return learning_panel(title, y_label, groups, self.score_name, label, against, hold=self.stop_at_target)

    def end_panels(
        self, game: str, what: str, lines: Mapping[str, Sequence[Group]], x: str, log_x: bool
    ) -> Iterator[Panel]:
        """Final scores over what was varied, unless runs ended with the target; times to it, of the values with which
        every run reached it.

        Args:
            what: was varied.
            lines: label -> groups, by value.
            x: the label of their value.
        """
        if not self.stop_at_target:
            scores = [over(groups, x, final(self.score_name), label) for label, groups in lines.items()]
            yield Panel(f"{game}: at the end", what, f"{self.score} score", scores, log_x=log_x)
        times = [over(groups, x, self._minutes, label) for label, groups in lines.items()]
        if any(curve.x for curve in times):
            label = f"minutes to {self.target_score:g}"
            yield Panel(f"{game}: time to the score", what, label, times, log_x=log_x, zero=True)

    def _minutes(self, group: Group) -> Interval | None:
        """To the target; None where a run missed it, or where there is none."""
        times = self.times(group)
        mean = times and times.mean()
        return mean and mean.map(lambda seconds: seconds / 60.0)


# actors: figures 4, 6, 7 and 12 ---------------------------------------------------------------------------------------

REPLAYS = ("prioritized", "uniform")
LABELS = ("replay", "actors", "duplicates", "epsilons")
ACTORS_NOTES = {
    "number": "Horgan et al. 2018, figures 4 and 12: with 8 to 256 actors, more of them learned faster and better; "
    "prioritized replay benefited more from them than uniform replay",
    "recency": "Horgan et al. 2018, figure 6: 32 actors that insert everything 8 times do not reach what 256 actors do",
    "diversity": "Horgan et al. 2018, figure 7: the full range of epsilons is slightly better than 6 of them",
}
HELD = (
    "the samples per insert are fixed, so the learner makes more updates when more is inserted, by more actors or as "
    "duplicates; in the paper, its rate was constant"
)


@dataclasses.dataclass(frozen=True)
class ActorsSettings(ApexSettings):
    """Ape-X DQN with more and more actors, whose learner does as many updates a second with any number of them. number:
    score against time and agent steps, with prioritized and with uniform replay (figures 4 and 12); recency: the fewest
    actors with each transition inserted so often that the replay changes as fast as with the most (appendix A);
    diversity: the most actors with a few fixed epsilons beside the whole ladder (appendix B)."""

    parts: tuple[str, ...] = tuple(ACTORS_NOTES)
    """number, recency, diversity."""
    actors: tuple[int, ...] = (2, 4, 8)
    """Numbers of actors."""
    replays: tuple[str, ...] = REPLAYS
    """prioritized, uniform: for the part number; the other parts use the first of them."""
    uniform_learning_rate: float = 0.0
    """Learning rate with uniform replay (0: that of prioritized replay; the paper's best: 4 times that)."""
    epsilons: int = 6
    """Fixed epsilons, for the part diversity."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "parts", ACTORS_NOTES)
        one_of(self, "replays", REPLAYS)
        checks.at_least(self, 2, "epsilons")
        few, many = min(self.actors), max(self.actors)
        if "recency" in self.parts and (few == many or many % few):
            raise UsageError(
                f"--actors {few} to {many}: for the part recency, the largest number must be a multiple of the smallest"
            )

    def variants(self, part: str) -> list[dict[str, Any]]:
        """The labels of a part's lines; parts share some. duplicates: how often each transition is inserted; epsilons:
        how many different ones there are (0: each simulator's own)."""
        few, many, first = min(self.actors), max(self.actors), self.replays[0]
        chosen = {
            "number": [(replay, actors, 1, 0) for replay in self.replays for actors in sorted(self.actors)],
            "recency": [(first, few, 1, 0), (first, few, many // few, 0), (first, many, 1, 0)],
            "diversity": [(first, many, 1, 0), (first, many, 1, self.epsilons)],
        }
        return [dict(zip(LABELS, variant)) for variant in chosen[part]]

    def axes(self, machine: Machine) -> Iterator[Labels]:
        """Runs of one seed follow each other, so that half a study compares something."""
        variants: list[Labels] = []
        for part in self.parts:
            variants += [variant for variant in self.variants(part) if variant not in variants]
        for game, seed, variant in itertools.product(self.games, self.seeds, variants):
            yield {"game": game, **variant, "seed": seed}

    def point_name(self, labels: Labels) -> str:
        more = f"-x{labels['duplicates']}" * (labels["duplicates"] > 1)
        more += f"-{labels['epsilons']}epsilons" * bool(labels["epsilons"])
        return f"{labels['game']}-{labels['replay']}-{labels['actors']}actors{more}-seed{labels['seed']}"

    def config(self, machine: Machine, labels: Labels) -> TrainConfig:
        config = self.base(labels["game"], machine).changed(
            apex={name: labels[name] for name in ("actors", "duplicates")},
            algorithm={"epsilon_values": labels["epsilons"]},
        )
        if labels["replay"] == "prioritized":
            return config
        rate = self.uniform_learning_rate or config.optimizer.learning_rate
        return config.changed(replay={"priority_exponent": 0.0}, optimizer={"learning_rate": rate})

    def report(self, outcomes: Sequence[Outcome]) -> Report:
        """A table of all, and panels for each part and game."""
        labels = {name: name for name in ("game", *LABELS)}
        heading = "Ape-X by number of actors"
        panels = [panel for game in self.games for panel in self._panels(having(outcomes, game=game), game)]
        notes = [ACTORS_NOTES[part] for part in self.parts]
        notes.append(
            "duplicates: how many times each transition was inserted; epsilons: 0 means one for each simulator"
        )
        notes += [HELD] * any(outcome.point.config.apex.samples_per_insert for outcome in outcomes)
        tables = {heading: (grouped(outcomes, *labels), labels)}
        return self.reported(heading, outcomes, tables, panels, min(3, len(panels)), notes)

    def _panels(self, outcomes: Sequence[Outcome], game: str) -> Iterator[Panel]:
        for part in self.parts:
            for replay in self.replays if part == "number" else self.replays[:1]:
                variants = [variant for variant in self.variants(part) if variant["replay"] == replay]
                groups = [Group(variant, runs) for variant in variants if (runs := having(outcomes, **variant))]
                title = f"{game}: {replay if part == 'number' else part}"
                label = _range_of_epsilons if part == "diversity" else _number_of_actors
                for against in ((SECONDS, STEPS) if part == "number" else (SECONDS,)) if groups else ():
                    yield self.curves(title, groups, label, against)
        if "number" in self.parts:
            plain = having(outcomes, duplicates=1, epsilons=0)
            lines = {
                replay: sorted(grouped(having(plain, replay=replay), "actors"), key=lambda group: group["actors"])
                for replay in self.replays
            }
            yield from self.end_panels(game, "actors", lines, "actors", log_x=True)


def _range_of_epsilons(variant: Group) -> str:
    return f"{variant['epsilons']} epsilons" if variant["epsilons"] else "the whole ladder"


def _number_of_actors(variant: Group) -> str:
    times = f", each {variant['duplicates']} times" if variant["duplicates"] > 1 else ""
    return f"{counted(variant['actors'], 'actor')}{times}"


ACTORS = Study(
    name="actors",
    about="Ape-X by number of actors; recency and diversity of their data (Ape-X, figures 4, 6, 7, 12)",
    defaults=ActorsSettings(minutes=10.0, eval_games=30),
    quick_changes={
        "actors": (1, 2), "simulators": 2, "step_time_ms": 5.0, "minutes": 0.6, "eval_every_updates": 200,
        "eval_games": 10, "target_score": 0.0, "train_options": "--replay-minimum 200",
    },
    point_name=ActorsSettings.point_name,
)  # fmt: skip


# replay: figure 5, appendix E -----------------------------------------------------------------------------------------

PARTS = {"capacity": "capacities", "batch-size": "batch_sizes", "exponent": "priority_exponents"}
"""Part -> the field of its values."""
TITLES = {"capacity": "replay capacity", "batch-size": "batch size", "exponent": "priority exponent"}
REPLAY_NOTES = {
    "capacity": "Horgan et al. 2018, figure 5: a small benefit of larger replays, from 250,000 to 2 million "
    "transitions with 256 actors",
    "batch-size": "Horgan et al. 2018, appendix E: batch sizes from 32 to 1,024",
    "exponent": "Horgan et al. 2018, appendix E: priority exponents from 0 to 1",
}


@dataclasses.dataclass(frozen=True)
class ReplaySettings(ApexSettings):
    """Ape-X DQN with another replay. capacity: transitions that it keeps (figure 5); batch-size: transitions in an
    update; exponent: of the priorities that they are drawn with, 0 draws uniformly (appendix E)."""

    parts: tuple[str, ...] = tuple(PARTS)
    """capacity, batch-size, exponent."""
    capacities: tuple[int, ...] = (25_000, 50_000, 100_000, 200_000)
    """Transitions, for the part capacity (the paper: 250 thousand to 2 million)."""
    batch_sizes: tuple[int, ...] = (32, 64, 128, 256, 512, 1024)
    """Transitions drawn at once, for the part batch-size."""
    priority_exponents: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    """For the part exponent."""
    actors: int = 0
    """Actors of each run (0: the preset's)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "parts", PARTS)
        if min(self.priority_exponents) < 0 or max(self.priority_exponents) > 1:
            raise UsageError("--priority-exponents must be between 0 and 1")

    def axes(self, machine: Machine) -> Iterator[Labels]:
        """Part by part."""
        for part in self.parts:
            values = sorted(getattr(self, PARTS[part]))
            yield from product(part=[part], game=self.games, seed=self.seeds, value=values)

    def config(self, machine: Machine, labels: Labels) -> TrainConfig:
        config, part, value = self.base(labels["game"], machine), labels["part"], labels["value"]
        minimum = min(config.replay.replay_minimum, value // 2)
        changes: dict[str, dict[str, Any]] = {
            "capacity": {"replay": {"replay_capacity": value, "replay_minimum": minimum}},
            "batch-size": {"optimizer": {"batch_size": value}},
            "exponent": {"replay": {"priority_exponent": value}},
        }[part]
        return config.changed(apex={"actors": self.actors or config.apex.actors}, **changes)

    def report(self, outcomes: Sequence[Outcome]) -> Report:
        """A table and two panels for each part and game: curves, and the score at the end over the values."""
        tables: dict[str, tuple[Sequence[Group], Columns]] = {}
        panels: list[Panel] = []
        for part in self.parts:
            of_part, what = having(outcomes, part=part), TITLES[part]
            if of_part:
                tables[what.capitalize()] = grouped(of_part, "game", "value"), {"game": "game", what: "value"}
            for game in grouped(of_part, "game"):
                here = sorted(grouped(game.runs, "value"), key=lambda group: group["value"])
                panels.append(self.curves(f"{game['game']}: {what}", here, lambda group: f"{group['value']:,g}"))
                panels += self.end_panels(game["game"], what, {"": here}, "value", log_x=part != "exponent")
        columns = 3 if self.target_score is not None and not self.stop_at_target else 2
        notes = [REPLAY_NOTES[part] for part in self.parts]
        return self.reported("Ape-X by its replay", outcomes, tables, panels, columns, notes)


REPLAY = Study(
    name="replay",
    about="Ape-X by capacity, batch size and priority exponent (Ape-X, figure 5, appendix E)",
    defaults=ReplaySettings(minutes=10.0, eval_games=30),
    quick_changes={
        "capacities": (500, 5000), "batch_sizes": (32, 128), "priority_exponents": (0.0, 1.0), "minutes": 0.6,
        "eval_every_updates": 200, "eval_games": 10, "simulators": 2, "step_time_ms": 5.0,
        "train_options": "--replay-minimum 200",
    },
    point_name="{part}-{game}-{value:g}-seed{seed}",
)  # fmt: skip
