"""Studies of fast DQN: Human-level control without server-grade hardware, 2022."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ddrl import checks
from ddrl.algorithms import printed_name
from ddrl.config import TrainConfig
from ddrl.reporting.metrics import is_resumed, rate_between
from ddrl.studies.curves import GRID, STEPS, count_text, curve_of, interval_curve, points_of, spread_text, unit_of
from ddrl.studies.figures import Curve, Panel, through
from ddrl.studies.findings import extremes
from ddrl.studies.human_normalized import HUMAN_LEVEL, scores_by_game, scores_of, summary
from ddrl.studies.measures import Measure, best_score, count, last_score, mean, most, values
from ddrl.studies.points import Group, Outcome, grouped
from ddrl.studies.settings import EvaluatedSettings, TrainingSettings, base_config, budget, one_of
from ddrl.studies.statistics import Interval, bootstrap
from ddrl.studies.study import Labels, Report, Study, product
from ddrl.studies.tables import Table, table
from ddrl.types import Machine
from ddrl.wording import counted

# suite: section 5.2, table 4 ------------------------------------------------------------------------------------------

ALL = "all"
ALGORITHMS = ("dqn", "categorical-dqn", "rainbow")
PUBLISHED = {"DQN (2015)": "dqn", "fast DQN (2022)": "fast_dqn"}
"""Name -> column of the table of scores."""
SUITE_PAPER = (
    "random, human and DQN: Mnih et al. 2015, one run of 50 million agent steps; fast DQN: Human-level control without "
    "server-grade hardware, 2022, table 4, best evaluation of one run; human level: 75% of a person or more"
)


@dataclasses.dataclass(frozen=True)
class SuiteSettings(EvaluatedSettings):
    """Scores on the 49 Atari games, or --games of them, beside those of people, random play, DQN, and fast DQN: best
    and last evaluation, also in percent between random play and people, their median, and how many games are at human
    level or above DQN (fast DQN, section 5.2 and table 4). Evaluations are those of the paper: a copy of the
    environment, 30 games with up to 30 no-ops, epsilon 0.05, every 250,000 agent steps."""

    algorithms: tuple[str, ...] = ("dqn",)
    """Which of dqn, categorical-dqn, and rainbow."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "algorithms", ALGORITHMS)
        for game in self.played:
            scores_of(game)

    @property
    def played(self) -> tuple[str, ...]:
        """Names of the games to play."""
        return tuple(scores_by_game()) if self.games == (ALL,) else self.games

    def report(self, outcomes: Sequence[Outcome]) -> Report:
        """For each algorithm, a table with a row for each game, a table of all games together, and curves."""
        tables: list[Table] = []
        panels: list[Panel] = []
        for group in grouped(outcomes, "algorithm"):
            best = _means(group.runs, best_score(self.score_name))
            last = _means(group.runs, last_score(self.score_name))
            tables += [_games_table(group, best, last), _summary_table(group["algorithm"], best, last)]
            panels += self._suite_panels(group, _raw(best))
        return Report(
            heading="Atari games beside people",
            caption=f"{self.caption}; {spread_text(outcomes, self.score_name)}",
            finding=_suite_finding(outcomes, self.score_name),
            tables=tables,
            panels=panels,
            columns=min(7, max(2, round(len(panels) ** 0.5))),
            notes=[SUITE_PAPER],
        )

    def _suite_panels(self, algorithm: Group, best: Scores) -> Iterator[Panel]:
        """Panels of all games ordered by normalized score, of their median during training, and of each game."""
        unit, x_label = unit_of(algorithm.runs, STEPS)
        title = printed_name(algorithm["algorithm"])
        ours, percent = f"{title}, ours", "human-normalized (%)"
        ordered = [
            Curve(name, list(range(1, len(raw) + 1)), _percents(raw), style=style, reference=name != ours)
            for style, (name, raw) in enumerate(({ours: best} | _published(best)).items())
        ]
        yield Panel(f"{title}: best", "games, the worst first", percent, ordered, wide_y=True)
        by_game = {
            game["game"]: curve_of(points_of(game.runs, self.score_name, STEPS, unit))
            for game in grouped(algorithm.runs, "game")
        }
        published = _published(by_game)
        levels = {name: summary(raw).median for name, raw in published.items()} | {"human level": HUMAN_LEVEL}
        yield Panel(f"{title}: median", x_label, percent, _with_levels(median_curve(by_game), ours, levels))
        for game, curve in by_game.items():
            levels = {name: raw[game] for name, raw in published.items()}
            levels |= {"people": scores_of(game).human, "random": scores_of(game).random}
            yield Panel(scores_of(game).name, x_label, "raw score", _with_levels(curve, ours, levels))

    def axes(self, machine: Machine) -> Iterator[Labels]:
        return product(algorithm=self.algorithms, game=self.played, seed=self.seeds)

    def config(self, machine: Machine, labels: Labels) -> TrainConfig:
        return self.scored(base_config(self, labels["algorithm"], labels["game"], machine))


