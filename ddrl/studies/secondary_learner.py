"""`ddrl study secondary-learner`: exploration or optimization? (Stooke and Abbeel 2018, appendix B)."""

from __future__ import annotations

import dataclasses
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ddrl import rundir
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.studies.curves import score_curve, spread_text, steps_unit
from ddrl.studies.figures import Curve, Panel
from ddrl.studies.groups import grouped
from ddrl.studies.measures import bootstrap
from ddrl.studies.points import Outcome, Point
from ddrl.studies.q_learning import Scored, check_scored, scored, with_batch
from ddrl.studies.settings import StudySettings, base_config, changed, game_name, not_empty
from ddrl.studies.sized import last_score
from ddrl.studies.study import Report, Study
from ddrl.studies.tables import Table
from ddrl.types import Machine

LEARNERS = ("sampler", "secondary")
NORM = "parameter_norm/all"
WORKER = "ddrl.bench.secondary_worker"
PAPER = (
    "Stooke and Abbeel 2018, appendix B, Breakout: a secondary learner of batch 64 kept up with its sampler of 2,048; "
    "one of 2,048 learned nothing beside a sampler of 64; two of 256 scored alike"
)


class Pair(NamedTuple):
    """Batch sizes of the learner that acts, and of the one that does not."""

    sampler: int
    secondary: int


@dataclasses.dataclass(frozen=True)
class SecondarySettings(Scored, StudySettings):
    """A secondary DQN learner trains from nothing but the replay of a normal one, the sampler, with batches of another
    size: where it keeps up, optimization does not limit large batches (Stooke and Abbeel 2018, appendix B). Both begin
    with equal parameters and use every transition 8 times. A point that is interrupted begins anew."""

    repeats: int = 2
    """Runs of every point, each with a seed of its own."""
    pairs: tuple[str, ...] = ("2048:64", "64:2048", "256:256")
    """Batch sizes of sampler and secondary learner, multiples of 8."""
    agent_steps: int = 2_000_000
    """Agent steps of a point (0: as many as --minutes allow; the paper: some 50 million)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scored(self)
        not_empty(self, "pairs")
        if self.score == "online":
            raise UsageError("--score online: the secondary learner plays no training games; use evaluation")
        self.parsed()

    def parsed(self) -> list[Pair]:
        """The pairs.

        Raises:
            UsageError: one that says nothing.
        """
        found = []
        for words in self.pairs:
            sizes = words.split(":")
            if len(sizes) != 2 or not all(size.isdecimal() and int(size) > 0 for size in sizes):
                raise UsageError(f"--pairs {words}: write batch sizes of sampler and secondary learner, as in 2048:64")
            found.append(Pair(*map(int, sizes)))
        return found


def points(settings: SecondarySettings, machine: Machine) -> list[Point]:
    """All of them; the configuration is the sampler's."""
    return [
        _point(settings, machine, game, pair, seed)
        for game in settings.games
        for pair in settings.parsed()
        for seed in settings.seeds
    ]


def _point(settings: SecondarySettings, machine: Machine, game: str, pair: Pair, seed: int) -> Point:
    config = changed(base_config(settings, "dqn", game, machine), sampling={"schedule": "concurrent"})
    if not config.single_process:
        raise UsageError("secondary-learner: its two learners share one process; leave workers out of --train-options")
    config = with_batch(with_batch(config, "dqn", max(pair)), "dqn", pair.sampler)  # a target period that suits both
    labels = {"game": game, **pair._asdict()}
    name = f"{game_name(game)}-{pair.sampler}-secondary-{pair.secondary}-seed{seed}"
    return Point(name, scored(settings, config, seed), labels)


def secondary_config(point: Point) -> TrainConfig:
    """Settings of the secondary learner."""
    return with_batch(point.config, "dqn", point.labels["secondary"])


