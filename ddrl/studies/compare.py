"""Compares any runs: their curves, final scores, rates and the settings that differ, on one page and in one figure.

Runs form a group if all settings that affect learning are equal, except for the seed, in all parts of the runs: a run
that was resumed with other settings is in no group of runs that had them throughout. Fewer than five runs say too
little for a mean or an interval: they are shown one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ddrl import rundir
from ddrl.checks import hyphenated
from ddrl.config import TrainConfig
from ddrl.errors import UsageError, written
from ddrl.files import write_whole
from ddrl.options.named_settings import RULES, by_group, differences
from ddrl.reporting.metrics import complete
from ddrl.resumable import FREE
from ddrl.studies import comparable, figures, measures, provenance
from ddrl.studies.curves import SECONDS, STEPS, UPDATES, points_of, score_curves, unit_of
from ddrl.studies.figures import Curve, Panel
from ddrl.studies.findings import extremes
from ddrl.studies.html import render, sentence
from ddrl.studies.measures import EVALUATION, ONLINE, Measure
from ddrl.studies.points import Group, Outcome, Point, grouped, outcome_of, state_of
from ddrl.studies.provenance import value_text
from ddrl.studies.statistics import ENOUGH, Interval, bootstrap, interquartile_mean, interquartile_mean_rows
from ddrl.studies.tables import Table, table
from ddrl.terminal import printable
from ddrl.wording import counted

PAGE, FIGURE = "compare.html", "compare.png"
NAMED = 3  # settings in the name of a group at most
GROUP, CHANGES = "group", "changes"  # labels: the name of a run's group, and what `changes_of` says of the run
AXES = (STEPS, UPDATES, SECONDS)
UPDATE_RATE = "updates_per_s"


def read_runs(paths: Sequence[str]) -> list[Outcome]:
    """The results and records of the runs so far, each with the name of its group and its changes as labels.

    Raises:
        UsageError: a path is no run or is named twice, or no run has metrics.
    """
    real = [Path(path).resolve() for path in paths]
    if twice := [path for i, path in enumerate(paths) if real[i] in real[:i]]:
        raise UsageError(f"{twice[0]} is named twice; give each run once")
    configs = [rundir.load_config(path) for path in paths]
    changes = [changes_of(path, config) for path, config in zip(paths, configs)]
    outcomes = [
        outcome_of(Point(path, config, {GROUP: name, "game": config.environment.game, CHANGES: changed}), Path(path))
        for path, config, name, changed in zip(paths, configs, group_names(configs, changes), changes)
    ]
    if not any(outcome.records for outcome in outcomes):
        raise UsageError(
            f"{', '.join(paths)}: no records in {rundir.METRICS} yet; compare again when training has begun"
        )
    return outcomes


def changes_of(path: str | Path, config: TrainConfig) -> tuple[str, ...]:
    """Settings of learning that were different in earlier parts of a run: 'learning-rate 0.002, now 0.0001', ...

    Args:
        path: the run directory.
        config: the settings of its last part.
    """
    parts = [earlier for _, earlier in rundir.earlier_configs(Path(path)) if _learned(earlier) != _learned(config)]
    return tuple(
        dict.fromkeys(
            f"{each.name} {_short(each.values[0])}, now {_short(each.values[1])}"
            for earlier in parts
            for each in differences([earlier, config])
            if not _is_free(each.name, [earlier, config])
        )
    )


def group_names(configs: Sequence[TrainConfig], changes: Sequence[tuple[str, ...]]) -> list[str]:
    """The name of each run's group: the settings in which groups differ (the game aside) if they are few, else a title.

    Groups of different games may have one name.

    Args:
        configs: settings of the last part of each run.
        changes: of each run, as `changes_of` gives them.
    """
    keys = [(_learned(config), *changed) for config, changed in zip(configs, changes, strict=True)]
    distinct = list(dict.fromkeys(keys))
    first = [configs[keys.index(key)] for key in distinct]
    found = [each for each in differences(first) if each.name != "game" and not _is_free(each.name, first)]
    games, names = [config.environment.game for config in first], [config.title for config in first]
    if 0 < len(found) <= NAMED:
        names = [", ".join(f"{each.name} {_short(each.values[i])}" for each in found) for i in range(len(first))]
    names = [f"{name}, changed at a resume" if key[1:] else name for name, key in zip(names, distinct)]
    if len(set(zip(names, games))) < len(names):
        names = [f"{name} ({i + 1})" for i, name in enumerate(names)]
    return [names[distinct.index(key)] for key in keys]


def score_of(outcomes: Sequence[Outcome], asked: str) -> str:
    """The score that runs are compared by.

    Args:
        asked: auto, evaluation or online.
    """
    if asked == "auto":
        return EVALUATION if all(complete(measures.evaluations(run)) for run in outcomes) else ONLINE
    return measures.SCORES[asked]


def write(outcomes: Sequence[Outcome], score: str, directory: Path, command: str) -> None:
    """Writes the page and the figure, and prints the tables.

    Raises:
        UsageError: the directory cannot be written.
    """
    place = f"--output {directory}", "choose one that can be written"
    with written(*place):
        directory.mkdir(parents=True, exist_ok=True)  # before the figure is drawn, which takes seconds
    panels = [panel for game in _games(outcomes) for panel in panels_of(game, score)]
    tables = [groups_table(outcomes, score), runs_table(outcomes, score), settings_table(outcomes)]
    tables = [part for part in tables if part.rows]
    played = ", ".join(dict.fromkeys(run.point.config.environment.game for run in outcomes))
    heading = f"{counted(len(outcomes), 'run')} on {played}"
    caption = f"{measures.caption_of(score, outcomes)}; {_spread(outcomes)}"
    png = figures.png(figures.draw(panels, heading, caption, len(AXES)))
    found = _finding(outcomes, score)
    notes = [*comparable.warnings(outcomes), *_changed(outcomes), *_rules(outcomes), *_states(outcomes)]
    machines = [machine for run in outcomes if (machine := provenance.machine_of(run.path))]
    page = render(
        title=heading,
        finding=found,
        summary=notes,
        command=command,
        figures=[{"pictures": figures.pictures(panels), "caption": sentence(caption)}],
        tables=tables,
        protocol=provenance.protocols(outcomes),
        hardware=provenance.hardware(machines) if machines else {},
        versions=provenance.versions(machines),
        notes=[],
        files=[FIGURE],
        date=provenance.date(),
    )
    with written(*place):
        write_whole(directory / FIGURE, png)
        write_whole(directory / PAGE, page.encode())
    print(printable("\n".join([f"{found}\n", *(part.markdown() for part in tables), *notes])))
    print(f"page: {directory / PAGE}\nfigure: {directory / FIGURE}")


def _finding(outcomes: Sequence[Outcome], score: str) -> str:
    """How the groups' final scores compare, game by game."""
    final = _middle(measures.last_score(score))
    what = f"final {'evaluation' if score == EVALUATION else 'online'} score"
    games = _games(outcomes)
    on = [f" on {game[0].point.config.environment.game}" if len(games) > 1 else "" for game in games]
    return " ".join(
        extremes(grouped(runs, GROUP), final, what + where, lambda group: group[GROUP])
        for runs, where in zip(games, on)
    )


