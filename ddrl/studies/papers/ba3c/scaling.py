"""Speed and time to a score by number of workers: section 3.1, figure 8."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from ddrl import checks
from ddrl.config import TrainConfig
from ddrl.placement.resources import this_machine
from ddrl.studies.curves import SECONDS, interval_curve, linear, over, spread_text, unit_of
from ddrl.studies.engine import limited_to
from ddrl.studies.figures import Curve, Mark, Panel, through
from ddrl.studies.findings import extremes
from ddrl.studies.measures import EVALUATION, caption_of, count, mean, middle, rate, ratio, values, warm_up
from ddrl.studies.points import Group, Outcome, Point, grouped
from ddrl.studies.provenance import machine_of
from ddrl.studies.settings import TargetSettings, base_config, refusals_of
from ddrl.studies.statistics import Interval, TimeToScore, bootstrap_ratio, efficiency, interquartile_mean
from ddrl.studies.study import Labels, Report, Study, product
from ddrl.studies.tables import MIDDLE, Columns, Table, table
from ddrl.studies.training import train_point
from ddrl.types import Machine

STRONG, WEAK = "strong", "weak"
MODES = {"both": (STRONG, WEAK), STRONG: (STRONG,), WEAK: (WEAK,)}
NAMES = {STRONG: "strong (constant effective batch)", WEAK: "weak (constant batch per worker)"}


@dataclasses.dataclass(frozen=True)
class ScalingSettings(TargetSettings):
    """BA3C with more and more workers (Adamski et al. 2018, figure 8): data-points/s and agent steps/s after a warm-up,
    their ratio to those of the fewest workers, parallel efficiency, and the time to a score. strong: one effective
    batch for all, divided among the workers; weak: one batch for each worker. One worker is one process without
    servers; more have a server for every --workers-per-server. With --target-score a run ends when an evaluation
    reaches it; without it, there are no evaluations."""

    workers: tuple[int, ...] = (1, 2, 4, 8)
    """Numbers of workers; the others are compared with the smallest."""
    mode: Literal["strong", "weak", "both"] = "strong"
    """strong: constant effective batch; weak: constant batch per worker; or both."""
    effective_batch: int = 512
    """Strong: data-points in one update, of all workers together (the paper's single node: 512)."""
    min_batch_per_worker: int = 32
    """Strong: fewest data-points of each worker's gradient; beyond that, the effective batch grows with the workers."""
    batch_per_worker: int = 128
    """Weak: data-points of each worker's gradient."""
    workers_per_server: int = 8
    """Workers for each parameter server; the number of servers is rounded up."""
    cores_per_worker: int = 1
    """Cores that a run uses for each worker, its servers and evaluator included, or all cores if there are fewer (0:
    always all)."""
    eval_every_steps: int = 50_000
    """Agent steps between evaluations, which take at most a tenth of the time."""
    warm_up_seconds: float = 30.0
    """Time at the beginning of a run that does not count in rates; for shorter runs, a third."""

    def __post_init__(self) -> None:
        super().__post_init__()
        batches = ("effective_batch", "min_batch_per_worker", "batch_per_worker")
        checks.at_least(self, 1, *batches, "workers_per_server", "eval_every_steps")
        for number in self.workers:
            share = self.effective_batch / number
            if STRONG in MODES[self.mode] and share > self.min_batch_per_worker and self.effective_batch % number:
                checks.refuse(self, "effective_batch", f"must be a multiple of the number of workers, {number}")

    def batch(self, mode: str, workers: int) -> int:
        """Data-points of each worker's gradient."""
        if mode == WEAK:
            return self.batch_per_worker
        return max(self.min_batch_per_worker, self.effective_batch // workers)

    def rate(self, run: Outcome, name: str = "datapoints_per_s") -> float | None:
        """A rate of a run after its warm-up; None where it was too short to have one."""
        return rate(name, warm_up(run, self.warm_up_seconds))(run)

    def axes(self, machine: Machine) -> Iterator[Labels]:
        workers = sorted(self.workers)
        for labels in product(mode=MODES[self.mode], game=self.games, workers=workers, seed=self.seeds):
            smallest = self.effective_batch / labels["workers"] < self.min_batch_per_worker
            cores = labels["workers"] * self.cores_per_worker
            yield labels | {"cores": cores, "at_least": labels["mode"] == STRONG and smallest}

    def config(self, machine: Machine, labels: Labels) -> TrainConfig:
        workers, target = labels["workers"], self.target_score
        config = base_config(self, "ba3c", labels["game"], machine)
        with refusals_of(f"--workers {workers}"):
            config = with_workers(config, workers, self.workers_per_server, self.batch(labels["mode"], workers))
        evaluation: dict[str, Any] = {"evaluator": target is not None, "eval_epsilon": 0.0, "target_score": target}
        if target is not None:
            evaluation |= evaluations(self, config)
        report_often = {"log_every_seconds": 1.0} if self.quick else {}
        return config.changed(run=self.run | report_often, evaluation=evaluation)

    def report(self, outcomes: Sequence[Outcome]) -> Report:
        """Tables, and for each game panels of rate, efficiency and time to the score."""
        lines = [self._line(group.runs) for group in grouped(outcomes, "mode", "game")]
        sizes, target = [size for line in lines for size in line], self.target_score
        caption = f"rates after {self.warm_up_seconds:g} s of each run; {spread_text(outcomes)}"
        if target is not None:
            caption += f"; time to a mean {caption_of(EVALUATION, outcomes).replace(':', f' of {target:g},')}"
        return Report(
            heading="Scaling with the number of workers",
            caption=caption,
            finding=extremes(sizes, mean(self.rate), "rate in data-points/s"),
            tables=list(self._tables(sizes)),
            panels=[panel for game in grouped(outcomes, "game") for panel in self._panels(game, lines)],
            columns=2 if target is None else 3,
            notes=list(self._notes(lines)),
        )

    def _line(self, outcomes: Sequence[Outcome]) -> Line:
        sizes = grouped(outcomes, "mode", "game", "workers", "cores", "at_least")
        sizes.sort(key=lambda size: size["workers"])
        return [Scaled(size.labels, size.runs, self, sizes[0]) for size in sizes]

    def _tables(self, sizes: Sequence[Scaled]) -> Iterator[Table]:
        setup: Columns = {"scaling": "mode", "game": "game", "workers": "workers"}
        batch: Columns = {"effective batch": lambda size: size.config.effective_batch}
        yield table("Speed by number of workers", sizes, {
            **setup,
            "servers": lambda size: size.config.exchange.servers,
            "ranks": lambda size: size.config.ranks,
            "cores": lambda size: f"{size.cores} (oversubscribed)" if size.oversubscribed else size.cores,
            "batch per worker": lambda size: size.config.batch_size, **batch, "batch rule": _rule,
            "runs": count,
            "data-points/s": mean(self.rate),
            MIDDLE: middle(self.rate),
            "agent steps/s": mean(lambda run: self.rate(run, "agent_steps_per_s")),
            "speed-up": lambda size: size.speed_up,
            "efficiency": lambda size: size.for_each(size.speed_up),
        })  # fmt: skip
        if self.target_score is not None:
            yield table(f"Time to an evaluation of mean score {self.target_score:g}", sizes, {
                **setup, **batch,
                "runs": count,
                "time to score": lambda size: size.times.text(),
                "median, min": lambda size: None if size.times.median is None else size.times.median / 60,
                f"{MIDDLE}, min": lambda size: (
                    None if size.times.missed else interquartile_mean([seconds / 60 for seconds in size.times.reached])
                ),
                "mean with the limit for those that missed, min": lambda size: size.times.least_mean() / 60,
                "speed-up": lambda size: size.time_ratio,
                "efficiency": lambda size: size.for_each(size.time_ratio),
            })  # fmt: skip

    def _panels(self, game: Group, lines: Sequence[Line]) -> Iterator[Panel]:
        """Panels of data-points/s, efficiency, and the time to the target score if there is one."""
        here, target = [line for line in lines if line[0]["game"] == game["game"]], self.target_score
        names = [NAMES[line[0]["mode"]] for line in here]
        axes: dict[str, Any] = {"log_x": True, "marks": _marks(here)}
        rates = [over(line, "workers", mean(self.rate), name) for name, line in zip(names, here)]
        curves = [*rates, *linear(rates)]
        yield Panel(f"{game['game']}: speed", "workers", "data-points/s", curves, log_y=True, **axes)
        shares = [interval_curve(_shares(line), name) for name, line in zip(names, here)]
        numbers = sorted({x for curve in shares for x in curve.x})
        ideal = [Curve("linear", numbers, [1.0] * len(numbers), reference=True)] if len(numbers) > 1 else []
        label = "parallel efficiency (1: linear)"
        yield Panel(f"{game['game']}: efficiency", "workers", label, [*shares, *ideal], zero=True, **axes)
        if target is not None:
            unit, text = unit_of(game.runs, SECONDS)
            label = text.replace("wall time", f"time to score {target:g}")
            curves = list(_time_curves(here, unit))
            yield Panel(f"{game['game']}: time to score", "workers", label, curves, log_y=True, **axes)

    def _notes(self, lines: Sequence[Line]) -> Iterator[str]:
        sizes = [size for line in lines for size in line]
        if grown := [size["workers"] for size in sizes if size["at_least"]]:
            yield (
                f"batch rule: {_listed(grown)} workers have {self.min_batch_per_worker} data-points each, so their "
                f"effective batch is above {self.effective_batch}"
            )
        crowds = [size for size in sizes if size.cores is not None and size.config.ranks > size.cores]
        for some, what, why in (
            (True, "oversubscribed", "workers that compute take turns there; only those that wait show how they scale"),
            (False, "more ranks than cores", "servers and evaluator share the cores of the workers"),
        ):
            if named := [size for size in crowds if size.oversubscribed == some]:
                texts = [
                    f"{size['workers']} workers ({size.config.ranks} ranks on {size.cores} cores)" for size in named
                ]
                yield f"{what}: {_listed(texts)}: {why}"
        if short := [run.point.name for size in sizes for run in size.runs if self.rate(run) is None]:
            yield f"no rate, as too little was reported after the warm-up: {', '.join(short)}"
        fewest = sorted({line[0]["workers"] for line in lines})
        if several := [workers for workers in fewest if workers > 1]:
            yield f"speed-up and efficiency are relative to {_listed(several)} workers: no smaller number has finished"
        if self.target_score is not None and 1 in fewest:
            yield (
                "a single worker plays its evaluations itself, in at most a tenth of its time; with more workers, a "
                "rank of its own plays them"
            )


def with_workers(config: TrainConfig, workers: int, workers_per_server: int, batch: int) -> TrainConfig:
    """The settings with another number of workers, and `batch` for each of them. One worker is a single process."""
    exchange: dict[str, object] = {"workers": workers}
    if workers == 1:
        exchange |= {"exchange": "parameter_server", "parameter_servers": 0}
    elif config.exchange.kind.has_servers:
        exchange |= {"parameter_servers": -(-workers // workers_per_server)}
    return config.changed(exchange=exchange, optimizer={"batch_size": batch})


def evaluations(settings: Any, config: TrainConfig) -> dict[str, int]:
    """Changes to the settings group `evaluation` for evaluations every `eval_every_steps` agent steps."""
    every = max(1, settings.eval_every_steps // config.effective_batch)
    return {"eval_games": settings.eval_games, "eval_every_updates": every}


def run_scaled(point: Point, path: Path) -> None:
    """Trains a point on as many cores as its workers are given, or on all if there are fewer.

    Raises:
        UsageError, RuntimeError: see train_point.
    """
    wanted, here = point.labels["cores"], this_machine().cores
    with limited_to(wanted if wanted < here else 0):
        train_point(point, path)


# report ---------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Scaled(Group):
    """The repeats of one number of workers, and those of the fewest workers (`first`), to compare them with."""

    settings: ScalingSettings
    first: Group

    @property
    def times(self) -> TimeToScore | None:
        """When the runs reached the target score; None without a target."""
        return self.settings.times(self)

    @property
    def cores(self) -> int | None:
        """Cores that the workers, servers and evaluator shared; None if unknown."""
        here = [cores for run in self.runs if isinstance(cores := machine_of(run.path).get("cores"), int)]
        return min([*here, *([self["cores"]] if self["cores"] else [])]) if here else None

    @property
    def oversubscribed(self) -> bool:
        """Whether there were more workers than cores."""
        return self.cores is not None and self["workers"] > self.cores

    @property
    def speed_up(self) -> Interval | None:
        """Ratio of data-points/s to those of the fewest workers; None for the fewest workers themselves."""
        return ratio(self.settings.rate, self.runs, self.first.runs)

    @property
    def time_ratio(self) -> Interval | None:
        """How many times sooner than the fewest workers these reached the score; None for the fewest themselves, or
        unless all repeats of both reached it."""
        ours, first = self.times, self.settings.times(self.first)
        if ours is None or first is None or ours.missed or first.missed or self.runs is self.first.runs:
            return None
        return bootstrap_ratio(first.reached, ours.reached)

    def for_each(self, gain: Interval | None) -> Interval | None:
        """Parallel efficiency: the gain for each worker."""
        return efficiency(gain, self["workers"], self.first["workers"])


Line = Sequence[Scaled]
"""All numbers of workers, ascending, of one way of scaling and one game."""


def _rule(size: Scaled) -> str:
    if size["mode"] == WEAK:
        return "constant per worker"
    return f"at least {size.config.batch_size} per worker" if size["at_least"] else "constant in all"


def _shares(line: Line) -> list[tuple[int, Interval | None]]:
    """Parallel efficiencies; that of the fewest workers is 1 by definition."""
    first = Interval(1.0, 1.0, 1.0) if any(values(line[0].settings.rate, line[0].runs)) else None
    return [(line[0]["workers"], first), *((size["workers"], size.for_each(size.speed_up)) for size in line[1:])]


def _time_curves(lines: Sequence[Line], unit: float) -> Iterator[Curve]:
    """Curves of mean times where all repeats reached the score, hollow points of lower bounds where not all did, and
    reference lines of linear gains."""
    means: list[Curve] = []
    for style, line in enumerate(lines):
        timed = [(size["workers"], size.times) for size in line if size.times is not None]
        reached = [(n, taken.map(lambda seconds: seconds / unit)) for n, times in timed if (taken := times.mean())]
        means.append(interval_curve(reached, NAMES[line[0]["mode"]], style))
        if missed := [(n, times.least_mean() / unit) for n, times in timed if times.missed]:
            label = f"{line[0]['mode']}: at least so long (not all reached it)"
            yield through(missed, label, style=style, points=True)
    yield from means
    yield from linear(means, falling=True)


def _marks(lines: Sequence[Line]) -> list[Mark]:
    """Vertical lines where the batch rule changes, and from which on there were more workers than cores."""
    every = [size for line in lines for size in line]
    strong = [size for size in every if size["mode"] == STRONG]
    smallest = next((size.config.batch_size for size in strong if size["at_least"]), 0)
    changes = {
        f"strong: {smallest} per worker to the right": _between(strong, lambda size: size["at_least"]),
        "more workers than cores to the right": _between(every, lambda size: size.oversubscribed),
    }
    return [Mark(x, label) for label, x in changes.items() if x is not None]


def _between(sizes: Sequence[Scaled], differs: Callable[[Scaled], bool]) -> float | None:
    """The middle, in logarithms, of the last number of workers before a change and the first after it."""
    before = [size["workers"] for size in sizes if not differs(size)]
    after = [size["workers"] for size in sizes if differs(size)]
    return (max(before) * min(after)) ** 0.5 if before and after and max(before) < min(after) else None


def _listed(items: Sequence[Any]) -> str:
    """The items in one text, each once."""
    return ", ".join(dict.fromkeys(map(str, items)))


SCALING = Study(
    name="scaling",
    about="speed and time to a score by number of workers, strong and weak (Adamski et al. 2018, figure 8)",
    defaults=ScalingSettings(minutes=5.0, repeats=3),
    quick_changes={
        "workers": (1, 2, 4), "minutes": 0.13, "warm_up_seconds": 3.0, "effective_batch": 128, "batch_per_worker": 64,
        "repeats": 2,
    },
    point_name="{mode}-{game}-{workers}workers-seed{seed}",
    run=run_scaled,
)  # fmt: skip