Scores = Mapping[str, float]
"""Raw scores by game."""


def _suite_finding(outcomes: Sequence[Outcome], score: str) -> str:
    """A sentence that compares the best scores of each algorithm with those of people."""
    texts = []
    for group in grouped(outcomes, "algorithm"):
        if best := _raw(_means(group.runs, best_score(score))):
            of_all = summary(best)
            name, games = printed_name(group["algorithm"]), counted(of_all.games, "game")
            texts.append(f"{name}'s best scores have a median of {of_all.median:.1f}% of a person's, over {games}")
    return f"{'; '.join(texts)}." if texts else "No score was measured."


def _means(outcomes: Sequence[Outcome], measure: Measure) -> dict[str, Interval]:
    """Game -> mean of a measure over the seeds; games without any score are left out."""
    return {game["game"]: score for game in grouped(outcomes, "game") if (score := mean(measure)(game))}


def _raw(means: Mapping[str, Interval]) -> Scores:
    return {game: score.mean for game, score in means.items()}


def _published(games: Iterable[str]) -> dict[str, Scores]:
    """Published agent -> its raw scores on these games."""
    known = {game: scores_of(game) for game in games}
    return {name: {game: getattr(of, column) for game, of in known.items()} for name, column in PUBLISHED.items()}


def _games_table(algorithm: Group, best: Mapping[str, Interval], last: Mapping[str, Interval]) -> Table:
    games = grouped(algorithm.runs, "game")
    published = _published(game["game"] for game in games)

    def of_game(scores: Mapping[str, Any]) -> Callable[[Group], Any]:
        return lambda game: scores.get(game["game"])

    def percent(raw: Scores) -> Callable[[Group], str | None]:
        return lambda game: f"{scores_of(name).normalized(raw[name]):.1f}%" if (name := game["game"]) in raw else None

    return table(f"{algorithm['algorithm']}: scores, and in percent between random play and people", games, {
        "game": lambda game: scores_of(game["game"]).name, "seeds": count, "agent steps": most("agent_steps"),
        "random": lambda game: scores_of(game["game"]).random, "human": lambda game: scores_of(game["game"]).human,
        **{name: of_game(raw) for name, raw in published.items()}, "best": of_game(best), "last": of_game(last),
        **{f"{name}, normalized": percent(raw) for name, raw in published.items()},
        "best, normalized": percent(_raw(best)), "last, normalized": percent(_raw(last)),
    })  # fmt: skip


def _summary_table(algorithm: str, best: Mapping[str, Interval], last: Mapping[str, Interval]) -> Table:
    """A table of summaries: published agents on the same games and on all 49, and ours."""
    agents = _published(best)
    agents |= {f"{name}, all 49 games": raw for name, raw in _published(scores_by_game()).items()}
    agents |= {f"{algorithm}, best": _raw(best), f"{algorithm}, last": _raw(last)}
    rows = {name: summary(raw) for name, raw in agents.items() if raw}
    return table(f"{algorithm}: all games together", rows.items(), {
        "agent": lambda row: row[0], "games": lambda row: row[1].games,
        "median normalized": lambda row: f"{row[1].median:.1f}%",
        f"at {HUMAN_LEVEL:g}% or more": lambda row: row[1].human_level, "above DQN": lambda row: row[1].above_dqn,
    })  # fmt: skip


