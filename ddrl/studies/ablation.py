"""`ddrl study ablation`: what Concurrent Training and Synchronized Execution bring (fast DQN, section 5.1)."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Sequence

from ddrl import checks
from ddrl.reporting.metrics import rate_between
from ddrl.studies.curves import count_text, from_intervals, spread_text
from ddrl.studies.figures import Curve, Panel
from ddrl.studies.groups import grouped
from ddrl.studies.measures import bootstrap
from ddrl.studies.points import Outcome, Point
from ddrl.studies.settings import Preset, StudySettings, base_config, budget, changed, game_name, not_empty, one_of
from ddrl.studies.speed import AGENT_STEPS
from ddrl.studies.study import Report, Study
from ddrl.studies.tables import Table
from ddrl.types import Machine

VARIANTS = {
    "standard": ("standard", False),
    "concurrent": ("concurrent", False),
    "synchronized": ("standard", True),
    "both": ("concurrent", True),
}
"""Name -> schedule, and whether all samplers query the policy together."""
BASELINE = ("standard", 1)
PAPER = {
    "standard": {1: (25.08, 0.52), 2: (19.10, 0.07), 4: (16.84, 0.09), 8: (16.92, 0.23)},
    "concurrent": {1: (20.64, 0.29), 2: (14.00, 0.00), 4: (12.14, 0.05), 8: (11.68, 0.04)},
    "synchronized": {2: (19.32, 0.28), 4: (15.74, 0.21), 8: (14.60, 0.12)},
    "both": {2: (14.72, 0.13), 4: (11.08, 0.08), 8: (9.02, 0.16)},
}
"""Hours for 50 million agent steps by samplers, mean and deviation: table 1."""
HARDWARE = "4 cores (8 threads) at 4.2 GHz and a GTX 1080"


@dataclasses.dataclass(frozen=True)
class AblationSettings(StudySettings):
    """Hours for 50 million agent steps of DQN with and without Concurrent Training and Synchronized Execution, by
    samplers (fast DQN, tables 1 to 3). All 14 variants are one program: standard acts, then learns, and every sampler
    queries the policy alone in a thread of its own; concurrent acts with the target parameters meanwhile; synchronized
    has one query for all samplers; both has both. They are measured over whole target periods."""

    preset: Preset = "default"
    """Preset of `ddrl train` that every point begins with."""
    games: tuple[str, ...] = ("pong",)
    """Games, as for `ddrl train --game`."""
    repeats: int = 5
    """Trials of every variant, each with a seed of its own."""
    variants: tuple[str, ...] = tuple(VARIANTS)
    """standard, concurrent, synchronized, both."""
    samplers: tuple[int, ...] = (1, 2, 4, 8)
    """Numbers of samplers. With one there is nothing to synchronize."""
    epsilon: float = 0.1
    """Probability of a random action, fixed, so that the policy is queried as often as it mostly is."""
    target_period: int = 10_000
    """Agent steps from one copy of the parameters to the target network to the next."""
    periods: int = 2
    """Target periods that are measured, after the replay's minimum and one to warm up (the paper's runs: 100)."""
    replay_capacity: int = 100_000
    """Transitions in the replay. It has no part in the speed, and a million take 7.5 GB."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "variants", VARIANTS)
        not_empty(self, "samplers")
        checks.at_least(self, 1, "target_period", "periods")
        checks.between(self, 0.0, 1.0, "epsilon")
        if min(self.samplers) < 1:
            checks.refuse(self, "samplers", "at least 1 each")
        if self.replay_capacity < self.target_period:
            checks.refuse(self, "replay_capacity", f"at least --target-period {self.target_period}, which fills it")


def points(settings: AblationSettings, machine: Machine) -> list[Point]:
    """All variants of one trial, then those of the next: a machine that slows down does so for all of them."""
    return [
        _point(settings, machine, game, variant, samplers, seed)
        for game in settings.games
        for seed in settings.seeds
        for variant in settings.variants
        for samplers in settings.samplers
        if samplers > 1 or not VARIANTS[variant][1]
    ]


