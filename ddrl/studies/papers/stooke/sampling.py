"""Agent steps/s without learning: section 5.2, figure 2 and table 1."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddrl import checks
from ddrl.config import TrainConfig
from ddrl.studies.curves import over, spread_text
from ddrl.studies.figures import Curve, Panel
from ddrl.studies.findings import extremes
from ddrl.studies.measures import count, mean, ratio, values
from ddrl.studies.points import Group, Outcome, Point, grouped, having
from ddrl.studies.settings import TrainingSettings, base_config, one_of
from ddrl.studies.statistics import bootstrap
from ddrl.studies.study import Labels, Report, Study, doublings
from ddrl.studies.tables import Table, table
from ddrl.studies.training import measuring
from ddrl.types import Machine
from ddrl.wording import counted

RATE = "agent_steps_per_s"
KINDS = {
    "one": "one group",
    "alternating": "two alternating groups",
    "in-turn": "two alternating groups, one predictor",
    "random": "random actions, no inference",
}
ALTERNATING = ("alternating", "in-turn")
BARRIERS = {"barrier": "barrier every rollout", "free": "each core for itself"}
PARTS = {"groups": KINDS, "barrier": BARRIERS}
PAPER = (
    "Stooke and Abbeel 2018, table 1, DGX-1 (8 P100, 40 cores), A3C-Net: 29.6, 33.0, 35.7, 35.8 thousand agent steps/s "
    "with a barrier every five steps, 31.9, 34.7, 36.7, 38.4 without, with growing numbers of simulators; figure 2: "
    "with 8 simulators per core, about 0.8 of the inference-free speed on 16 cores"
)


@dataclasses.dataclass(frozen=True)
class SamplingSettings(TrainingSettings):
    """Agent steps/s of acting alone. groups: one process, its simulators in one group, or in two that alternate, whose
    queries meet, or wait for each other at one predictor that gives each all cores; beside random actions without
    inference (Stooke and Abbeel 2018, figure 2). barrier: a process for each core, with and without a barrier after
    every rollout (table 1)."""

    parts: tuple[str, ...] = tuple(PARTS)
    """groups, barrier."""
    simulators_per_core: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    """Simulators for each core."""
    cores: tuple[int, ...] = ()
    """Cores that act together (none given: 1, 2, 4, ..., up to all cores here)."""
    seconds: float = 10.0
    """Time of each measurement."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "parts", PARTS)
        checks.above(self, 0.0, "seconds")

    def axes(self, machine: Machine) -> Iterator[Labels]:
        """Yields the points; two alternating groups need an even number of simulators."""
        cores = self.cores or doublings(machine.cores)
        for game, seed, per_core in itertools.product(self.games, self.seeds, self.simulators_per_core):
            for part, kinds in PARTS.items():
                for c, kind in itertools.product(cores if part == "groups" else [max(cores)], kinds):
                    if part in self.parts and (kind not in ALTERNATING or per_core * c % 2 == 0):
                        yield {"part": part, "game": game, "cores": c, "per_core": per_core, "kind": kind, "seed": seed}

    def config(self, machine: Machine, labels: Labels) -> TrainConfig:
        cores, per_core, kind = labels["cores"], labels["per_core"], labels["kind"]
        if labels["part"] == "barrier":  # there is a process for each core
            sampling = {"simulators": per_core, "groups": 2 if per_core % 2 == 0 else 1}
        else:
            sampling = {"simulators": cores * per_core, "groups": 2 if kind in ALTERNATING else 1}
        if kind == "in-turn":
            sampling |= {"predictors": 1, "predict_batch": cores * per_core // 2}
        config = base_config(self, "a2c", labels["game"], machine)
        return config.changed(sampling=sampling, run={"minutes": self.seconds / 60.0})

    def report(self, outcomes: Sequence[Outcome]) -> Report:
        """Rates and their ratios to the inference-free rate of as many cores."""
        tables: list[Table] = []
        panels: list[Panel] = []
        for game in grouped(outcomes, "game"):
            if in_groups := having(game.runs, part="groups"):
                tables.append(_groups_table(game["game"], in_groups))
                panels += [_groups_panel(game["game"], group) for group in grouped(in_groups, "cores")]
            if in_processes := having(game.runs, part="barrier"):
                tables.append(_barrier_table(game["game"], in_processes))
                panels.append(_panel(f"{game['game']}, a process for each core", in_processes, BARRIERS))
        caption = f"no learner, initial parameters; {spread_text(outcomes)}"
        finding = extremes(
            grouped(outcomes, "part", "game", "cores", "per_core", "kind"), mean(_measured), "rate in agent steps/s"
        )
        return Report("Acting without learning", caption, tables, panels, min(3, len(panels)), [PAPER], finding)


def measure(point: Point) -> dict[str, Any]:
    """Measures the agent steps/s of a point."""
    from ddrl.bench.sampling import Sampling, measure_sampling

    kind, cores = point.labels["kind"], point.labels["cores"]
    if point.labels["part"] == "groups":
        what = Sampling(point.config, cores=cores, inference=kind != "random")
    else:
        what = Sampling(point.config, processes=cores, barrier=kind == "barrier")
    return {RATE: measure_sampling(what, 60.0 * point.config.run.minutes)}


def _measured(run: Outcome) -> float:
    return run.result[RATE]


def inference_free(outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """The runs with random actions at the number of simulators where these are fastest; empty without such runs."""
    random = [group.runs for group in grouped(having(outcomes, kind="random"), "per_core")]
    return max(random, key=lambda runs: sum(map(_measured, runs)) / len(runs), default=[])


def _groups_table(game: str, outcomes: Sequence[Outcome]) -> Table:
    limits = {group["cores"]: inference_free(group.runs) for group in grouped(outcomes, "cores")}
    rows = [group for cores in grouped(outcomes, "cores") for group in grouped(cores.runs, "cores", "per_core", "kind")]
    return table(f"{game}: one process", rows, {
        "cores": "cores", "simulators per core": "per_core", "acting": lambda group: KINDS[group["kind"]],
        "measured": count, "agent steps/s": mean(_measured),
        "ratio to inference-free": lambda group: (
            None if group["kind"] == "random" else ratio(_measured, group.runs, limits[group["cores"]])
        ),
    })  # fmt: skip


def _barrier_table(game: str, outcomes: Sequence[Outcome]) -> Table:
    return table(f"{game}: a process for each core", grouped(outcomes, "cores", "per_core"), {
        "cores": "cores", "simulators": lambda group: group["cores"] * group["per_core"],
        **{f"agent steps/s, {text}": mean(_measured, kind=kind) for kind, text in BARRIERS.items()},
        "ratio": lambda group: ratio(_measured, *(having(group.runs, kind=kind) for kind in BARRIERS)),
    })  # fmt: skip


def _groups_panel(game: str, group: Group) -> Panel:
    panel = _panel(f"{game}, one process on {counted(group['cores'], 'core')}", group.runs, KINDS)
    x = sorted({run.point.labels["per_core"] for run in group.runs})
    if limit := bootstrap(values(_measured, inference_free(group.runs))):
        line = Curve("fastest without inference", x, [limit.mean / group["cores"]] * len(x), reference=True)
        panel = panel._replace(curves=[*panel.curves, line])
    return panel


def _panel(title: str, outcomes: Sequence[Outcome], kinds: Mapping[str, str]) -> Panel:
    for_each = mean(lambda run: _measured(run) / run.point.labels["cores"])
    curves = [
        over(grouped(having(outcomes, kind=kind), "per_core"), "per_core", for_each, label, style)
        for style, (kind, label) in enumerate(kinds.items())
    ]
    return Panel(title, "simulators per core", "agent steps/s per core", curves, log_x=True, zero=True)


SAMPLING = Study(
    name="sampling",
    about="agent steps/s without learning, by simulators and groups (Stooke and Abbeel 2018, figure 2)",
    defaults=SamplingSettings(repeats=3),
    quick_changes={"simulators_per_core": (2, 8), "cores": (1,), "seconds": 1.0, "repeats": 1},
    point_name="{part}-{game}-{cores}x{per_core}-{kind}-seed{seed}",
    run=measuring(measure),
)