def run_point(point: Point, path: Path) -> None:
    """Trains both learners in a process of their own.

    Raises:
        UsageError, RuntimeError: it cannot be, or that process died or said nothing for too long.
    """
    from ddrl.bench.children import kill, start_child
    from ddrl.launch.processes import Interrupts
    from ddrl.reporting.metrics import MetricsWriter

    path.mkdir(parents=True, exist_ok=True)
    config = point.config
    pair = zip(LEARNERS, (config, secondary_config(point)))
    first = {learner: rundir.config_to_dict(settings) for learner, settings in pair}
    patience = 2 * config.evaluation.longest_seconds + config.run.start_seconds + config.run.stall_seconds
    with rundir.locked(path), tempfile.TemporaryFile("w+") as log, Interrupts() as interrupts:
        for name in (rundir.METRICS, rundir.RESULT):
            (path / name).unlink(missing_ok=True)
        rundir.write_json(path / rundir.CONFIG, first["sampler"])
        writer = MetricsWriter(path)
        process = start_child(WORKER, first, log)
        try:
            for record in _records(process, log, patience):
                writer.write(record)
                if interrupts.stop:
                    break
        finally:
            kill([process])
            writer.close()
        rundir.write_json(path / rundir.RESULT, {"status": "stopped" if interrupts.stop else "finished"})


def _records(process: Any, log: Any, patience: float) -> Iterator[dict[str, Any]]:
    """What the process says, until its end; it is killed when it says nothing for so many seconds."""
    from ddrl.bench.children import answers

    while True:
        timer = threading.Timer(patience, process.kill)
        timer.start()
        try:
            (record,) = answers([process], log)
        finally:
            timer.cancel()
        if record.get("end"):
            return
        yield record


def of_learner(run: Outcome, learner: str) -> Outcome:
    """A run with the records of one of the two alone."""
    return run._replace(records=[record for record in run.records if record.get("learner") == learner])


def report(settings: SecondarySettings, outcomes: Sequence[Outcome]) -> Report:
    """Figures 6 to 8: scores of both learners, and the norms of their parameters; a column for each pair."""
    columns = ("game", "learner", "batch size", "beside", "seeds", "updates", "score", "norm of parameters")
    found = list(grouped(outcomes, "game", "sampler", "secondary"))
    rows = [_row(settings, labels, runs, learner) for labels, runs in found for learner in LEARNERS]
    scores = [_panel(labels, runs, settings.score_name, "raw score") for labels, runs in found]
    norms = [_panel(labels, runs, NORM, "norm of the parameters") for labels, runs in found]
    return Report(
        heading="A secondary DQN learner beside the one that acts",
        caption=f"{settings.caption}; {spread_text(outcomes)}",
        tables=[Table("At the end of the budget", columns, rows)],
        panels=[*scores, *norms],
        columns=len(found),
        notes=[PAPER],
    )


def _row(settings: SecondarySettings, labels: tuple[Any, ...], runs: Sequence[Outcome], learner: str) -> list[Any]:
    game, sizes = labels[0], dict(zip(LEARNERS, labels[1:]))
    (other,) = set(LEARNERS) - {learner}
    its = [of_learner(run, learner) for run in runs]
    updates = max((record["update"] for run in its for record in run.records if "update" in record), default=0)
    last = [next((r[NORM] for r in reversed(run.records) if NORM in r), None) for run in its]
    score = bootstrap([last_score(run, settings.score_name) for run in its])
    return [game, learner, sizes[learner], f"{other} of {sizes[other]:,}", len(runs), updates, score, bootstrap(last)]


def _panel(labels: tuple[Any, ...], runs: Sequence[Outcome], name: str, y_label: str) -> Panel:
    game, sizes = labels[0], dict(zip(LEARNERS, labels[1:]))
    unit, x_label = steps_unit(runs)
    curves: list[Curve] = []
    for learner in LEARNERS:
        its = [of_learner(run, learner) for run in runs]
        curves.append(score_curve(its, name, "agent_steps", unit, f"{learner}, {sizes[learner]:,}"))
    return Panel(f"{game}: sampler {labels[1]:,}, secondary {labels[2]:,}", x_label, y_label, curves)


STUDY = Study(
    name="secondary-learner",
    defaults=SecondarySettings(),
    quick=SecondarySettings(
        quick=True,
        preset="smoke",
        games=("ddrl/Catch-v0",),
        repeats=1,
        agent_steps=24_000,
        eval_every_steps=3000,
        eval_games=20,
        pairs=("256:32", "32:256"),
    ),
    points=points,
    report=report,
    run=run_point,
)
