"""What `ddrl study scaling` reports: rates, speed-up, parallel efficiency and time to a score by number of workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from ddrl.studies.curves import CAPTIONS, EVALUATION, from_intervals, spread_text, time_unit
from ddrl.studies.figures import Curve, Mark, Panel
from ddrl.studies.groups import grouped, having
from ddrl.studies.measures import Interval, agent_steps_per_second, bootstrap, rate_per_second
from ddrl.studies.page import machine_of
from ddrl.studies.points import Outcome
from ddrl.studies.reached import given_seconds, reached_after, times_to
from ddrl.studies.statistics import TimeToScore, efficiency, interquartile_mean, interval_of, speed_up, time_speed_up
from ddrl.studies.study import Report
from ddrl.studies.tables import Table

STRONG, WEAK = "strong", "weak"
NAMES = {STRONG: "strong (constant effective batch)", WEAK: "weak (constant batch per worker)"}
SETUP = ("scaling", "game", "workers", "servers", "ranks", "cores")


@dataclasses.dataclass(frozen=True)
class Scaled:
    """The repeats of one number of workers.

    Attributes:
        rates: data-points/s of each repeat, None where it was too short to have one.
        times: to the target score, where there is one.
        cores: that the ranks had, where it is known; servers and evaluator share them with the workers.
    """

    workers: int
    runs: Sequence[Outcome]
    rates: Sequence[float | None]
    acted: Sequence[float | None]
    times: TimeToScore | None
    cores: int | None

    @property
    def config(self) -> Any:
        """Settings, the same for all repeats but for the seed."""
        return self.runs[0].point.config

    @property
    def at_least(self) -> bool:
        """Whether the batch per worker is the smallest one that is allowed, so that the effective batch grew."""
        return self.runs[0].point.labels["at_least"]

    @property
    def oversubscribed(self) -> bool:
        """Whether there were more workers than cores."""
        return self.cores is not None and self.workers > self.cores


Group = tuple[str, str, list[Scaled]]
"""Mode, game, numbers of workers ascending."""


def report(settings: Any, outcomes: Sequence[Outcome]) -> Report:
    """Tables, and for each game a panel for each of rate, efficiency and time to the score."""
    groups = [
        (mode, game, sorted([_scaled(settings, runs) for _, runs in grouped(some, "workers")], key=lambda s: s.workers))
        for (mode, game), some in grouped(outcomes, "mode", "game")
    ]
    timed = settings.target_score is not None
    caption = f"rates after {settings.warm_up_seconds:g} s of each run; {spread_text(outcomes)}"
    if timed:
        caption += f"; time to a mean {CAPTIONS[EVALUATION].replace(':', f' of {settings.target_score:g},')}"
    tables = [Table("Speed by number of workers", SPEED, [row for group in groups for row in _speed_rows(*group)])]
    if timed:
        title = f"Time to an evaluation of mean score {settings.target_score:g}"
        tables.append(Table(title, TIME, [row for group in groups for row in _time_rows(*group)]))
    return Report(
        heading="Scaling with the number of workers",
        caption=caption,
        tables=tables,
        panels=list(_panels(settings, outcomes, groups)),
        columns=3 if timed else 2,
        notes=list(_notes(settings, groups)),
        runs=_runs(settings, groups),
    )


def _scaled(settings: Any, runs: Sequence[Outcome]) -> Scaled:
    waits = [min(settings.warm_up_seconds, given_seconds(run) / 3) for run in runs]
    label = runs[0].point.labels
    here = [cores for run in runs if isinstance(cores := machine_of(run.path).get("cores"), int)]
    target = settings.target_score
    return Scaled(
        workers=label["workers"],
        runs=runs,
        rates=[rate_per_second(run.records, "datapoints_per_s", wait) for run, wait in zip(runs, waits)],
        acted=[agent_steps_per_second(run.records, wait) for run, wait in zip(runs, waits)],
        times=None if target is None else times_to(runs, EVALUATION, target, settings.minutes),
        cores=min([*here, *([label["cores"]] if label["cores"] else [])]) if here else None,
    )


SPEED = (
    *SETUP, "batch per worker", "effective batch", "batch rule", "runs", "data-points/s", "interquartile mean",
    "agent steps/s", "speed-up", "efficiency",
)  # fmt: skip


def _speed_rows(mode: str, game: str, group: Sequence[Scaled]) -> Iterator[list[Any]]:
    for one in group:
        ratio = speed_up(one.rates, group[0].rates) if one is not group[0] else None
        yield [
            *_setup(mode, game, one),
            one.config.batch_size,
            one.config.effective_batch,
            _rule(mode, one),
            len(one.runs),
            bootstrap(one.rates),
            interval_of(interquartile_mean, one.rates),
            bootstrap(one.acted),
            ratio,
            efficiency(ratio, one.workers, group[0].workers),
        ]


def _setup(mode: str, game: str, one: Scaled) -> list[Any]:
    cores = f"{one.cores} (oversubscribed)" if one.oversubscribed else one.cores
    return [mode, game, one.workers, one.config.exchange.servers, one.config.ranks, cores]


def _rule(mode: str, one: Scaled) -> str:
    if mode == WEAK:
        return "constant per worker"
    return f"at least {one.config.batch_size} per worker" if one.at_least else "constant in all"


TIME = (
    "scaling", "game", "workers", "effective batch", "runs", "time to score", "median, min",
    "interquartile mean, min", "mean with the limit for those that missed, min", "speed-up", "efficiency",
)  # fmt: skip


def _time_rows(mode: str, game: str, group: Sequence[Scaled]) -> Iterator[list[Any]]:
    for one in group:
        times = one.times
        ratio = time_ratio(one, group[0])
        minutes = [seconds / 60 for seconds in times.reached]
        yield [
            mode,
            game,
            one.workers,
            one.config.effective_batch,
            len(one.runs),
            times.text(),
            None if times.median is None else times.median / 60,
            None if times.missed else interval_of(interquartile_mean, minutes),
            times.least_mean() / 60,
            ratio,
            efficiency(ratio, one.workers, group[0].workers),
        ]


def time_ratio(one: Scaled, first: Scaled) -> Interval | None:
    """How many times sooner than the first; None unless all repeats of both reached the score."""
    if one is first or one.times.missed or first.times.missed:
        return None
    return time_speed_up(one.times.reached, first.times.reached)


def _panels(settings: Any, outcomes: Sequence[Outcome], groups: Sequence[Group]) -> Iterator[Panel]:
    for (game,), some in grouped(outcomes, "game"):
        mine = [group for group in groups if group[1] == game]
        yield _rate_panel(game, mine)
        yield _efficiency_panel(game, mine)
        if settings.target_score is not None:
            yield _time_panel(settings, game, some, mine)


def _rate_panel(game: str, groups: Sequence[Group]) -> Panel:
    curves, lines = [], []
    for style, (mode, _, group) in enumerate(groups):
        found = [(one.workers, rate) for one in group if (rate := bootstrap(one.rates))]
        curves.append(from_intervals(found, NAMES[mode])._replace(style=style))
        if len(found) > 1:
            x, first = [workers for workers, _ in found], found[0][1].mean
            lines.append(Curve("" if lines else "linear", x, [first * n / x[0] for n in x], reference=True))
    curves += lines
    return Panel(f"{game}: speed", "workers", "data-points/s", curves, log_x=True, log_y=True, marks=_marks(groups))


def _efficiency_panel(game: str, groups: Sequence[Group]) -> Panel:
    curves, numbers = [], set()
    for style, (mode, _, group) in enumerate(groups):
        found = [(one.workers, share) for one in group if (share := _share(one, group[0]))]
        numbers |= {workers for workers, _ in found}
        curves.append(_with_band(found, NAMES[mode])._replace(style=style))
    line = [Curve("linear", sorted(numbers), [1.0] * len(numbers), reference=True)] if len(numbers) > 1 else []
    label = "parallel efficiency (1: linear)"
    return Panel(f"{game}: efficiency", "workers", label, [*curves, *line], log_x=True, zero=True, marks=_marks(groups))


def _share(one: Scaled, first: Scaled) -> Interval | None:
    """Parallel efficiency; that of the first is 1 by definition."""
    ratio = speed_up(one.rates, first.rates)
    return Interval(1.0) if ratio and one is first else efficiency(ratio, one.workers, first.workers)


def _with_band(found: Sequence[tuple[int, Interval]], label: str) -> Curve:
    """A curve whose first point, which is 1 by definition, has no interval, and whose others may have one."""
    known = [(x, i if i.low is not None else i._replace(low=i.mean, high=i.mean)) for x, i in found]
    spread = any(interval.low is not None for _, interval in found)
    return from_intervals(known if spread else found, label)


def _time_panel(settings: Any, game: str, outcomes: Sequence[Outcome], groups: Sequence[Group]) -> Panel:
    unit, text = time_unit(outcomes)
    curves, lines = [], []
    for style, (mode, _, group) in enumerate(groups):
        found = [(one.workers, _over(one.times.mean(), unit)) for one in group if not one.times.missed]
        curves.append(from_intervals(found, NAMES[mode])._replace(style=style))
        missed = [(one.workers, one.times.least_mean() / unit) for one in group if one.times.missed]
        if missed:
            label = f"{mode}: at least so long (not all reached it)"
            curves.append(Curve(label, *map(list, zip(*missed)), style=style, points=True))
        if len(found) > 1:
            x, (fewest, first) = [one.workers for one in group], found[0]
            lines.append(Curve("" if lines else "linear", x, [first.mean * fewest / n for n in x], reference=True))
    label = text.replace("wall time", f"time to score {settings.target_score:g}")
    curves += lines
    return Panel(f"{game}: time to score", "workers", label, curves, log_x=True, log_y=True, marks=_marks(groups))


def _over(interval: Interval, unit: float) -> Interval:
    low, high = (None if value is None else value / unit for value in (interval.low, interval.high))
    return Interval(interval.mean / unit, low, high, interval.count)


def _marks(groups: Sequence[Group]) -> list[Mark]:
    """Where the batch rule changes, and from where on there were more workers than cores."""
    strong = [one for mode, _, group in groups for one in group if mode == STRONG]
    smallest = next((one.config.batch_size for one in strong if one.at_least), 0)
    marks = [Mark(_between(strong, [one.at_least for one in strong]), f"strong: {smallest} per worker to the right")]
    every = sorted((one for _, _, group in groups for one in group), key=lambda one: one.workers)
    marks.append(Mark(_between(every, [one.oversubscribed for one in every]), "more workers than cores to the right"))
    return [mark for mark in marks if mark.x is not None]


def _between(ones: Sequence[Scaled], changed: Sequence[bool]) -> float | None:
    """The middle, in logarithms, of the last number of workers before a change and the first after it."""
    before = [one.workers for one, yes in zip(ones, changed) if not yes]
    after = [one.workers for one, yes in zip(ones, changed) if yes]
    return (max(before) * min(after)) ** 0.5 if before and after and max(before) < min(after) else None


def _notes(settings: Any, groups: Sequence[Group]) -> Iterator[str]:
    if any(having(one.runs, mode=STRONG, at_least=True) for _, _, group in groups for one in group):
        numbers = sorted({one.workers for _, _, group in groups for one in group if one.at_least})
        yield (
            f"batch rule: {_listed(numbers)} workers have {settings.min_batch_per_worker} data-points each, so the "
            f"effective batch is above {settings.effective_batch} there"
        )
    every = [one for _, _, group in groups for one in group if one.cores is not None and one.config.ranks > one.cores]
    if crowded := [one for one in every if one.oversubscribed]:
        yield f"oversubscribed: {_ranks(crowded)}: workers take turns there, which says nothing of how they scale"
    if shared := [one for one in every if not one.oversubscribed]:
        yield f"more ranks than cores: {_ranks(shared)}: servers and evaluator share the cores of the workers"
    short = [
        run.point.name
        for _, _, group in groups
        for one in group
        for run, rate in zip(one.runs, one.rates)
        if rate is None
    ]
    if short:
        yield f"no rate, as too little was reported after the warm-up: {', '.join(short)}"
    if fewest := sorted({group[0].workers for _, _, group in groups if group[0].workers > 1}):
        yield f"speed-up and efficiency are relative to {_listed(fewest)} workers: no smaller number has finished"
    if settings.target_score is not None and any(group[0].workers == 1 for _, _, group in groups):
        yield "one worker plays its evaluations itself, in a tenth of its time at most; more have a rank that does"


def _ranks(ones: Sequence[Scaled]) -> str:
    texts = {f"{one.workers} workers ({one.config.ranks} ranks on {one.cores} cores)": None for one in ones}
    return ", ".join(texts)


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _runs(settings: Any, groups: Sequence[Group]) -> Table:
    """Every finished run by itself."""
    measured = ("data-points/s", "agent steps/s", "seconds to score", "seconds given")
    columns = ("point", "scaling", "game", "workers", "seed", *measured)
    target = settings.target_score
    rows = [
        [
            run.point.name,
            mode,
            game,
            one.workers,
            run.point.config.run.seed,
            rate,
            acted,
            None if target is None else reached_after(run, EVALUATION, target),
            given_seconds(run),
        ]
        for mode, game, group in groups
        for one in group
        for run, rate, acted in zip(one.runs, one.rates, one.acted)
    ]
    return Table("Runs", columns, rows)
