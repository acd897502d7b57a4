"""What `ddrl study scaling` reports: rates, speed-up, parallel efficiency and time to a score by number of workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ddrl.studies.curves import SECONDS, interval_curve, linear, over, spread_text, unit_of
from ddrl.studies.figures import Curve, Mark, Panel, through
from ddrl.studies.measures import CAPTIONS, EVALUATION, count, given_seconds, rate, reached_after, times_to, warm_up
from ddrl.studies.points import Group, Outcome, grouped
from ddrl.studies.provenance import machine_of
from ddrl.studies.statistics import (
    Interval,
    TimeToScore,
    Values,
    bootstrap,
    bootstrap_ratio,
    efficiency,
    interquartile_mean,
)
from ddrl.studies.study import Report
from ddrl.studies.tables import Columns, Table, table

STRONG, WEAK = "strong", "weak"
NAMES = {STRONG: "strong (constant effective batch)", WEAK: "weak (constant batch per worker)"}


@dataclasses.dataclass(frozen=True)
class Scaled(Group):
    """The repeats of one number of workers.

    Attributes:
        rates: data-points/s of each repeat, None where it was too short to have one.
        acted: agent steps/s of each, likewise.
        times: to the target score, where there is one.
        cores: that the ranks had, where it is known; servers and evaluator share them with the workers.
        first: those of the fewest workers, with which the others are compared.
    """

    rates: Values
    acted: Values
    times: TimeToScore | None
    cores: int | None

    first: Scaled | None = None

    @property
    def workers(self) -> int:
        """How many."""
        return self["workers"]

    @property
    def oversubscribed(self) -> bool:
        """Whether there were more workers than cores."""
        return self.cores is not None and self.workers > self.cores

    @property
    def crowd(self) -> str:
        """Ranks and cores in words."""
        return f"{self.workers} workers ({self.config.ranks} ranks on {self.cores} cores)"

    @property
    def speed_up(self) -> Interval | None:
        """Ratio of data-points/s to those of the fewest workers."""
        return bootstrap_ratio(self.rates, self.first.rates) if self.first else None

    @property
    def time_ratio(self) -> Interval | None:
        """How many times sooner than the fewest; None unless all repeats of both reached the score."""
        first = self.first.times if self.first else None
        if self.times is None or first is None or self.times.missed or first.missed:
            return None
        return bootstrap_ratio(first.reached, self.times.reached)

    def for_each(self, ratio: Interval | None) -> Interval | None:
        """Parallel efficiency: the ratio for each worker."""
        return efficiency(ratio, self.workers, self.first.workers) if self.first else None


Line = Sequence[Scaled]
"""All numbers of workers, ascending, of one way of scaling and one game."""


def report(settings: Any, outcomes: Sequence[Outcome]) -> Report:
    """Tables, and for each game a panel for each of rate, efficiency and time to the score."""
    lines = [_line(settings, group.runs) for group in grouped(outcomes, "mode", "game")]
    sizes, target = [size for line in lines for size in line], settings.target_score
    caption = f"rates after {settings.warm_up_seconds:g} s of each run; {spread_text(outcomes)}"
    if target is not None:
        caption += f"; time to a mean {CAPTIONS[EVALUATION].replace(':', f' of {target:g},')}"
    return Report(
        heading="Scaling with the number of workers",
        caption=caption,
        tables=list(_tables(sizes, target)),
        panels=list(_panels(outcomes, lines, target)),
        columns=2 if target is None else 3,
        notes=list(_notes(settings, lines)),
        runs=_runs(sizes, target),
    )


def _line(settings: Any, outcomes: Sequence[Outcome]) -> Line:
    sizes = [_scaled(settings, group) for group in grouped(outcomes, "mode", "game", "workers", "cores", "at_least")]
    first, *others = sorted(sizes, key=lambda size: size.workers)
    return [first, *(dataclasses.replace(size, first=first) for size in others)]


def _scaled(settings: Any, group: Group) -> Scaled:
    here = [cores for run in group.runs if isinstance(cores := machine_of(run.path).get("cores"), int)]
    rates, acted = (
        [rate(name, warm_up(run, settings.warm_up_seconds))(run) for run in group.runs]
        for name in ("datapoints_per_s", "agent_steps_per_s")
    )
    target = settings.target_score
    times = None if target is None else times_to(group.runs, EVALUATION, target, settings.minutes)
    cores = min([*here, *([group["cores"]] if group["cores"] else [])]) if here else None
    return Scaled(group.labels, group.runs, rates, acted, times, cores)


def _tables(sizes: Sequence[Scaled], target: float | None) -> Iterator[Table]:
    setup: Columns = {"scaling": "mode", "game": "game", "workers": "workers"}
    yield table("Speed by number of workers", sizes, {
        **setup,
        "servers": lambda size: size.config.exchange.servers,
        "ranks": lambda size: size.config.ranks,
        "cores": lambda size: f"{size.cores} (oversubscribed)" if size.oversubscribed else size.cores,
        "batch per worker": lambda size: size.config.batch_size,
        "effective batch": lambda size: size.config.effective_batch,
        "batch rule": _rule,
        "runs": count,
        "data-points/s": lambda size: bootstrap(size.rates),
        "interquartile mean": lambda size: interquartile_mean(size.rates),
        "agent steps/s": lambda size: bootstrap(size.acted),
        "speed-up": lambda size: size.speed_up,
        "efficiency": lambda size: size.for_each(size.speed_up),
    })  # fmt: skip
    if target is not None:
        yield table(f"Time to an evaluation of mean score {target:g}", sizes, {
            **setup,
            "effective batch": lambda size: size.config.effective_batch,
            "runs": count,
            "time to score": lambda size: size.times.text(),
            "median, min": lambda size: None if size.times.median is None else size.times.median / 60,
            "interquartile mean, min": lambda size: (
                None if size.times.missed else interquartile_mean([seconds / 60 for seconds in size.times.reached])
            ),
            "mean with the limit for those that missed, min": lambda size: size.times.least_mean() / 60,
            "speed-up": lambda size: size.time_ratio,
            "efficiency": lambda size: size.for_each(size.time_ratio),
        })  # fmt: skip


def _rule(size: Scaled) -> str:
    if size["mode"] == WEAK:
        return "constant per worker"
    return f"at least {size.config.batch_size} per worker" if size["at_least"] else "constant in all"


def _panels(outcomes: Sequence[Outcome], lines: Sequence[Line], target: float | None) -> Iterator[Panel]:
    """For each game data-points/s, efficiency, and the time to the score where there is one."""
    for group in grouped(outcomes, "game"):
        game, here = group["game"], [line for line in lines if line[0]["game"] == group["game"]]
        axes: dict[str, Any] = {"x_label": "workers", "log_x": True, "marks": _marks(here)}
        rates = [
            over(line, "workers", lambda size: bootstrap(size.rates), _name(line), i) for i, line in enumerate(here)
        ]
        yield Panel(f"{game}: speed", y_label="data-points/s", curves=[*rates, *linear(rates)], log_y=True, **axes)
        shares = [interval_curve(_shares(line), _name(line), i) for i, line in enumerate(here)]
        numbers = sorted({x for curve in shares for x in curve.x})
        ideal = [Curve("linear", numbers, [1.0] * len(numbers), reference=True)] if len(numbers) > 1 else []
        label = "parallel efficiency (1: linear)"
        yield Panel(f"{game}: efficiency", y_label=label, curves=[*shares, *ideal], zero=True, **axes)
        if target is not None:
            unit, text = unit_of(group.runs, SECONDS)
            label = text.replace("wall time", f"time to score {target:g}")
            curves = _time_curves(here, unit)
            yield Panel(f"{game}: time to score", y_label=label, curves=curves, log_y=True, **axes)


def _name(line: Line) -> str:
    return NAMES[line[0]["mode"]]


def _shares(line: Line) -> list[tuple[int, Interval]]:
    """Parallel efficiencies; that of the first is 1 by definition, and without a band where others have one."""
    first = [Interval(1.0)] if bootstrap(line[0].rates) else [None]
    shares = zip(line, first + [size.for_each(size.speed_up) for size in line[1:]])
    known = [(size.workers, share) for size, share in shares if share is not None]
    if all(share.low is None for _, share in known):
        return known
    return [(n, share if share.low is not None else Interval(share.mean, share.mean, share.mean)) for n, share in known]


def _time_curves(lines: Sequence[Line], unit: float) -> list[Curve]:
    curves: list[Curve] = []
    ideals: list[Curve] = []
    for style, line in enumerate(lines):
        timed = [(size.workers, size.times) for size in line if size.times is not None]
        reached = [(n, mean.map(lambda seconds: seconds / unit)) for n, times in timed if (mean := times.mean())]
        curves.append(interval_curve(reached, _name(line), style))
        missed = [(n, times.least_mean() / unit) for n, times in timed if times.missed]
        if missed:
            label = f"{line[0]['mode']}: at least so long (not all reached it)"
            curves.append(through(missed, label, style=style, points=True))
        if len(reached) > 1:
            x, (fewest, first) = [n for n, _ in timed], reached[0]
            ideals.append(Curve("" if ideals else "linear", x, [first.mean * fewest / n for n in x], reference=True))
    return curves + ideals


def _marks(lines: Sequence[Line]) -> list[Mark]:
    """Where the batch rule changes, and from where on there were more workers than cores."""
    every = sorted((size for line in lines for size in line), key=lambda size: size.workers)
    strong = [size for size in every if size["mode"] == STRONG]
    smallest = next((size.config.batch_size for size in strong if size["at_least"]), 0)
    changes = {
        f"strong: {smallest} per worker to the right": _between(strong, lambda size: size["at_least"]),
        "more workers than cores to the right": _between(every, lambda size: size.oversubscribed),
    }
    return [Mark(x, label) for label, x in changes.items() if x is not None]


def _between(sizes: Sequence[Scaled], changed: Callable[[Scaled], bool]) -> float | None:
    """The middle, in logarithms, of the last number of workers before a change and the first after it."""
    before = [size.workers for size in sizes if not changed(size)]
    after = [size.workers for size in sizes if changed(size)]
    return (max(before) * min(after)) ** 0.5 if before and after and max(before) < min(after) else None


def _notes(settings: Any, lines: Sequence[Line]) -> Iterator[str]:
    sizes = [size for line in lines for size in line]
    if grown := sorted({size.workers for size in sizes if size["at_least"]}):
        yield (
            f"batch rule: {_listed(grown)} workers have {settings.min_batch_per_worker} data-points each, so the "
            f"effective batch is above {settings.effective_batch} there"
        )
    crowds = [size for size in sizes if size.cores is not None and size.config.ranks > size.cores]
    if crowded := [size.crowd for size in crowds if size.oversubscribed]:
        yield f"oversubscribed: {_listed(crowded)}: workers take turns there, which says nothing of how they scale"
    if shared := [size.crowd for size in crowds if not size.oversubscribed]:
        yield f"more ranks than cores: {_listed(shared)}: servers and evaluator share the cores of the workers"
    if short := [run.point.name for size in sizes for run, known in zip(size.runs, size.rates) if known is None]:
        yield f"no rate, as too little was reported after the warm-up: {', '.join(short)}"
    fewest = sorted({line[0].workers for line in lines})
    if several := [workers for workers in fewest if workers > 1]:
        yield f"speed-up and efficiency are relative to {_listed(several)} workers: no smaller number has finished"
    if settings.target_score is not None and 1 in fewest:
        yield "one worker plays its evaluations itself, in a tenth of its time at most; more have a rank that does"


def _listed(values: Sequence[Any]) -> str:
    """Each once."""
    return ", ".join(dict.fromkeys(map(str, values)))


def _runs(sizes: Sequence[Scaled], target: float | None) -> Table:
    """Every finished run by itself."""
    names = ("point", "scaling", "game", "workers", "seed")
    columns = (*names, "data-points/s", "agent steps/s", "seconds to score", "seconds given")
    rows = [
        [
            run.point.name, size["mode"], size["game"], size.workers, run.point.config.run.seed, points, steps,
            None if target is None else reached_after(run, EVALUATION, target), given_seconds(run),
        ]
        for size in sizes
        for run, points, steps in zip(size.runs, size.rates, size.acted)
    ]  # fmt: skip
    return Table("Runs", columns, rows)
