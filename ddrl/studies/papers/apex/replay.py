"""The study of Ape-X with different replays: Horgan et al. 2018, figure 5 and appendix E."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from ddrl import checks
from ddrl.config import TrainConfig
from ddrl.studies.figures import Panel
from ddrl.studies.papers.apex.settings import ApexSettings
from ddrl.studies.points import Group, Outcome, grouped, having
from ddrl.studies.settings import one_of
from ddrl.studies.study import Labels, Report, Study, product
from ddrl.studies.tables import Columns
from ddrl.types import Machine

PARTS = {"capacity": "capacities", "batch-size": "batch_sizes", "exponent": "priority_exponents"}
"""Part -> the setting that holds its values."""
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
            checks.refuse(self, "priority_exponents", "each must be between 0 and 1")

    def axes(self, machine: Machine) -> Iterator[Labels]:
        """Yields the points part by part."""
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
    about="Ape-X by capacity, batch size, and priority exponent (Ape-X, figure 5, appendix E)",
    defaults=ReplaySettings(minutes=10.0, eval_games=30),
    quick_changes={
        "capacities": (500, 5000), "batch_sizes": (32, 128), "priority_exponents": (0.0, 1.0), "minutes": 0.6,
        "eval_every_updates": 200, "eval_games": 10, "simulators": 2, "step_time_ms": 5.0,
        "train_options": "--replay-minimum 200",
    },
    point_name="{part}-{game}-{value:g}-seed{seed}",
)  # fmt: skip
