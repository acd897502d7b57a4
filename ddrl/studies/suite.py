"""`ddrl study suite`: Q-learning on many Atari games beside people and published scores (fast DQN, section 5.2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from ddrl.algorithms import printed_name
from ddrl.reporting.metrics import whole
from ddrl.studies.curves import EVALUATION, GRID, score_curve, spread_text, steps_unit
from ddrl.studies.figures import Curve, Panel
from ddrl.studies.groups import grouped
from ddrl.studies.human_normalized import HUMAN_LEVEL, scores_by_game, scores_of, summary
from ddrl.studies.measures import Interval, bootstrap
from ddrl.studies.points import Outcome, Point
from ddrl.studies.q_learning import RATE_FACTORS, Scored, check_scored, scored
from ddrl.studies.settings import Preset, StudySettings, base_config, game_name, one_of
from ddrl.studies.sized import last_score
from ddrl.studies.study import Report, Study
from ddrl.studies.tables import Table
from ddrl.types import Machine

ALL = "all"
PUBLISHED = {"DQN (2015)": "dqn", "fast DQN (2022)": "fast_dqn"}
"""Name -> column of the table of scores."""
PAPER = (
    "random, human and DQN: Mnih et al. 2015, one run of 50 million agent steps; fast DQN: Human-level control without "
    "server-grade hardware, 2022, table 4, best evaluation of one run; human level: 75% of a person or more"
)


@dataclasses.dataclass(frozen=True)
class SuiteSettings(Scored, StudySettings):
    """Scores on Atari games beside those of people, random play, DQN and fast DQN: best and last evaluation, also in
    percent between random play and people, their median, and how many games are at human level or above DQN (fast DQN,
    section 5.2 and table 4). Evaluations are as there: a copy of the environment, 30 games with up to 30 no-ops,
    epsilon 0.05, every 250,000 agent steps."""

    preset: Preset = "default"
    """Preset of `ddrl train` that every point begins with."""
    games: tuple[str, ...] = (ALL,)
    """Games of the 49, or all."""
    algorithms: tuple[str, ...] = ("dqn",)
    """Which of dqn, categorical-dqn and rainbow."""
    agent_steps: int = 50_000_000
    """Agent steps of a point (0: as many as --minutes allow)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scored(self)
        one_of(self, "algorithms", tuple(RATE_FACTORS))
        for game in self.played:
            scores_of(game)

    @property
    def played(self) -> tuple[str, ...]:
        """The games by name."""
        return tuple(scores_by_game()) if self.games == (ALL,) else self.games


def points(settings: SuiteSettings, machine: Machine) -> list[Point]:
    """A run for each game, algorithm and seed."""
    return [
        Point(
            f"{algorithm}-{game_name(game)}-seed{seed}",
            scored(settings, base_config(settings, algorithm, game, machine), seed),
            {"algorithm": algorithm, "game": game},
        )
        for algorithm in settings.algorithms
        for game in settings.played
        for seed in settings.seeds
    ]


def best_score(run: Outcome, score: str) -> float | None:
    """The largest mean of all evaluations of a run, or of the last 100 training games at any time; None of none."""
    kind = "evaluation" if score == EVALUATION else "train"
    found = [record[score] for record in whole(run.records) if record["kind"] == kind and score in record]
    return max(found, default=None)


def report(settings: SuiteSettings, outcomes: Sequence[Outcome]) -> Report:
    """For each algorithm a row for each game, what they come to, and curves."""
    tables, panels = [], []
    for (algorithm,), some in grouped(outcomes, "algorithm"):
        best, last = (_means(some, lambda run, of=of: of(run, settings.score_name)) for of in (best_score, last_score))
        tables += [_games_table(algorithm, some, best, last), _summary_table(algorithm, best, last)]
        panels += _panels(settings, algorithm, some, best)
    return Report(
        heading="Atari games beside people",
        caption=f"{settings.caption}; {spread_text(outcomes)}",
        tables=tables,
        panels=panels,
        columns=min(7, max(2, round(len(panels) ** 0.5))),
        notes=[PAPER],
    )


def _means(outcomes: Sequence[Outcome], score_of: Callable[[Outcome], float | None]) -> dict[str, Interval]:
    """Game -> mean over the seeds; games without any score are left out."""
    found = ((game, bootstrap([score_of(run) for run in runs])) for (game,), runs in grouped(outcomes, "game"))
    return {game: interval for game, interval in found if interval is not None}


