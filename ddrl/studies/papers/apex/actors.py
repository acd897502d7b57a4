"""The study of Ape-X with different numbers of actors: Horgan et al. 2018, figures 4, 6, 7, and 12."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddrl import checks
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.studies.curves import SECONDS, STEPS, over
from ddrl.studies.figures import Panel
from ddrl.studies.findings import compared, sentences
from ddrl.studies.measures import updates_until
from ddrl.studies.papers.apex.settings import ApexSettings
from ddrl.studies.points import Group, Outcome, grouped, having
from ddrl.studies.settings import one_of
from ddrl.studies.statistics import Interval, bootstrap, bootstrap_ratio
from ddrl.studies.study import Labels, Report, Study
from ddrl.studies.tables import Table
from ddrl.types import Machine
from ddrl.wording import counted

REPLAYS = ("prioritized", "uniform")
LABELS = ("replay", "actors", "duplicates", "epsilons")
ACTORS_NOTES = {
    "number": "Horgan et al. 2018, figures 4 and 12: with 8 to 256 actors, more of them learned faster and better; "
    "prioritized replay benefited more from them than uniform replay",
    "recency": "Horgan et al. 2018, figure 6: 32 actors that insert everything 8 times do not reach what 256 actors do",
    "diversity": "Horgan et al. 2018, figure 7: the full range of epsilons is slightly better than 6 of them",
}
HELD = (
    "--samples-per-insert is that of the most actors; fewer have a larger one, so that the learner makes as many "
    "updates a second with any number of them, as in the paper"
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
        if "recency" in self.parts and (self.few == self.many or self.many % self.few):
            raise UsageError(
                f"--actors {self.few} to {self.many}: for the part recency, the largest number must be a multiple of "
                "the smallest"
            )

    @property
    def few(self) -> int:
        """The smallest number of actors."""
        return min(self.actors)

    @property
    def many(self) -> int:
        """The largest number of actors."""
        return max(self.actors)

    def variants(self, part: str) -> list[Labels]:
        """The labels of what a part compares, some of which are also those of another part.

        The label `duplicates` is how often each transition is inserted, and `epsilons` how many different epsilons
        there are (0: each simulator has its own).
        """
        few, many, first = self.few, self.many, self.replays[0]
        if part == "number":
            return [_variant(replay, actors) for replay in self.replays for actors in sorted(self.actors)]
        if part == "recency":
            return [_variant(first, few), _variant(first, few, duplicates=many // few), _variant(first, many)]
        return [_variant(first, many), _variant(first, many, epsilons=self.epsilons)]

    def axes(self, machine: Machine) -> Iterator[Labels]:
        """Yields the points of each game seed by seed, so that a study that is half done has something to compare."""
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
        config = self.base(labels["game"], machine)
        share = labels["actors"] * labels["duplicates"] / self.many  # of what is inserted with the most actors
        ratio = config.apex.samples_per_insert / share
        config = config.changed(
            apex={"actors": labels["actors"], "duplicates": labels["duplicates"], "samples_per_insert": ratio},
            algorithm={"epsilon_values": labels["epsilons"]},
        )
        if labels["replay"] == "prioritized":
            return config
        rate = self.uniform_learning_rate or config.optimizer.learning_rate
        return config.changed(replay={"priority_exponent": 0.0}, optimizer={"learning_rate": rate})

    def report(self, outcomes: Sequence[Outcome]) -> Report:
        """A table of all runs, a table of what more actors gain, and panels for each part and game."""
        labels = {name: name for name in ("game", *LABELS)}
        heading = "Ape-X by number of actors"
        panels = [panel for game in self.games for panel in self._panels(having(outcomes, game=game), game)]
        notes = [ACTORS_NOTES[part] for part in self.parts]
        notes.append(
            "duplicates: how many times each transition was inserted; epsilons: 0 means one for each simulator"
        )
        notes += [HELD] * any(outcome.point.config.apex.samples_per_insert for outcome in outcomes)
        tables = {heading: (grouped(outcomes, *labels), labels)}
        report = self.reported(heading, outcomes, tables, panels, min(3, len(panels)), notes)
        if self.target_score is None or self.few == self.many:
            return report
        clauses, rows = [], []
        for game in self.games:
            here = having(outcomes, game=game)
            ratios = self._ratios(here) if "number" in self.parts else {}
            found = [clause for part in self.parts for clause in self._compared(part, here, ratios)]
            clauses += [f"{clause} on {game}" for clause in found] if len(self.games) > 1 else found
            rows += [[game, replay, ratio] for replay, ratio in ratios.items()]
        columns = ("game", "replay", f"updates to {self.target_score:g}, {self.many} actors / {self.few}")
        more = [Table("What more actors gain", columns, rows)] if rows else []
        finding = f"{report.finding} {sentences(clauses)}".rstrip()
        return dataclasses.replace(report, finding=finding, tables=[*report.tables, *more])

    def _compared(self, part: str, outcomes: Sequence[Outcome], ratios: Mapping[str, Interval | None]) -> Iterator[str]:
        """Yields clauses that compare a part's runs by the number of updates until the target.

        Unlike times, these do not include how long a job takes to start.

        Args:
            ratios: see `_ratios`.
        """
        what = f"number of updates to {self.target_score:g}"
        if part != "number":
            name = _number_of_actors if part == "recency" else _range_of_epsilons
            one, other = ((name(each), self._mean_updates(outcomes, each)) for each in self.variants(part)[-2:])
            yield compared(*one, *other, what)
            return
        for replay in self.replays:
            one, other = (
                (
                    f"{counted(actors, 'actor')} with {replay} replay",
                    self._mean_updates(outcomes, _variant(replay, actors)),
                )
                for actors in (self.many, self.few)
            )
            yield compared(*one, *other, what)
        if len(ratios) == 2:
            to = f"{counted(self.many, 'actor')} to those of {self.few}"
            one, other = ((f"{to} with {replay} replay", ratio) for replay, ratio in ratios.items())
            yield compared(*one, *other, "ratio of these updates")

    def _ratios(self, outcomes: Sequence[Outcome]) -> dict[str, Interval | None]:
        """Replay -> the ratio of the updates until the target with the most actors to those with the fewest."""
        return {
            replay: bootstrap_ratio(
                self._updates(outcomes, _variant(replay, self.many)),
                self._updates(outcomes, _variant(replay, self.few)),
            )
            for replay in self.replays
        }

    def _mean_updates(self, outcomes: Sequence[Outcome], variant: Labels) -> Interval | None:
        """Mean number of updates until a variant's runs reached the target; None if a run never did."""
        return bootstrap(self._updates(outcomes, variant))

    def _updates(self, outcomes: Sequence[Outcome], variant: Labels) -> list[int]:
        """Updates until each run of a variant reached the target; empty if one never did."""
        assert self.target_score is not None
        updates = updates_until(having(outcomes, **variant), self.score_name, self.target_score)
        reached = [count for count in updates if count is not None]
        return reached if len(reached) == len(updates) else []

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
            if self.target_score is not None:
                updates = [
                    over(groups, "actors", lambda group: self._mean_updates(group.runs, group.labels), replay)
                    for replay, groups in lines.items()
                ]
                y_label = f"updates to {self.target_score:g}"
                yield Panel(f"{game}: updates to the score", "actors", y_label, updates, log_x=True, zero=True)


def _variant(replay: str, actors: int, duplicates: int = 1, epsilons: int = 0) -> dict[str, Any]:
    return {"replay": replay, "actors": actors, "duplicates": duplicates, "epsilons": epsilons}


def _range_of_epsilons(variant: Group | Labels) -> str:
    return f"{variant['epsilons']} epsilons" if variant["epsilons"] else "the whole ladder"


def _number_of_actors(variant: Group | Labels) -> str:
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
