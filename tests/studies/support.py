"""A study of points that train nothing: their runner writes what a run would leave."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

from ddrl import rundir
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.commands import study as command
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.studies.curves import STEPS, learning_panel, spread_text
from ddrl.studies.measures import ONLINE, mean, newest
from ddrl.studies.points import Outcome, Point, grouped
from ddrl.studies.settings import BudgetSettings
from ddrl.studies.study import Report, Study, product
from ddrl.studies.tables import table
from ddrl.types import Machine

MACHINE = Machine(2, 1 << 40)


@dataclasses.dataclass(frozen=True)
class FakeSettings(BudgetSettings):
    """Nothing is learned."""

    sizes: tuple[int, ...] = (1, 2)
    """Sizes."""
    repeats: int = 2
    """Seeds."""
    minutes: float = 1.0
    """Of each point."""

    def axes(self, machine: Machine) -> Iterator[dict]:
        return product(game=self.games, size=self.sizes, seed=self.seeds)

    def config(self, machine: Machine, labels: dict) -> TrainConfig:
        return TrainConfig(algorithm=BA3CConfig()).changed(run={"minutes": self.minutes})

    def report(self, outcomes: list[Outcome]) -> Report:
        groups = grouped(outcomes, "size")
        scores = table("scores", groups, {"size": "size", "score": mean(newest(ONLINE))})
        panel = learning_panel("fake", "score", groups, ONLINE, lambda group: str(group["size"]), STEPS)
        return Report("A fake", spread_text(outcomes), [scores], [panel], notes=["made up"])


def points(settings: FakeSettings, machine: Machine) -> list[Point]:
    return study(Runner()).points(settings, machine)


class Runner:
    """Writes a run's files, or does what `acts` says for a name: fail, refuse, stop.

    Attributes:
        ran: names, in order.
    """

    def __init__(self, **acts: str):
        self.acts, self.ran = acts, []

    def __call__(self, point: Point, path: Path) -> None:
        self.ran.append(point.name)
        act = self.acts.get(point.name.replace("-", "_"), "finish")
        if act == "refuse":
            raise UsageError("no\nway")
        path.mkdir(parents=True, exist_ok=True)
        rundir.write_json(path / rundir.CONFIG, rundir.config_to_dict(point.config))
        if act == "fail":
            rundir.write_json(path / rundir.RESULT, {"status": "failed", "message": "broke"})
        elif act == "stop":
            rundir.write_json(path / rundir.RESULT, {"status": "stopped"})
        else:
            write_run(path, point.labels["size"] * point.config.run.seed)


def write_run(path: Path, slope: float = 1.0, points: int = 5) -> None:
    """A finished run whose online score grows by `slope` in 100 agent steps and a second."""
    path.mkdir(parents=True, exist_ok=True)
    lines = [
        {"kind": "train", "wall_seconds": float(i), "agent_steps": 100 * i, "online_score_mean": slope * i}
        for i in range(1, points + 1)
    ]
    (path / rundir.METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    rundir.write_json(path / rundir.RESULT, {"status": "finished"})


def study(runner: Runner) -> Study:
    """The fake study with a runner."""
    return Study(
        name="fake",
        about="nothing is learned",
        defaults=FakeSettings(),
        quick_changes={"sizes": (1,)},
        point_name="size{size}-seed{seed}",
        run=runner,
    )


def outcome(
    labels: dict, records: list, config: TrainConfig | None = None, path: Path = Path("none"), **result
) -> Outcome:
    """A finished point that was never run."""
    config = config or TrainConfig(algorithm=BA3CConfig())
    return Outcome(
        Point("-".join(map(str, labels.values())), config, labels), {"status": "finished", **result}, records, path
    )


def fake(*arguments: object) -> int:
    """`ddrl study fake ARGUMENTS`, which the fixture `runner` makes possible; returns the exit status."""
    return command.main(["fake", *map(str, arguments)])
