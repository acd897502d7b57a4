"""The report on a search so far: report.html, the best settings as best.yaml, and every trial in trials.csv."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ddrl.errors import UsageError, written
from ddrl.files import write_whole
from ddrl.options.named_settings import as_yaml, by_name
from ddrl.reporting import machine
from ddrl.reporting.texts import number
from ddrl.studies import provenance
from ddrl.studies.html import render
from ddrl.studies.tables import Table, table
from ddrl.tuning import figures
from ddrl.tuning.figures import Trial
from ddrl.tuning.journal import WHY, open_study, optuna_module
from ddrl.tuning.plan import Plan
from ddrl.tuning.space import settings_of
from ddrl.wording import counted, plural

if TYPE_CHECKING:
    import optuna

PAGE, BEST, TRIALS = "report.html", "best.yaml", "trials.csv"
SHOWN = 20  # best trials in the page
ENOUGH = 20
"""Fewest trials, without those stopped early, for which importance is shown: the best tenth of fewer is one trial."""
LABELS = {"online": "mean of the last 100 training games", "evaluation": "mean score of the last evaluation"}

SLICES = "Every trial by the value of each setting. Hollow: stopped early, shown with its last score"
HISTORY = "Score of each trial, in order, and the best so far"
PARALLEL = "Parallel coordinates: each line is a trial, lighter ones scored higher, dotted ones were stopped early"
IMPORTANCE = (
    "Importance of the settings (PED-ANOVA): how much the values of the best tenth of the trials differ from those of "
    "all trials, apart from those stopped early"
)


def collect(plan: Plan) -> None:
    """Reports the trials that have ended.

    Raises:
        UsageError: none has a score, or the directory cannot be written.
    """
    study = open_study(plan)
    all_trials = study.get_trials(deepcopy=False)
    trials = scored(all_trials)
    whole = [trial for trial in trials if not trial.pruned]
    if not whole:
        why = next((f" ({trial.user_attrs[WHY]})" for trial in all_trials if trial.user_attrs.get(WHY)), "")
        raise UsageError(f"{plan.directory}: no trial has ended with a score{why}")
    best = max(whole, key=lambda trial: trial.score)
    config = settings_of(plan.base, plan.space, best.values)
    what = f"trial {best.number}, {LABELS[plan.score]} {number(best.score)}"
    heading = [f"The best of {counted(len(all_trials), 'trial')} in {plan.directory}: {what}."]
    parts = importance_of(study, plan) if len(whole) >= ENOUGH else {}
    files = {
        BEST: as_yaml(config, plan.algorithm, plan.preset, heading, run_dir=False),
        TRIALS: _every_trial(plan, all_trials).csv(),
        PAGE: _page(plan, all_trials, trials, best, parts),
    }
    with written(f"--dir {plan.directory}", "free space or fix permissions"):
        for name, content in files.items():
            write_whole(plan.directory / name, content.encode())
    print(f"best: {_sentence(plan, best)}")
    quoted = shlex.quote(str(plan.directory / BEST))
    print(f"report: {plan.directory / PAGE}\nthe best settings: ddrl train --config {quoted}")


def scored(trials: Sequence[optuna.trial.FrozenTrial]) -> list[Trial]:
    """The trials that have a score and have ended or were stopped early, in the order of their numbers."""
    states = optuna_module().trial.TrialState
    found = []
    for trial in trials:
        score = trial.value if trial.state == states.COMPLETE else _last_seen(trial)
        if score is not None and trial.state in (states.COMPLETE, states.PRUNED):
            found.append(Trial(trial.number, trial.params, score, trial.state == states.PRUNED))
    return found


def _last_seen(trial: optuna.trial.FrozenTrial) -> float | None:
    """The score that a trial last reported while it ran; None if it reported none."""
    seen = trial.intermediate_values  # by rung
    return seen[max(seen)] if seen else None


def importance_of(study: optuna.Study, plan: Plan) -> dict[str, float]:
    """Setting -> share of the total importance (PED-ANOVA: Watanabe et al. 2023); empty if it cannot be computed.

    Trials that were stopped early do not count.
    """
    optuna = optuna_module()
    if len(plan.space) < 2:
        return {}
    try:
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        parts = optuna.importance.get_param_importances(study, evaluator=evaluator)
    except (ValueError, RuntimeError, ZeroDivisionError):
        return {}
    return {name: float(part) for name, part in parts.items()} if any(parts.values()) else {}


def _page(
    plan: Plan,
    all_trials: Sequence[optuna.trial.FrozenTrial],
    trials: Sequence[Trial],
    best: Trial,
    parts: Mapping[str, float],
) -> str:
    here = machine.describe()
    again = f"ddrl tune --dir {shlex.quote(str(plan.directory))}  # continues; with --collect, makes only this page"
    return render(
        title=f"{plan.algorithm} on {plan.base.environment.game}: a search over {' and '.join(_names(plan))}",
        finding=f"The best of {counted(len(trials), 'trial')} with a score: {_sentence(plan, best)}",
        summary=[_counts(plan, all_trials), _careful(trials)],
        command=f"{plan.command}\n{again}",
        figures=_figures(plan, trials, parts),
        tables=[_best_settings(plan, best), _best_trials(plan, trials)],
        protocol={
            "score": LABELS[plan.score],
            "budget of a trial": _budget(plan),
            "seed of training": str(plan.base.run.seed),
        },
        hardware=provenance.hardware([here]),
        versions=provenance.versions([here]) | {"Optuna": optuna_module().__version__},
        notes=[f"trial {each.number} failed: {each.user_attrs[WHY]}" for each in all_trials if WHY in each.user_attrs],
        files=[BEST, TRIALS],
        date=provenance.date(),
    )


def _figures(plan: Plan, trials: Sequence[Trial], parts: Mapping[str, float]) -> list[dict[str, Any]]:
    space, label = plan.space, f"{plan.score} score"
    slices = figures.slices(trials, space, label)
    shown = [
        _figure(SLICES, *((png, f"score by {dimension.name}") for png, dimension in zip(slices, space))),
        _figure(HISTORY, (figures.history(trials, label), HISTORY)),
        _figure(PARALLEL, (figures.parallel(trials, space, label), PARALLEL)),
    ]
    if parts:
        shown.insert(1, _figure(IMPORTANCE, (figures.importances(parts), IMPORTANCE)))
    return shown


def _names(plan: Plan) -> list[str]:
    return [dimension.name for dimension in plan.space]


def _best_settings(plan: Plan, best: Trial) -> Table:
    usual = by_name(plan.base)
    found = by_name(settings_of(plan.base, plan.space, best.values))
    ranges = dict(zip(_names(plan), (text.split("=", 1)[1] for text in plan.texts), strict=True))
    return table("Best settings", _names(plan), {
        "setting": str, "best": lambda name: _shown(found[name]),
        "preset and options": lambda name: _shown(usual[name]),
        "searched": lambda name: ranges[name],
    })  # fmt: skip


def _sentence(plan: Plan, best: Trial) -> str:
    values = ", ".join(f"{name} {_shown(value)}" for name, value in best.values.items())
    return f"{values}: {LABELS[plan.score]} {number(best.score)} (trial {best.number})."


def _counts(plan: Plan, trials: Sequence[optuna.trial.FrozenTrial]) -> str:
    named = {"COMPLETE": "ended", "PRUNED": "stopped early", "FAIL": "failed", "RUNNING": "running or interrupted"}
    counts = {text: sum(trial.state.name == state for trial in trials) for state, text in named.items()}
    told = ", ".join(f"{count} {text}" for text, count in counts.items() if count)
    return f"{counted(plan.trials, 'trial')}: {told}."


def _careful(trials: Sequence[Trial]) -> str:
    """A warning that the best of many trials was also lucky."""
    scores = [trial.score for trial in trials if not trial.pruned]
    middle = f"The median of the trials that were not stopped early is {number(statistics.median(scores))}. "
    return (
        f"{middle}Each trial is one run with one seed, and the best of many was also lucky. Before you rely on it, "
        f"train with {BEST} and several other seeds, and compare them with `ddrl compare`."
    )


def _best_trials(plan: Plan, trials: Sequence[Trial]) -> Table:
    ranked = sorted(trials, key=lambda trial: (trial.pruned, -trial.score))[:SHOWN]
    title = "Trials" if len(ranked) == len(trials) else f"The best {SHOWN} of {len(trials)} trials"

    def value(name: str) -> Any:
        return lambda trial: _shown(trial.values[name])

    return table(title, ranked, {
        "trial": lambda trial: trial.number, **{dimension.name: value(dimension.name) for dimension in plan.space},
        "score": lambda trial: trial.score, "ended": lambda trial: "early" if trial.pruned else "whole",
    })  # fmt: skip


def _every_trial(plan: Plan, trials: Sequence[optuna.trial.FrozenTrial]) -> Table:
    names = _names(plan)
    rows = [
        (
            trial.number, trial.state.name.lower(), *(trial.params.get(name) for name in names), trial.value,
            _last_seen(trial), trial.duration.total_seconds() if trial.duration else None,
            trial.user_attrs.get(WHY, ""),
        )
        for trial in trials
    ]  # fmt: skip
    return Table("Trials", ("trial", "state", *names, "score", "last score seen", "seconds", "why"), rows)


def _figure(caption: str, *pictures: tuple[bytes, str]) -> dict[str, Any]:
    """A figure of one or more pictures, each a PNG with a description."""
    return {"pictures": [{"png": png, "description": words} for png, words in pictures], "caption": f"{caption}."}


def _budget(plan: Plan) -> str:
    run = plan.base.run
    named = ((run.minutes, "minute"), (run.agent_steps, "agent step"), (run.max_updates, "update"))
    return ", ".join(f"{value:,g} {plural(name, value)}" for value, name in named if value)


def _shown(value: Any) -> str:
    return number(value) if isinstance(value, float) else provenance.value_text(value)