def _percents(raw: Scores) -> list[float]:
    """The human-normalized scores in percent, in ascending order."""
    return sorted(scores_of(game).normalized(score) for game, score in raw.items())


def median_curve(curves: Mapping[str, Curve]) -> Curve:
    """The curve of the median human-normalized score over games, where all games have scores."""
    if not curves or not all(curve.x for curve in curves.values()):
        return Curve("", [], [])
    first, last = max(curve.x[0] for curve in curves.values()), min(curve.x[-1] for curve in curves.values())
    if first > last:
        return Curve("", [], [])
    grid = np.linspace(first, last, GRID)
    raw = {game: np.interp(grid, curve.x, curve.y) for game, curve in curves.items()}
    scores = [list(map(scores_of(game).normalized, of_game)) for game, of_game in raw.items()]
    return Curve("", grid.tolist(), np.median(scores, axis=0).tolist())


def _with_levels(curve: Curve, label: str, levels: Scores) -> list[Curve]:
    """A curve, and the levels that it is compared with as horizontal lines."""
    ends = [curve.x[0], curve.x[-1]] if curve.x else []
    lines = [
        Curve(name, ends, [y] * len(ends), style=i, reference=True) for i, (name, y) in enumerate(levels.items(), 1)
    ]
    return [curve._replace(label=label), *lines]


SUITE = Study(
    name="suite",
    about="Q-learning on many Atari games beside people and published scores (fast DQN, table 4)",
    defaults=SuiteSettings(preset="default", games=(ALL,), agent_steps=50_000_000),
    quick_changes={
        "preset": "laptop", "games": ("pong", "breakout"), "agent_steps": 4000, "eval_every_steps": 1000,
        "eval_games": 2, "train_options": "--replay-capacity 10000 --replay-minimum 1000 --target-period 960",
    },
    point_name="{algorithm}-{game}-seed{seed}",
)  # fmt: skip


# ablation: section 5.1, tables 1 to 3 ---------------------------------------------------------------------------------

AGENT_STEPS = 50e6
VARIANTS = {
    "standard": ("standard", False),
    "concurrent": ("concurrent", False),
    "synchronized": ("standard", True),
    "both": ("concurrent", True),
}
"""Name -> schedule, and whether all samplers query the policy together."""
PAPER_HOURS = {
    "standard": {1: (25.08, 0.52), 2: (19.10, 0.07), 4: (16.84, 0.09), 8: (16.92, 0.23)},
    "concurrent": {1: (20.64, 0.29), 2: (14.00, 0.00), 4: (12.14, 0.05), 8: (11.68, 0.04)},
    "synchronized": {2: (19.32, 0.28), 4: (15.74, 0.21), 8: (14.60, 0.12)},
    "both": {2: (14.72, 0.13), 4: (11.08, 0.08), 8: (9.02, 0.16)},
}
"""Hours for 50 million agent steps by samplers, mean and deviation: table 1."""
HARDWARE = "4 cores (8 threads) at 4.2 GHz and a GTX 1080"
Cell = tuple[str, int]
"""Variant and samplers."""
BASELINE: Cell = ("standard", 1)
THEIRS = {(variant, n): mean for variant, cells in PAPER_HOURS.items() for n, (mean, _) in cells.items()}


