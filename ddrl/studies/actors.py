"""`ddrl study actors`: Ape-X over the number of actors (Horgan et al. 2018, figures 4, 6, 7 and 12)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ddrl import checks
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.studies.apex import ApexSettings, apex_config, caption, end_panels, result_columns, results, stop_notes
from ddrl.studies.curves import score_curve, steps_unit, time_unit
from ddrl.studies.figures import Curve, Panel
from ddrl.studies.groups import grouped, having
from ddrl.studies.points import Outcome, Point
from ddrl.studies.settings import changed, game_name, not_empty, one_of
from ddrl.studies.study import Report, Study
from ddrl.studies.tables import Table
from ddrl.types import Machine

PARTS = ("number", "recency", "diversity")
REPLAYS = ("prioritized", "uniform")
LABELS = ("replay", "actors", "duplicates", "epsilons")
NOTES = {
    "number": "Horgan et al. 2018, figures 4 and 12: more actors learned faster and better, with 8 to 256 of them; "
    "prioritized replay took more advantage of them than uniform replay",
    "recency": "Horgan et al. 2018, figure 6: 32 actors that insert everything 8 times do not reach what 256 actors do",
    "diversity": "Horgan et al. 2018, figure 7: the full range of epsilons is slightly better than 6 of them",
}


class Variant(NamedTuple):
    """How data are made and drawn.

    Attributes:
        duplicates: times that each transition is inserted.
        epsilons: different ones (0: each simulator's own).
    """

    replay: str
    actors: int
    duplicates: int = 1
    epsilons: int = 0

    @property
    def name(self) -> str:
        """As part of a point's name."""
        more = f"-x{self.duplicates}" * (self.duplicates > 1) + f"-{self.epsilons}epsilons" * bool(self.epsilons)
        return f"{self.replay}-{self.actors}actors{more}"


@dataclasses.dataclass(frozen=True)
class ActorsSettings(ApexSettings):
    """Ape-X DQN with more and more actors, whose learner does as many updates a second with any number of them. number:
    score against time and agent steps, with prioritized and with uniform replay (figures 4 and 12); recency: the fewest
    actors with each transition inserted so often that the replay changes as fast as with the most (appendix A);
    diversity: the most actors with a few fixed epsilons beside the whole ladder (appendix B)."""

    parts: tuple[str, ...] = PARTS
    """number, recency, diversity."""
    actors: tuple[int, ...] = (2, 4, 8)
    """Numbers of actors."""
    replays: tuple[str, ...] = REPLAYS
    """prioritized, uniform: for the part number; the others draw as the first of them."""
    uniform_learning_rate: float = 0.0
    """Learning rate with uniform replay (0: that of prioritized replay; the paper's best: 4 times that)."""
    epsilons: int = 6
    """Fixed epsilons, for the part diversity."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "parts", PARTS)
        one_of(self, "replays", REPLAYS)
        not_empty(self, "actors")
        checks.at_least(self, 0.0, "uniform_learning_rate")
        checks.at_least(self, 2, "epsilons")
        if min(self.actors) < 1:
            raise UsageError(f"--actors {' '.join(map(str, self.actors))}: at least 1 each")
        few, many = min(self.actors), max(self.actors)
        if "recency" in self.parts and (few == many or many % few):
            raise UsageError(f"--actors {few} to {many}: for the part recency the most are a multiple of the fewest")

    def variants(self, part: str) -> list[Variant]:
        """The lines of a part. Parts share some."""
        few, many, first = min(self.actors), max(self.actors), self.replays[0]
        if part == "recency":
            return [Variant(first, few), Variant(first, few, many // few), Variant(first, many)]
        if part == "diversity":
            return [Variant(first, many), Variant(first, many, epsilons=self.epsilons)]
        return [Variant(replay, actors) for replay in self.replays for actors in sorted(self.actors)]


def points(settings: ActorsSettings, machine: Machine) -> list[Point]:
    """All of them; runs of one seed follow each other, so that half a study compares something."""
    variants = dict.fromkeys(variant for part in settings.parts for variant in settings.variants(part))
    return [
        Point(
            f"{game_name(game)}-{variant.name}-seed{seed}",
            _config(settings, variant, game, machine, seed),
            {"game": game, **variant._asdict()},
        )
        for game in settings.games
        for seed in settings.seeds
        for variant in variants
    ]


def _config(settings: ActorsSettings, variant: Variant, game: str, machine: Machine, seed: int) -> TrainConfig:
    config = apex_config(settings, game, machine, seed)
    config = changed(
        config,
        apex={"actors": variant.actors, "duplicates": variant.duplicates},
        algorithm={"epsilon_values": variant.epsilons},
    )
    if variant.replay == "prioritized":
        return config
    rate = settings.uniform_learning_rate or config.optimizer.learning_rate
    return changed(config, replay={"priority_exponent": 0.0}, optimizer={"learning_rate": rate})


def report(settings: ActorsSettings, outcomes: Sequence[Outcome]) -> Report:
    """A table of all, and panels for each part and game."""
    rows = [[*labels, *results(settings, runs)] for labels, runs in grouped(outcomes, "game", *LABELS)]
    table = Table("Ape-X by number of actors", ("game", *LABELS, *result_columns(settings)), rows)
    panels = [panel for game in settings.games for panel in _panels(settings, having(outcomes, game=game), game)]
    notes = [NOTES[part] for part in settings.parts]
    notes.append("duplicates: times that each transition was inserted; epsilons: 0 is one for each simulator")
    if any(outcome.point.config.apex.samples_per_insert for outcome in outcomes):
        notes.append(
            "samples for each insert are held, so the learner makes more updates when more is inserted, by more actors "
            "or by duplicates; in the paper its rate was the same"
        )
    notes += stop_notes(settings)
    columns = min(3, len(panels))
    return Report("Ape-X by number of actors", caption(settings, outcomes), [table], panels, columns, notes)


def _panels(settings: ActorsSettings, outcomes: Sequence[Outcome], game: str) -> Iterator[Panel]:
    label = f"{settings.score} score"
    for part in settings.parts:
        for replay in settings.replays if part == "number" else settings.replays[:1]:
            variants = [variant for variant in settings.variants(part) if variant.replay == replay]
            some = [(variant, runs) for variant in variants if (runs := having(outcomes, **variant._asdict()))]
            both = (
                (("wall_seconds", time_unit), ("agent_steps", steps_unit))
                if part == "number"
                else (("wall_seconds", time_unit),)
            )
            for against, unit_of in both if some else ():
                unit, x_label = unit_of([run for _, runs in some for run in runs])
                curves = [_curve(settings, part, *item, against, unit) for item in some]
                yield Panel(f"{game}: {replay if part == 'number' else part}", x_label, label, curves)
    if "number" in settings.parts:
        yield from _over_actors(settings, having(outcomes, duplicates=1, epsilons=0), game)


def _curve(
    settings: ActorsSettings, part: str, variant: Variant, runs: Sequence[Outcome], against: str, unit: float
) -> Curve:
    names = {
        "number": f"{variant.actors} actors",
        "recency": f"{variant.actors} actors, each {variant.duplicates} times",
        "diversity": f"{variant.epsilons} epsilons" if variant.epsilons else "the whole ladder",
    }
    label = names[part].replace(", each 1 times", "")
    return score_curve(runs, settings.score_name, against, unit, label, hold=settings.stop_at_target)


def _over_actors(settings: ActorsSettings, outcomes: Sequence[Outcome], game: str) -> Iterator[Panel]:
    """A line for each replay."""
    lines = {}
    for replay in settings.replays:
        found = sorted(grouped(having(outcomes, replay=replay), "actors"))
        lines[replay] = [(actors, runs) for (actors,), runs in found]
    return end_panels(settings, game, "actors", lines, log_x=True)


STUDY = Study(
    name="actors",
    defaults=ActorsSettings(),
    quick=ActorsSettings(
        quick=True,
        preset="smoke",
        games=("ddrl/Catch-v0",),
        actors=(1, 2),
        simulators=2,
        step_time_ms=5.0,
        minutes=0.6,
        eval_every_updates=200,
        eval_games=10,
        target_score=0.0,
        train_options="--replay-minimum 200",
    ),
    points=points,
    report=report,
)
