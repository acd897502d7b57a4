"""`ddrl study sampling`: acting without learning (Stooke and Abbeel 2018, section 5.2, figure 2 and table 1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ddrl import checks, rundir
from ddrl.studies.curves import from_intervals, spread_text
from ddrl.studies.figures import Curve, Panel
from ddrl.studies.groups import grouped, having
from ddrl.studies.measures import Interval, bootstrap, bootstrap_ratio
from ddrl.studies.points import Outcome, Point
from ddrl.studies.settings import StudySettings, base_config, changed, game_name, not_empty, one_of
from ddrl.studies.study import Report, Study
from ddrl.studies.tables import Table
from ddrl.types import Machine

RATE = "agent_steps_per_s"
PARTS = ("groups", "barrier")
KINDS = {
    "one": "one group",
    "alternating": "two alternating groups",
    "in-turn": "two alternating groups, one predictor",
    "random": "random actions, no inference",
}
ALTERNATING = ("alternating", "in-turn")
BARRIERS = {"barrier": "barrier every rollout", "free": "each core for itself"}
PAPER = (
    "Stooke and Abbeel 2018, table 1, DGX-1 (8 P100, 40 cores), A3C-Net: 29.6, 33.0, 35.7, 35.8 thousand agent steps/s "
    "with a barrier every five steps, 31.9, 34.7, 36.7, 38.4 without, by growing number of simulators; figure 2: with 8 "
    "simulators per core about 0.8 of the inference-free speed on 16 cores"
)


@dataclasses.dataclass(frozen=True)
class SamplingSettings(StudySettings):
    """Agent steps/s of acting alone. groups: one process, its simulators in one group, or in two that alternate, whose
    queries meet, or wait for each other at one predictor that gives each all cores; beside random actions without
    inference (Stooke and Abbeel 2018, figure 2). barrier: a process for each core, with and without a barrier after
    every rollout (table 1)."""

    parts: tuple[str, ...] = PARTS
    """groups, barrier."""
    simulators_per_core: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    """Simulators for each core."""
    cores: tuple[int, ...] = ()
    """Cores that act together (none given: 1, 2, 4, ... as many as there are here)."""
    seconds: float = 10.0
    """Time of each measurement."""
    repeats: int = 3
    """Measurements of every point, each with a seed of its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "parts", PARTS)
        not_empty(self, "simulators_per_core")
        checks.above(self, 0.0, "seconds")
        for name in ("simulators_per_core", "cores"):
            if any(number < 1 for number in getattr(self, name)):
                checks.refuse(self, name, "at least 1 each")


def points(settings: SamplingSettings, machine: Machine) -> list[Point]:
    """All of them. Two groups need two simulators."""
    cores = settings.cores or tuple(2**k for k in range(machine.cores.bit_length()))
    found = []
    for game in settings.games:
        for seed in settings.seeds:
            for per_core in settings.simulators_per_core:
                if "groups" in settings.parts:
                    pairs = [(c, kind) for c in cores for kind in KINDS]
                    pairs = [(c, kind) for c, kind in pairs if kind not in ALTERNATING or per_core * c % 2 == 0]
                    found += [_in_groups(settings, machine, game, seed, per_core, *pair) for pair in pairs]
                if "barrier" in settings.parts:
                    pairs = [(max(cores), kind) for kind in BARRIERS]
                    found += [_in_processes(settings, machine, game, seed, per_core, *pair) for pair in pairs]
    return found