@dataclasses.dataclass(frozen=True)
class AblationSettings(TrainingSettings):
    """Hours for 50 million agent steps of DQN with and without Concurrent Training and Synchronized Execution, by
    samplers (fast DQN, tables 1 to 3). All 14 variants are one program: standard acts, then learns, and every sampler
    queries the policy alone in a thread of its own; concurrent acts with the target parameters meanwhile; synchronized
    has one query for all samplers; both has both. They are measured over whole target periods."""

    variants: tuple[str, ...] = tuple(VARIANTS)
    """standard, concurrent, synchronized, both."""
    samplers: tuple[int, ...] = (1, 2, 4, 8)
    """Numbers of samplers. A single one has nothing to synchronize with."""
    epsilon: float = 0.1
    """Fixed probability of a random action, so that the policy is queried as often as in most of a run."""
    target_period: int = 10_000
    """Agent steps from one copy of the parameters to the target network to the next."""
    periods: int = 2
    """Target periods that are measured, after the replay's minimum and one period to warm up (the paper's runs:
    100)."""
    replay_capacity: int = 100_000
    """Transitions in the replay. It does not affect the speed, and a million take 7.5 GB."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "variants", VARIANTS)
        checks.at_least(self, 1, "target_period", "periods")
        checks.between(self, 0.0, 1.0, "epsilon")
        if self.replay_capacity < self.target_period:
            checks.refuse(
                self, "replay_capacity", f"must be at least --target-period {self.target_period}, which fills it"
            )

    def updates_per(self, run: Outcome, over: str) -> float | None:
        """Updates in the measured periods per second, agent step, or whatever the total `over` counts; None if the run
        ended before."""
        period = self.target_period // run.point.config.replay_data.steps_per_update
        return rate_between(run.records, "update", period, (1 + self.periods) * period, over)

    def rate(self, run: Outcome) -> float | None:
        """Agent steps/s, computed from updates, since acting may run ahead of learning within a period."""
        rate = self.updates_per(run, "wall_seconds")
        return rate and rate * run.point.config.replay_data.steps_per_update

    def intensity(self, run: Outcome) -> float | None:
        """Uses of each transition over the measured periods; single records say less, since acting may be ahead."""
        rate = self.updates_per(run, "agent_steps")
        return rate and rate * run.point.config.optimizer.batch_size

    def axes(self, machine: Machine) -> Iterator[Labels]:
        """Yields all variants of one trial before those of the next: a machine that slows down slows all variants."""
        for labels in product(game=self.games, seed=self.seeds, variant=self.variants, samplers=self.samplers):
            if labels["samplers"] > 1 or not VARIANTS[labels["variant"]][1]:
                yield labels

    def config(self, machine: Machine, labels: Labels) -> TrainConfig:
        (schedule, together), samplers = VARIANTS[labels["variant"]], labels["samplers"]
        config = base_config(self, "dqn", labels["game"], machine)
        period = self.target_period // config.replay_data.steps_per_update  # in updates
        # The last period counts when the next one has begun.
        updates = (1 + self.periods) * period + period // 4
        epsilon = {"epsilon_start": self.epsilon, "epsilon_end": self.epsilon, "epsilon_steps": 0}
        return config.changed(
            algorithm={"target_period": self.target_period, **epsilon},
            sampling={"schedule": schedule, "simulators": samplers, "groups": 1 if together else samplers},
            replay={"replay_capacity": self.replay_capacity, "replay_minimum": self.target_period},
            run=budget(0.0) | {"log_every_seconds": 0.5, "max_updates": updates},
        )

    def report(self, outcomes: Sequence[Outcome]) -> Report:
        """Tables 1 to 3 of the paper with our numbers beside its own, and the rates that ours are computed from."""
        tables: list[Table] = []
        panels: list[Panel] = []
        for game in grouped(outcomes, "game"):
            groups = grouped(game.runs, "variant", "samplers")
            rates = {(group["variant"], group["samplers"]): values(self.rate, group.runs) for group in groups}
            hours = {cell: [AGENT_STEPS / 3600.0 / rate for rate in trials if rate] for cell, trials in rates.items()}
            tables += _hours_tables(game["game"], self, hours)
            tables.append(table(f"{game['game']}: measured", groups, {
                "variant": "variant", "samplers": "samplers", "trials": count, "agent steps/s": mean(self.rate),
                "training intensity": mean(self.intensity),
            }))  # fmt: skip
            panels += _ablation_panels(game["game"], self, hours)
        resumed = [run.point.name for run in outcomes if any(map(is_resumed, run.records))]
        return Report(
            heading="DQN with Concurrent Training and Synchronized Execution",
            caption=f"over {self.periods} periods of {self.target_period:,} agent steps; {spread_text(outcomes)}",
            finding=extremes(
                grouped(outcomes, "game", "variant", "samplers"), mean(self.rate), "rate in agent steps/s"
            ),
            tables=tables,
            panels=panels,
            notes=[f"the paper: Human-level control without server-grade hardware, 2022, tables 1 to 3, {HARDWARE}"],
            careful=[f"resumed, so their rates may include another start: {', '.join(resumed)}"] if resumed else [],
        )


def mean_and_deviation(trials: Sequence[float]) -> str | None:
    """Mean and sample standard deviation as a text, such as 25.08 ± 0.52; None without values."""
    if len(trials) < 2:
        return f"{trials[0]:.2f}" if trials else None
    return f"{statistics.mean(trials):.2f} ± {statistics.stdev(trials):.2f}"


def _hours_tables(game: str, settings: AblationSettings, hours: Mapping[Cell, list[float]]) -> Iterator[Table]:
    """Tables with a row for each number of samplers, and columns for each variant, ours and the paper's."""
    ours = {cell: statistics.mean(trials) for cell, trials in hours.items() if trials}
    counts = {len(trials) for trials in hours.values()}
    trials = "one trial" if counts == {1} else f"mean and deviation of {count_text(counts)} trials"

    def paper(cell: Cell) -> str | None:
        return "{:.2f} ± {:.2f}".format(*PAPER_HOURS[cell[0]][cell[1]]) if cell in THEIRS else None

    def of_both(title: str, our: Callable[[Cell], str | None], their: Callable[[Cell], str | None]) -> Table:
        columns = ("samplers", *settings.variants, *(f"{variant}, paper" for variant in settings.variants))
        rows = [[n, *(of((v, n)) for of in (our, their) for v in settings.variants)] for n in settings.samplers]
        return Table(f"{game}: {title}", columns, rows)

    def relative(means: Mapping[Cell, float], text: Callable[[float], str]) -> Callable[[Cell], str | None]:
        return lambda cell: text(means[cell] / means[BASELINE]) if {cell, BASELINE} <= means.keys() else None

    title = f"hours for {AGENT_STEPS / 1e6:.0f} million agent steps, {trials}"
    yield of_both(title, lambda cell: mean_and_deviation(hours.get(cell, [])), paper)
    texts: dict[str, Callable[[float], str]] = {
        "percent of one standard sampler's hours": lambda share: f"{100.0 * share:.1f}%",
        "speed-up over one standard sampler": lambda share: f"{1 / share:.2f}x",
    }
    for title, text in texts.items():
        yield of_both(title, relative(ours, text), relative(THEIRS, text))


