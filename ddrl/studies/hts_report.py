"""What `ddrl study hts` has found: the tables and figures of Liu et al. 2020, section 5, of ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ddrl.studies.curves import CAPTIONS, EVALUATION, from_intervals, score_curve, spread_text, steps_unit, time_unit
from ddrl.studies.figures import Panel
from ddrl.studies.groups import grouped, having
from ddrl.studies.measures import (
    agent_steps_per_second,
    bootstrap,
    bootstrap_ratio,
    final_metric,
    final_time_metric,
    required_time,
)
from ddrl.studies.points import Outcome
from ddrl.studies.study import Report
from ddrl.studies.tables import Table

if TYPE_CHECKING:
    from ddrl.studies.hts import HtsSettings

HASHES = "parameter_hashes.txt"  # of runs with --deterministic
NOTES = {
    "speed-up": "Liu et al. 2020, figure 4: about 1.5 at small variance of step times, more than 5 at large; "
    "16 CPU cores and 4 GPUs",
    "alpha": "Liu et al. 2020, table 5, football: 445, 1,070, 1,345, 1,349, 1,360 and 1,377 steps/s at alpha 4, 16, 64, "
    "128, 256 and 512",
    "predictors": "Liu et al. 2020, table 4, football: 1,229, 1,362, 1,393 and 1,388 steps/s with 1, 4, 8 and 16 "
    "actors, and equal scores",
    "scores": "Liu et al. 2020, tables 1 and 2, intervals over seeds as there; '-': some seed never reached it",
}


def report(settings: HtsSettings, outcomes: Sequence[Outcome]) -> Report:
    """A table and a panel or more for each part that has finished points."""
    makers = {"speed-up": _speed_up, "alpha": _alpha, "predictors": _predictors, "scores": _scores}
    tables: list[Table] = []
    panels: list[Panel] = []
    notes: list[str] = []
    for part in settings.parts:
        if some := having(outcomes, part=part):
            more_tables, more_panels = makers[part](settings, some)
            tables += more_tables
            panels += more_panels
            notes.append(NOTES[part])
    scores = f"{CAPTIONS[EVALUATION]}; " if having(outcomes, part="scores") else ""
    caption = f"{scores}speed: agent steps/s after {settings.warm_up_seconds:g} s; {spread_text(outcomes)}"
    return Report("HTS-RL and its synchronous algorithms", caption, tables, panels, 2, notes)


Found = tuple[list[Table], list[Panel]]


def _rates(settings: HtsSettings, runs: Sequence[Outcome]) -> list[float | None]:
    return [agent_steps_per_second(run.records, settings.warm_up_seconds) for run in runs]


def _speed_up(settings: HtsSettings, outcomes: Sequence[Outcome]) -> Found:
    """Figure 4, left: the x axis is the variance of a step's time."""
    rows, curves = [], []
    for (algorithm,), some in grouped(outcomes, "algorithm"):
        ratios = []
        for (variation,), runs in grouped(some, "variation"):
            ours, base = (_rates(settings, having(runs, method=name)) for name in ("hts", "synchronous"))
            variance = (variation * settings.step_time_ms) ** 2
            ratio = bootstrap_ratio(ours, base)
            rows.append([algorithm, variation, variance, bootstrap(base), bootstrap(ours), ratio])
            if ratio is not None:
                ratios.append((variance, ratio))
        curves.append(from_intervals(ratios, f"HTS-{algorithm.upper()} / {algorithm.upper()}"))
    rates = ("synchronous, agent steps/s", "HTS, agent steps/s", "speed-up")
    columns = ("algorithm", "deviation / mean", "variance, ms^2", *rates)
    mean = settings.step_time_ms
    steps = f"steps of {mean:g} ms on average" if mean else "steps as long as the environment takes"
    title = f"Speed-up over the synchronous algorithm, {steps}"
    panel = Panel("Speed-up", "variance of the step time (ms²)", "HTS-RL / synchronous", curves, zero=True)
    return [Table(title, columns, rows)], [panel]


def _alpha(settings: HtsSettings, outcomes: Sequence[Outcome]) -> Found:
    """Table 5."""
    columns = ("algorithm", "alpha", "unroll", "agent steps/s")
    rows, panel = _over(settings, outcomes, "alpha", "steps between synchronizations (alpha)")
    groups = grouped(outcomes, "algorithm", "alpha")
    unrolls = {labels: runs[0].point.config.algorithm.learns_from.unroll_length for labels, runs in groups}
    rows = [[algorithm, alpha, unrolls[algorithm, alpha], rate] for algorithm, alpha, rate in rows]
    return [Table("Synchronization interval", columns, rows)], [panel]


