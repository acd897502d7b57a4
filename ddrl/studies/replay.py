"""`ddrl study replay`: capacity, batch size and priorities in Ape-X (Horgan et al. 2018, figure 5, appendix E)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from ddrl import checks
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.studies.apex import ApexSettings, apex_config, caption, end_panels, result_columns, results, stop_notes
from ddrl.studies.curves import score_curve, time_unit
from ddrl.studies.figures import Curve, Panel
from ddrl.studies.groups import grouped, having
from ddrl.studies.points import Outcome, Point
from ddrl.studies.settings import changed, game_name, not_empty, one_of
from ddrl.studies.study import Report, Study
from ddrl.studies.tables import Table
from ddrl.types import Machine

PARTS = {"capacity": "capacities", "batch-size": "batch_sizes", "exponent": "priority_exponents"}
"""Part -> the field of its values."""
TITLES = {"capacity": "replay capacity", "batch-size": "batch size", "exponent": "priority exponent"}
NOTES = {
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
    """Actors of every run (0: the preset's)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "parts", PARTS)
        not_empty(self, *PARTS.values())
        checks.at_least(self, 0, "actors")
        if min(*self.capacities, *self.batch_sizes) < 1:
            raise UsageError("--capacities and --batch-sizes are at least 1")
        if min(self.priority_exponents) < 0 or max(self.priority_exponents) > 1:
            raise UsageError("--priority-exponents are in 0 to 1")

    def values(self, part: str) -> tuple[Any, ...]:
        """What a part varies."""
        return tuple(sorted(getattr(self, PARTS[part])))


def points(settings: ReplaySettings, machine: Machine) -> list[Point]:
    """All of them, part by part."""
    return [
        Point(
            f"{part}-{game_name(game)}-{value:g}-seed{seed}",
            _config(settings, part, value, game, machine, seed),
            {"part": part, "game": game, "value": value},
        )
        for part in settings.parts
        for game in settings.games
        for seed in settings.seeds
        for value in settings.values(part)
    ]


def _config(settings: ReplaySettings, part: str, value: Any, game: str, machine: Machine, seed: int) -> TrainConfig:
    config = apex_config(settings, game, machine, seed)
    config = changed(config, apex={"actors": settings.actors or config.apex.actors})
    if part == "batch-size":
        return changed(config, optimizer={"batch_size": value})
    if part == "exponent":
        return changed(config, replay={"priority_exponent": value})
    least = min(config.replay.replay_minimum, value // 2)
    return changed(config, replay={"replay_capacity": value, "replay_minimum": least})


def report(settings: ReplaySettings, outcomes: Sequence[Outcome]) -> Report:
    """A table and two panels for each part and game: curves, and the score at the end over the values."""
    tables, panels = [], []
    for part in settings.parts:
        some = having(outcomes, part=part)
        if some:
            rows = [[*labels, *results(settings, runs)] for labels, runs in grouped(some, "game", "value")]
            title = TITLES[part].capitalize()
            tables.append(Table(title, ("game", TITLES[part], *result_columns(settings)), rows))
            panels += list(_panels(settings, part, some))
    notes = [NOTES[part] for part in settings.parts] + stop_notes(settings)
    columns = 3 if settings.target_score is not None and not settings.stop_at_target else 2
    return Report("Ape-X by its replay", caption(settings, outcomes), tables, panels, columns, notes)


def _panels(settings: ReplaySettings, part: str, outcomes: Sequence[Outcome]) -> Iterator[Panel]:
    for (game,), some in grouped(outcomes, "game"):
        unit, x_label = time_unit(some)
        found = [(value, runs) for (value,), runs in sorted(grouped(some, "value"))]
        curves = [_curve(settings, value, runs, unit) for value, runs in found]
        yield Panel(f"{game}: {TITLES[part]}", x_label, f"{settings.score} score", curves)
        yield from end_panels(settings, game, TITLES[part], {"": found}, log_x=part != "exponent")


def _curve(settings: ReplaySettings, value: float, runs: Sequence[Outcome], unit: float) -> Curve:
    label = f"{value:,g}" if value > 1 else f"{value:g}"
    return score_curve(runs, settings.score_name, "wall_seconds", unit, label, hold=settings.stop_at_target)


STUDY = Study(
    name="replay",
    defaults=ReplaySettings(),
    quick=ReplaySettings(
        quick=True,
        preset="smoke",
        games=("ddrl/Catch-v0",),
        capacities=(500, 5000),
        batch_sizes=(32, 128),
        priority_exponents=(0.0, 1.0),
        minutes=0.6,
        eval_every_updates=200,
        eval_games=10,
        simulators=2,
        step_time_ms=5.0,
        train_options="--replay-minimum 200",
    ),
    points=points,
    report=report,
)