def _ablation_panels(game: str, settings: AblationSettings, hours: Mapping[Cell, list[float]]) -> Iterator[Panel]:
    """Panels of the hours, and of the speed-up beside the paper's, by samplers."""
    measured, faster = [], []
    baseline = statistics.mean(hours[BASELINE]) if hours.get(BASELINE) else None
    for style, variant in enumerate(settings.variants):
        curve = interval_curve([(n, bootstrap(hours.get((variant, n), []))) for n in settings.samplers], variant, style)
        measured.append(curve)
        if baseline:
            faster.append(Curve(variant, curve.x, [baseline / mean for mean in curve.y], style=style))
        paper = [(n, THEIRS[BASELINE] / THEIRS[variant, n]) for n in PAPER_HOURS[variant]]
        faster.append(through(paper, f"{variant}, the paper's", style=style, reference=True))
    yield Panel(game, "samplers", "hours for 50 million agent steps", measured, log_x=True, zero=True)
    yield Panel(f"{game}, speed-up", "samplers", "times one standard sampler", faster, log_x=True, zero=True)


ABLATION = Study(
    name="ablation",
    about="Concurrent Training and Synchronized Execution of DQN, by samplers (fast DQN, tables 1 to 3)",
    defaults=AblationSettings(preset="default", games=("pong",), repeats=5),
    quick_changes={"repeats": 1, "samplers": (1, 2, 4), "target_period": 1000, "periods": 3, "replay_capacity": 10_000},
    point_name="{game}-{variant}-{samplers}samplers-seed{seed}",
)