def _predictors(settings: HtsSettings, outcomes: Sequence[Outcome]) -> Found:
    """Table 4, and whether runs of one seed had equal parameters in every version that both of them have."""
    rows, panel = _over(settings, outcomes, "predictors", "predictor threads")
    common = {name: compared(some) for (name,), some in grouped(outcomes, "algorithm")}
    rows = [[*row, *common[row[0]]] for row in rows]
    columns = ("algorithm", "predictors", "agent steps/s", "versions compared", "parameters")
    return [Table("Number of predictor threads", columns, rows)], [panel]


def _over(settings: HtsSettings, outcomes: Sequence[Outcome], name: str, x_label: str) -> tuple[list[list[Any]], Panel]:
    rows, curves = [], []
    for (algorithm,), some in grouped(outcomes, "algorithm"):
        rates = [(value, bootstrap(_rates(settings, runs))) for (value,), runs in grouped(some, name)]
        rows += [[algorithm, value, rate] for value, rate in rates]
        curves.append(from_intervals([(v, rate) for v, rate in rates if rate is not None], f"HTS-{algorithm.upper()}"))
    title = {"alpha": "Synchronization interval", "predictors": "Predictor threads"}[name]
    return rows, Panel(title, x_label, "agent steps/s", curves, log_x=True, zero=True)


def compared(outcomes: Sequence[Outcome]) -> tuple[int, str]:
    """Versions whose parameters were compared between runs of equal seeds, and 'equal' or the first that differs."""
    total = 0
    for seed in {outcome.point.config.run.seed for outcome in outcomes}:
        runs = [_hashes(outcome) for outcome in outcomes if outcome.point.config.run.seed == seed]
        versions = sorted(set.intersection(*map(set, runs)))
        different = [version for version in versions if len({run[version] for run in runs}) > 1]
        if different:
            return total + len(versions), f"differ from version {different[0]} on"
        total += len(versions) if len(runs) > 1 else 0
    return total, "equal" if total else "not compared"


def _hashes(outcome: Outcome) -> dict[int, str]:
    try:
        lines = (outcome.path / HASHES).read_text().splitlines()
    except OSError:
        return {}
    pairs = [line.split() for line in lines]
    return {int(pair[0]): pair[1] for pair in pairs if len(pair) == 2}


def _scores(settings: HtsSettings, outcomes: Sequence[Outcome]) -> Found:
    """Tables 1 and 2, and figure 5."""
    rows = []
    for (game,), some in grouped(outcomes, "game"):
        limit = 60.0 * settings.time_limit_minutes or fastest_end(some)
        rows += [_score_row(settings, game, limit, *item) for item in grouped(some, "method")]
    reached = [f"minutes to {score:g}" for score in settings.required_scores]
    columns = ("game", "method", "seeds", "policies", "final metric", "limit, minutes", "final time metric", *reached)
    return [Table("Evaluation scores", columns, rows)], list(_score_panels(outcomes))


def fastest_end(outcomes: Sequence[Outcome]) -> float:
    """Seconds of wall time after which the method that ends first has ended, its slowest seed included."""
    ends = [
        max((r["wall_seconds"] for run in runs for r in run.records if "wall_seconds" in r), default=0.0)
        for _, runs in grouped(outcomes, "method")
    ]
    return min(ends)


def _score_row(
    settings: HtsSettings, game: str, limit: float, names: tuple[Any, ...], runs: Sequence[Outcome]
) -> list[Any]:
    evaluations = [[r for r in run.records if r["kind"] == "evaluation"] for run in runs]
    required = [[required_time(records, score) for records in evaluations] for score in settings.required_scores]
    return [
        game,
        *names,
        len(runs),
        min(len(records) for records in evaluations),
        bootstrap([final_metric(records) for records in evaluations]),
        limit / 60.0,
        bootstrap([final_time_metric(records, limit) for records in evaluations]),
        *(None if None in times else bootstrap([time / 60.0 for time in times]) for times in required),
    ]


def _score_panels(outcomes: Sequence[Outcome]) -> Iterator[Panel]:
    for (game,), some in grouped(outcomes, "game"):
        for against, (unit, label) in (("agent_steps", steps_unit(some)), ("wall_seconds", time_unit(some))):
            curves = [
                score_curve(runs, EVALUATION, against, unit, name.upper()) for (name,), runs in grouped(some, "method")
            ]
            yield Panel(game, label, "evaluation score", curves)