def _point(settings: AblationSettings, machine: Machine, game: str, variant: str, samplers: int, seed: int) -> Point:
    schedule, together = VARIANTS[variant]
    config = base_config(settings, "dqn", game, machine)
    updates = settings.target_period // config.replay_data.steps_per_update  # in a period
    config = changed(
        config,
        algorithm={
            "target_period": settings.target_period,
            "epsilon_start": settings.epsilon,
            "epsilon_end": settings.epsilon,
            "epsilon_steps": 0,
        },
        sampling={"schedule": schedule, "simulators": samplers, "groups": 1 if together else samplers},
        replay={"replay_capacity": settings.replay_capacity, "replay_minimum": settings.target_period},
        # The last period counts when the next one has begun.
        run=budget(0.0)
        | {"seed": seed, "log_every_seconds": 0.5, "max_updates": (1 + settings.periods) * updates + updates // 4},
    )
    labels = {"game": game, "variant": variant, "samplers": samplers}
    return Point(f"{game_name(game)}-{variant}-{samplers}samplers-seed{seed}", config, labels)


Hours = dict[tuple[str, int], list[float]]
"""(variant, samplers) -> hours of each trial."""


def report(settings: AblationSettings, outcomes: Sequence[Outcome]) -> Report:
    """Tables 1 to 3 of the paper, ours beside its own, and what they were made of."""
    tables, panels = [], []
    for (game,), some in grouped(outcomes, "game"):
        hours = {
            labels: [AGENT_STEPS / 3600.0 / rate for rate in _rates(settings, runs) if rate]
            for labels, runs in grouped(some, "variant", "samplers")
        }
        tables += [*_tables(game, settings, hours), _measured(game, settings, some)]
        panels += _panels(game, settings, hours)
    return Report(
        heading="DQN with Concurrent Training and Synchronized Execution",
        caption=f"over {settings.periods} periods of {settings.target_period:,} agent steps; {spread_text(outcomes)}",
        tables=tables,
        panels=panels,
        notes=[f"the paper: Human-level control without server-grade hardware, 2022, tables 1 to 3, {HARDWARE}"],
    )


def _rates(settings: AblationSettings, runs: Sequence[Outcome]) -> list[float | None]:
    """Agent steps/s: updates tell them, since acting may run ahead of learning within a period."""
    rates = []
    for run in runs:
        rate = _updates_per(settings, run, "wall_seconds")
        rates.append(rate and rate * run.point.config.replay_data.steps_per_update)
    return rates


def _updates_per(settings: AblationSettings, run: Outcome, over: str) -> float | None:
    """Updates of the measured periods for each second, or whatever else a total counts."""
    period = settings.target_period // run.point.config.replay_data.steps_per_update
    return rate_between(run.records, "update", period, (1 + settings.periods) * period, over)


def mean_and_deviation(values: Sequence[float]) -> str | None:
    """Such as 25.08 ± 0.52, the deviation of a sample; None of no values."""
    if len(values) < 2:
        return f"{values[0]:.2f}" if values else None
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


def _tables(game: str, settings: AblationSettings, hours: Hours) -> Iterator[Table]:
    paper = {(variant, n): cell for variant, cells in PAPER.items() for n, cell in cells.items()}
    ours = {labels: statistics.mean(some) for labels, some in hours.items() if some}
    theirs = {labels: mean for labels, (mean, _) in paper.items()}
    what = f"hours for {AGENT_STEPS / 1e6:.0f} million agent steps"
    yield _table(
        settings,
        f"{game}: {what}, {_trials(hours)}",
        lambda labels: mean_and_deviation(hours.get(labels, [])),
        lambda labels: "{:.2f} ± {:.2f}".format(*paper[labels]) if labels in paper else None,
    )
    yield _relative(settings, f"{game}: percent of one standard sampler's hours", ours, theirs, percent_of)
    yield _relative(settings, f"{game}: speed-up over one standard sampler", ours, theirs, times_faster)


def _trials(hours: Hours) -> str:
    counts = {len(some) for some in hours.values()}
    return "one trial" if counts == {1} else f"mean and deviation of {count_text(counts)} trials"


def percent_of(hours: float, baseline: float) -> str:
    """Table 2."""
    return f"{100.0 * hours / baseline:.1f}%"


def times_faster(hours: float, baseline: float) -> str:
    """Table 3."""
    return f"{baseline / hours:.2f}x"


def _relative(
    settings: AblationSettings, title: str, ours: dict, theirs: dict, text: Callable[[float, float], str]
) -> Table:
    def cell(means: dict, labels: tuple[str, int]) -> str | None:
        return text(means[labels], means[BASELINE]) if labels in means and BASELINE in means else None

    return _table(settings, title, lambda labels: cell(ours, labels), lambda labels: cell(theirs, labels))


def _table(
    settings: AblationSettings,
    title: str,
    ours: Callable[[tuple[str, int]], str | None],
    paper: Callable[[tuple[str, int]], str | None],
) -> Table:
    """A row for each number of samplers, a column for each variant, ours and the paper's."""
    columns = ("samplers", *settings.variants, *(f"{variant}, paper" for variant in settings.variants))
    rows = [[n, *(of((v, n)) for of in (ours, paper) for v in settings.variants)] for n in settings.samplers]
    return Table(title, columns, rows)


def _measured(game: str, settings: AblationSettings, outcomes: Sequence[Outcome]) -> Table:
    rows = [
        [*labels, len(runs), bootstrap(_rates(settings, runs)), bootstrap([_intensity(settings, run) for run in runs])]
        for labels, runs in grouped(outcomes, "variant", "samplers")
    ]
    return Table(f"{game}: measured", ("variant", "samplers", "trials", "agent steps/s", "training intensity"), rows)


def _intensity(settings: AblationSettings, run: Outcome) -> float | None:
    """Uses of each transition over the measured periods. Single lines say less, as acting may be ahead of learning."""
    rate = _updates_per(settings, run, "agent_steps")
    return rate and rate * run.point.config.optimizer.batch_size


def _panels(game: str, settings: AblationSettings, hours: Hours) -> Iterator[Panel]:
    """Hours, and the speed-up beside the paper's, by samplers."""
    measured, faster = [], []
    baseline = statistics.mean(hours[BASELINE]) if hours.get(BASELINE) else None
    for style, variant in enumerate(settings.variants):
        found = [(n, interval) for n in settings.samplers if (interval := bootstrap(hours.get((variant, n), [])))]
        measured.append(from_intervals(found, variant)._replace(style=style))
        if baseline:
            ours = Curve(variant, [n for n, _ in found], [baseline / interval.mean for _, interval in found])
            faster.append(ours._replace(style=style))
        paper = [(n, PAPER[BASELINE[0]][1][0] / mean) for n, (mean, _) in PAPER[variant].items()]
        theirs = Curve(f"{variant}, the paper's", *map(list, zip(*paper)), style=style, reference=True)
        faster.append(theirs)
    yield Panel(game, "samplers", "hours for 50 million agent steps", measured, log_x=True, zero=True)
    yield Panel(f"{game}, speed-up", "samplers", "times one standard sampler", faster, log_x=True, zero=True)


STUDY = Study(
    name="ablation",
    defaults=AblationSettings(),
    quick=AblationSettings(
        quick=True,
        preset="smoke",
        games=("ddrl/Catch-v0",),
        repeats=1,
        samplers=(1, 2, 4),
        target_period=1000,
        periods=3,
        replay_capacity=10_000,
    ),
    points=points,
    report=report,
)