def panels_of(outcomes: Sequence[Outcome], score: str) -> list[Panel]:
    """Panels for runs of one game: curves against steps, updates and time; final scores and rates."""
    groups, game = grouped(outcomes, GROUP), outcomes[0].point.config.environment.game
    found = []
    for against in AXES:
        unit, x_label = unit_of(outcomes, against)
        curves = [curve for i, group in enumerate(groups) for curve in _curves(group, i, score, against, unit)]
        found.append(Panel(game, x_label, "raw score per episode", curves))
    named: list[tuple[str, Measure]] = [
        ("final score", measures.last_score(score)),
        ("agent steps/s", measures.rate()),
        ("updates/s", measures.rate(UPDATE_RATE)),
    ]
    return found + [_strip(title, groups, measure)._replace(zero=title.endswith("/s")) for title, measure in named]


def groups_table(outcomes: Sequence[Outcome], score: str) -> Table:
    """A table with a row for each group."""
    return table("Groups", grouped(outcomes, GROUP, "game"), {
        "group": GROUP, "game": "game", "runs": measures.count,
        "final score": _middle(measures.last_score(score)),
        "best score": _middle(measures.best_score(score)),
        "agent steps/s": _middle(measures.rate()), "updates/s": _middle(measures.rate(UPDATE_RATE)),
    })  # fmt: skip


def runs_table(outcomes: Sequence[Outcome], score: str) -> Table:
    """A table with a row for each run."""
    return table("Runs", outcomes, {
        "run": lambda run: run.point.name, "group": lambda run: run.point.labels[GROUP],
        "seed": lambda run: run.point.config.run.seed, "final score": measures.last_score(score),
        "agent steps": measures.largest("agent_steps"), "updates": measures.largest("update"),
        "seconds": measures.given_seconds, "agent steps/s": measures.rate(), "updates/s": measures.rate(UPDATE_RATE),
    })  # fmt: skip