def _games_table(
    algorithm: str, outcomes: Sequence[Outcome], best: Mapping[str, Interval], last: Mapping[str, Interval]
) -> Table:
    rows = []
    for (game,), runs in grouped(outcomes, "game"):
        scores = scores_of(game)
        steps = max((record.get("agent_steps", 0) for run in runs for record in run.records), default=0)
        raw = [scores.dqn, scores.fast_dqn, *(means[game].mean if game in means else None for means in (best, last))]
        percents = [None if score is None else f"{scores.normalized(score):.1f}%" for score in raw]
        published = [scores.random, scores.human, scores.dqn, scores.fast_dqn]
        rows.append([scores.name, len(runs), steps, *published, best.get(game), last.get(game), *percents])
    agents = (*PUBLISHED, "best", "last")
    columns = ("game", "seeds", "agent steps", "random", "human", *agents, *(f"{name}, normalized" for name in agents))
    return Table(f"{algorithm}: scores, and in percent between random play and people", columns, rows)


def _summary_table(algorithm: str, best: Mapping[str, Interval], last: Mapping[str, Interval]) -> Table:
    """Published agents on the same games and on all 49, and ours."""
    rows = []
    every = tuple(scores_by_game())
    for games, what in ((tuple(best), ""), (every, ", all 49 games")):
        if games:
            rows += [[name + what, *_told(raw)] for name, raw in _published(games).items()]
    for means, what in ((best, "best"), (last, "last")):
        if means:
            rows.append([f"{algorithm}, {what}", *_told({game: interval.mean for game, interval in means.items()})])
    columns = ("agent", "games", "median normalized", f"at {HUMAN_LEVEL:g}% or more", "above DQN")
    return Table(f"{algorithm}: all games together", columns, rows)


def _told(scores: Mapping[str, float]) -> list[object]:
    found = summary(scores)
    return [found.games, f"{found.median:.1f}%", found.human_level, found.above_dqn]


def _panels(
    settings: SuiteSettings, algorithm: str, outcomes: Sequence[Outcome], best: Mapping[str, Interval]
) -> Iterator[Panel]:
    """All games in the order of their percents, their median while learning, then every game by itself."""
    unit, x_label = steps_unit(outcomes)
    title = printed_name(algorithm)
    ours = f"{title}, ours"
    curves = list(_sorted(ours, best))
    yield Panel(f"{title}: best", "games, the worst first", "human-normalized (%)", curves, wide_y=True)
    by_game = {
        game: score_curve(runs, settings.score_name, "agent_steps", unit) for (game,), runs in grouped(outcomes, "game")
    }
    published = _published(by_game)
    levels = [(summary(raw).median, name) for name, raw in published.items()] + [(HUMAN_LEVEL, "human level")]
    median = _with_levels(median_curve(by_game)._replace(label=ours), levels)
    yield Panel(f"{title}: median", x_label, "human-normalized (%)", median)
    for game, curve in by_game.items():
        scores = scores_of(game)
        levels = [(raw[game], name) for name, raw in published.items()]
        levels += [(scores.human, "people"), (scores.random, "random")]
        yield Panel(scores.name, x_label, "raw score", _with_levels(curve._replace(label=ours), levels))


def _sorted(ours: str, best: Mapping[str, Interval]) -> Iterator[Curve]:
    """Human-normalized scores of the same games, the published ones as references."""
    agents = {ours: {game: interval.mean for game, interval in best.items()}}
    for style, (name, raw) in enumerate((agents | _published(best)).items()):
        percents = sorted(scores_of(game).normalized(score) for game, score in raw.items())
        yield Curve(name, list(range(1, len(percents) + 1)), percents, style=style, reference=name != ours)


def _published(games: Iterable[str]) -> dict[str, dict[str, float]]:
    """Raw scores of the published agents by game."""
    games = list(games)
    return {name: {game: getattr(scores_of(game), column) for game in games} for name, column in PUBLISHED.items()}


def median_curve(curves: Mapping[str, Curve]) -> Curve:
    """Median over games of human-normalized scores, where all games have some."""
    if not curves or not all(curve.x for curve in curves.values()):
        return Curve("", [], [])
    first, last = (of(curve.x[end] for curve in curves.values()) for of, end in ((max, 0), (min, -1)))
    if first > last:
        return Curve("", [], [])
    grid = np.linspace(first, last, GRID)
    scores = [scores_of(game).normalized(np.interp(grid, curve.x, curve.y)) for game, curve in curves.items()]
    return Curve("", grid.tolist(), np.median(scores, axis=0).tolist())


def _with_levels(curve: Curve, levels: Sequence[tuple[float, str]]) -> list[Curve]:
    """A curve and what it is compared with, as horizontal lines."""
    ends = [curve.x[0], curve.x[-1]] if curve.x else []
    lines = [Curve(name, ends, [y] * len(ends), style=i, reference=True) for i, (y, name) in enumerate(levels, 1)]
    return [curve, *lines]


STUDY = Study(
    name="suite",
    defaults=SuiteSettings(),
    quick=SuiteSettings(
        quick=True,
        preset="laptop",
        games=("pong", "breakout"),
        agent_steps=4000,
        eval_every_steps=1000,
        eval_games=2,
        train_options="--replay-capacity 10000 --replay-minimum 1000 --target-period 960",
    ),
    points=points,
    report=report,
)