def _in_groups(
    settings: SamplingSettings, machine: Machine, game: str, seed: int, per_core: int, cores: int, kind: str
) -> Point:
    labels = {"part": "groups", "game": game, "cores": cores, "per_core": per_core, "kind": kind}
    sampling = {"simulators": cores * per_core, "groups": 2 if kind in ALTERNATING else 1}
    if kind == "in-turn":
        sampling |= {"predictors": 1, "predict_batch": cores * per_core // 2}
    return _point(settings, machine, labels, seed, sampling)


def _in_processes(
    settings: SamplingSettings, machine: Machine, game: str, seed: int, per_core: int, cores: int, kind: str
) -> Point:
    labels = {"part": "barrier", "game": game, "cores": cores, "per_core": per_core, "kind": kind}
    sampling = {"simulators": per_core, "groups": 2 if per_core % 2 == 0 else 1}
    return _point(settings, machine, labels, seed, sampling)


def _point(
    settings: SamplingSettings, machine: Machine, labels: dict[str, Any], seed: int, sampling: dict[str, int]
) -> Point:
    config = base_config(settings, "a2c", labels["game"], machine)
    config = changed(config, sampling=sampling, run={"seed": seed, "minutes": settings.seconds / 60.0})
    what = f"{game_name(labels['game'])}-{labels['cores']}x{labels['per_core']}-{labels['kind']}"
    return Point(f"{labels['part']}-{what}-seed{seed}", config, labels)


def measure_point(point: Point, path: Path) -> None:
    """Measures, and writes the rate into result.json.

    Raises:
        UsageError, RuntimeError: see measure_sampling.
    """
    from ddrl.bench.sampling import Sampling, measure_sampling

    kind, cores = point.labels["kind"], point.labels["cores"]
    if point.labels["part"] == "groups":
        what = Sampling(point.config, cores=cores, inference=kind != "random")
    else:
        what = Sampling(point.config, processes=cores, barrier=kind == "barrier")
    path.mkdir(parents=True, exist_ok=True)
    with rundir.locked(path):
        rate = measure_sampling(what, 60.0 * point.config.run.minutes)
        rundir.write_json(path / rundir.RESULT, {"status": "finished", RATE: rate})


def report(settings: SamplingSettings, outcomes: Sequence[Outcome]) -> Report:
    """Rates and their ratios to the inference-free rate of as many cores."""
    tables, panels = [], []
    for (game,), some in grouped(outcomes, "game"):
        if here := having(some, part="groups"):
            tables.append(_groups_table(game, here))
            panels += _groups_panels(game, here)
        if here := having(some, part="barrier"):
            tables.append(_barrier_table(game, here))
            panels.append(_panel(f"{game}, a process for each core", here, BARRIERS))
    return Report(
        heading="Acting without learning",
        caption=f"no learner, initial parameters; {spread_text(outcomes)}",
        tables=tables,
        panels=panels,
        columns=min(3, len(panels)),
        notes=[PAPER],
    )


def _rates(outcomes: Sequence[Outcome]) -> list[float]:
    return [outcome.result[RATE] for outcome in outcomes]


def inference_free(outcomes: Sequence[Outcome]) -> list[float]:
    """Rates of the number of simulators that is fastest with random actions; none where it was not measured."""
    random = [_rates(runs) for _, runs in grouped(having(outcomes, kind="random"), "per_core")]
    return max(random, key=lambda rates: sum(rates) / len(rates), default=[])


def _groups_table(game: str, outcomes: Sequence[Outcome]) -> Table:
    rows = []
    for (cores,), some in grouped(outcomes, "cores"):
        limit = inference_free(some)
        for (per_core, kind), runs in grouped(some, "per_core", "kind"):
            ratio = None if kind == "random" else bootstrap_ratio(_rates(runs), limit)
            rows.append([cores, per_core, KINDS[kind], len(runs), bootstrap(_rates(runs)), ratio])
    columns = ("cores", "simulators per core", "acting", "measured", "agent steps/s", "ratio to inference-free")
    return Table(f"{game}: one process", columns, rows)


def _barrier_table(game: str, outcomes: Sequence[Outcome]) -> Table:
    rows = []
    for (cores, per_core), some in grouped(outcomes, "cores", "per_core"):
        rates = {kind: _rates(having(some, kind=kind)) for kind in BARRIERS}
        ratio = bootstrap_ratio(rates["barrier"], rates["free"])
        rows.append([cores, cores * per_core, *(bootstrap(rates[kind]) for kind in BARRIERS), ratio])
    columns = ("cores", "simulators", *(f"agent steps/s, {text}" for text in BARRIERS.values()), "ratio")
    return Table(f"{game}: a process for each core", columns, rows)


def _groups_panels(game: str, outcomes: Sequence[Outcome]) -> Iterator[Panel]:
    for (cores,), some in grouped(outcomes, "cores"):
        panel = _panel(f"{game}, one process on {cores} core{'s' if cores > 1 else ''}", some, KINDS)
        x = sorted({outcome.point.labels["per_core"] for outcome in some})
        if limit := bootstrap(inference_free(some)):
            line = Curve("fastest without inference", x, [limit.mean / cores] * len(x), reference=True)
            panel = panel._replace(curves=[*panel.curves, line])
        yield panel


def _panel(title: str, outcomes: Sequence[Outcome], kinds: dict[str, str]) -> Panel:
    curves = []
    for style, (kind, label) in enumerate(kinds.items()):
        found = [
            (per_core, _over(bootstrap(_rates(runs)), runs[0].point.labels["cores"]))
            for (per_core,), runs in grouped(having(outcomes, kind=kind), "per_core")
        ]
        curves.append(from_intervals(found, label)._replace(style=style))
    return Panel(title, "simulators per core", "agent steps/s per core", curves, log_x=True, zero=True)


def _over(interval: Interval, cores: int) -> Interval:
    """A rate of one core."""
    low, high = (None if value is None else value / cores for value in (interval.low, interval.high))
    return Interval(interval.mean / cores, low, high, interval.count)


STUDY = Study(
    name="sampling",
    defaults=SamplingSettings(),
    quick=SamplingSettings(
        quick=True,
        preset="smoke",
        games=("ddrl/Catch-v0",),
        simulators_per_core=(2, 8),
        cores=(1,),
        seconds=1.0,
        repeats=1,
    ),
    points=points,
    report=report,
    run=measure_point,
)