def settings_table(outcomes: Sequence[Outcome]) -> Table:
    """A table with a row for each setting that is not the same in all runs, and a column for each group."""
    groups = grouped(outcomes, GROUP, "game")
    found = differences([run.point.config for group in groups for run in group.runs])
    rows = []
    for each in found:
        values = iter(each.values)
        of_groups = [[next(values) for _ in group.runs] for group in groups]
        rows.append((each.name, *(", ".join(dict.fromkeys(map(_short, of))) for of in of_groups)))
    return Table("Settings that differ", ("setting", *(group[GROUP] for group in groups)), rows)


def _curves(group: Group, style: int, score: str, against: str, unit: float) -> list[Curve]:
    """The curve of the interquartile mean of a group with enough runs, else a curve for each run."""
    drawn = len(points_of(group.runs, score, against))  # without those that have no score
    label = f"{group[GROUP]} ({drawn} runs)" if drawn >= ENOUGH else group[GROUP]
    return score_curves(group.runs, score, against, unit, label, style=style, middle=interquartile_mean_rows)


def _strip(title: str, groups: Sequence[Group], measure: Measure) -> Panel:
    """A panel with every run as a point above the number of its group, and the interquartile mean of enough runs."""
    curves = []
    for place, group in enumerate(groups):
        known = [value for value in measures.values(measure, group.runs) if value is not None]
        at = place + 1
        curves.append(Curve(f"{at}: {group[GROUP]}", [at] * len(known), known, style=place, points=True))
        middle = interquartile_mean(known)
        if middle is not None and middle.bounds:
            low, high = middle.bounds
            curves.append(Curve("", [at], [middle.mean], [low], [high], style=place))
    return Panel(title, GROUP, title, curves)


def _middle(measure: Measure) -> Callable[[Group], Interval | None]:
    """The measure of a group: the interquartile mean of enough runs with its interval, else the value of each run."""

    def of(group: Group) -> Interval | None:
        known = measures.values(measure, group.runs)
        return interquartile_mean(known) or bootstrap(known)

    return of


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else value_text(value)


def _learned(config: TrainConfig) -> str:
    """A text that is equal for two runs of a group: the title, and the settings that affect learning but the seed."""
    return repr((config.title, {name: _kept(name, values) for name, values in by_group(config).items()}))


def _kept(group: str, values: dict[str, Any]) -> dict[str, Any]:
    free = {hyphenated(name) for name in FREE.get(group, ())} | {"seed"}
    return {} if FREE.get(group) == () else {name: value for name, value in values.items() if name not in free}


def _is_free(name: str, configs: Sequence[TrainConfig]) -> bool:
    """Whether a setting has no effect on what is learned; the seed counts as such."""
    return not any(
        name in _kept(group, values) or name == "algorithm"
        for config in configs
        for group, values in by_group(config).items()
    )


def _games(outcomes: Sequence[Outcome]) -> list[Sequence[Outcome]]:
    return [group.runs for group in grouped(outcomes, "game")]


def _spread(outcomes: Sequence[Outcome]) -> str:
    counts = [len(group.runs) for group in grouped(outcomes, GROUP, "game")]
    many = f"interquartile mean and 95% bootstrap interval of groups of {ENOUGH} or more runs"
    few = "each run by itself" + (
        f", as fewer than {ENOUGH} of a group do not show its spread" if max(counts) > 1 else ""
    )
    if min(counts) >= ENOUGH:
        return many
    return few if max(counts) < ENOUGH else f"{many}; the runs of other groups one by one"


def _changed(outcomes: Sequence[Outcome]) -> list[str]:
    """Runs that were resumed with other settings, a line each."""
    return [
        f"careful: {run.point.name} was resumed with other settings, so it is not grouped with runs that kept theirs: "
        f"{'; '.join(changed)}"
        for run in outcomes
        if (changed := run.point.labels[CHANGES])
    ]


def _rules(outcomes: Sequence[Outcome]) -> list[str]:
    """Groups whose runs were evaluated by different rules, a line each."""
    lines = []
    for group in grouped(outcomes, GROUP, "game"):
        evaluated = [run.point.config for run in group.runs if measures.evaluations(run)]
        found = [
            f"{each.name} {' and '.join(dict.fromkeys(map(_short, each.values)))}"
            for each in differences(evaluated)
            if each.name in RULES
        ]
        if found:
            lines.append(f"careful: runs of {group[GROUP]} were evaluated by different rules: {', '.join(found)}")
    return lines


def _states(outcomes: Sequence[Outcome]) -> list[str]:
    """Runs that have not ended well, a line each."""
    states = [(run, state_of(run.path)) for run in outcomes]
    lines = {"running": "is still running", "failed": "failed", "interrupted": "was stopped before its end"}
    return [
        f"careful: {run.point.name} {lines[state.status]}{': ' + state.why if state.why else ''}"
        for run, state in states
        if state.status in lines
    ]
