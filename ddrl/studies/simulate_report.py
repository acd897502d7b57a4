"""What `ddrl study simulate` shows: table.md, results.json, figures and report.html."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ddrl import rundir
from ddrl.errors import UsageError
from ddrl.reporting import machine
from ddrl.reporting.html import HtmlFigure, HtmlReport, render
from ddrl.simulation import hts
from ddrl.simulation.calibration import Calibration
from ddrl.simulation.predict import EFFICIENT
from ddrl.simulation.times import Gamma
from ddrl.studies import figures
from ddrl.studies.figures import Curve, Panel
from ddrl.studies.page import figure_of, hardware, html_table, now, versions
from ddrl.studies.simulate import Found, SimulateSettings, bends
from ddrl.studies.simulate_validation import WITHIN, Compared, Validation
from ddrl.studies.tables import Table

REPORT, TABLE, RESULTS = "report.html", "table.md", "results.json"
NAMES = {"all": "waiting for all", "quorum": "quorum", "deadline": "deadline", "asynchronous": "asynchronous"}
ENVIRONMENTS, STATES = 16, 4096  # of claim 1, which does not tell them
ACTOR_RATE, LEARNER_RATE = 100.0, 4000.0  # frames/s, claim 2


def write(
    directory: Path,
    settings: SimulateSettings,
    found: Sequence[Found],
    notes: Sequence[str],
    calibration: Calibration | None,
    validation: Validation | None,
    command: str,
) -> None:
    """Writes everything into the directory and prints the tables.

    Raises:
        UsageError: a file cannot be written.
    """
    tables = [prediction_table(found), *([validation_table(validation)] if validation else [])]
    notes = [*bend_notes(found), *notes, *(validation.notes if validation else [])]
    if validation:
        notes.insert(0, agreement(validation.compared))
    markdown = "\n".join([*(table.markdown() for table in tables), *(f"- {note}" for note in notes)]) + "\n"
    print(markdown)
    here = machine.describe()
    pictures = [(".", *prediction_figure(settings, found))]
    if validation and validation.compared:
        pictures.append(("validation", *validation_figure(validation.compared)))
    pictures += claims()
    drawn = [_draw(directory / name, panels, title, caption) for name, title, caption, panels in pictures]
    page = HtmlReport(
        "The exchange beyond this machine",
        [_summary(settings, calibration)],
        command,
        drawn,
        list(map(html_table, tables)),
        protocol(settings, found, calibration),
        hardware([here]),
        versions([here]),
        notes,
        [RESULTS, TABLE],
        now(),
    )
    results = {
        "study": "simulate", "command": command, "ddrl": version("ddrl"), "settings": dataclasses.asdict(settings),
        "tables": [table.as_json() for table in tables], "notes": notes, "machine": here,
        "predictions": [{"policy": f.policy, **f.prediction._asdict(), "limits": dict(f.limits.cost)} for f in found],
    }  # fmt: skip
    try:
        (directory / TABLE).write_text(f"# {page.title}\n\n{markdown}")
        rundir.write_json(directory / RESULTS, results)
        (directory / REPORT).write_text(render(page))
    except OSError as error:
        raise UsageError(f"--dir {directory}: {error.strerror}; free space or mend permissions") from error
    print(f"report: {directory / REPORT}")


def prediction_table(found: Sequence[Found]) -> Table:
    """Every policy and size."""
    rows = []
    for policy, system, p, limit in found:
        share, part = max((cost, name) for name, cost in limit.cost.items())
        rows.append(
            [
                NAMES[policy],
                p.workers,
                system.servers,
                p.updates_per_s,
                p.datapoints_per_s,
                p.efficiency,
                p.staleness_mean,
                p.dropped_share,
                limit.name,
                f"{part} ({share:.0%})",
            ]
        )
    columns = ("policy", "workers", "servers", "updates/s", "data-points/s", "efficiency", "staleness", "dropped",
               "limit", "costs most beside it (share lost)")  # fmt: skip
    return Table("Predictions", columns, rows)


def bend_notes(found: Sequence[Found]) -> list[str]:
    """Where each policy bends, and why."""
    notes, where = [], bends(found)
    for policy in dict.fromkeys(one.policy for one in found):
        if policy not in where:
            notes.append(f"{NAMES[policy]}: the workers' own time limits; efficiency {EFFICIENT:g} or more throughout")
            continue
        _, _, prediction, limit = where[policy]
        faster = 1 / max(1e-9, 1 - limit.cost[limit.name])
        notes.append(
            f"{NAMES[policy]}: the first size here below efficiency {EFFICIENT:g} is {prediction.workers:,} workers "
            f"({prediction.efficiency:.2f}); {limit.name} costs most: without it, {faster:.3g} times the data-points/s"
        )
    late = [one for one in found if one.policy == "asynchronous"]
    if late:
        most = max(late, key=lambda one: one.prediction.workers).prediction
        notes.append(
            f"asynchronous updates are many, and old: {most.staleness_mean:,.0f} versions in the mean with "
            f"{most.workers:,} workers"
        )
    return notes


def prediction_figure(settings: SimulateSettings, found: Sequence[Found]) -> tuple[str, str, list[Panel]]:
    """Rates, efficiency, what is lost to what, staleness and dropped gradients, over workers."""
    policies = list(dict.fromkeys(one.policy for one in found))
    by_policy = {policy: [one for one in found if one.policy == policy] for policy in policies}

    def curves(value: Any) -> list[Curve]:
        return [
            Curve(NAMES[policy], [one.prediction.workers for one in mine], [value(one.prediction) for one in mine])
            for policy, mine in by_policy.items()
        ]

    first = by_policy[policies[0]]
    linear = [one.system.ideal_datapoints_per_s() for one in first]
    sizes = [one.prediction.workers for one in first]
    ideal = Curve("nobody ever waits", sizes, linear, reference=True)
    lost = [Curve(name, sizes, [100 * one.limits.cost[name] for one in first]) for name in first[0].limits.cost]
    speed, share = curves(lambda p: p.datapoints_per_s), curves(lambda p: p.efficiency)
    dropped = curves(lambda p: 100 * p.dropped_share)
    panels = [
        Panel("Speed", "workers", "data-points/s", [ideal, *speed], log_x=True, log_y=True),
        Panel("Efficiency", "workers", "share of what workers could do", share, True, zero=True),
        Panel(f"What each part costs, {NAMES[policies[0]]}", "workers", "data-points/s lost to it (%)", lost, True,
              zero=_any(lost)),
        Panel("Gradients that are dropped", "workers", "share (%)", dropped, True, zero=_any(dropped)),
    ]  # fmt: skip
    caption = (
        f"Simulated, one seed, {settings.updates} updates; cards of {settings.bandwidth_gbit:g} Gbit/s, latency "
        f"{settings.latency_us:g} us, batch per worker constant"
    )
    return "Predicted exchange with parameter servers", caption, panels


def validation_table(validation: Validation) -> Table:
    """Measured beside predicted."""
    rows = [
        [c.kind, c.workers, c.measured, c.predicted, f"{c.error:+.1%}", "fitted to" if c.fitted else "predicted"]
        for c in validation.compared
    ]
    return Table("Validation", ("gradient", "workers", "measured, updates/s", "predicted", "error", ""), rows)


def agreement(compared: Sequence[Compared]) -> str:
    """How many predictions are within 10%."""
    tested = [one for one in compared if not one.fitted]
    if not tested:
        return "validation: nothing was measured"
    good = sum(abs(one.error) <= WITHIN for one in tested)
    worst = max(tested, key=lambda one: abs(one.error))
    return (
        f"validation: {good} of {len(tested)} predictions within {WITHIN:.0%} of what was measured here; the worst: "
        f"{worst.kind}, {worst.workers} workers, {worst.error:+.1%}"
    )


def validation_figure(compared: Sequence[Compared]) -> tuple[str, str, list[Panel]]:
    """Updates/s measured and predicted, and the error."""
    kinds = list(dict.fromkeys(one.kind for one in compared))
    rates, errors = [], []
    for style, kind in enumerate(kinds):
        mine = sorted((one for one in compared if one.kind == kind), key=lambda one: one.workers)
        x = [one.workers for one in mine]
        rates.append(Curve(kind, x, [one.predicted for one in mine], style=style))
        rates.append(Curve("", x, [one.measured for one in mine], style=style, reference=True))
        tested = [one for one in mine if not one.fitted]
        errors.append(Curve(kind, [c.workers for c in tested], [100 * c.error for c in tested], style=style))
    ends = [min(one.workers for one in compared), max(one.workers for one in compared)]
    lines = ((-WITHIN, ""), (WITHIN, "10%"))
    bounds = [Curve(label, ends, [100 * share] * 2, reference=True) for share, label in lines]
    title = "Lines: predicted, hollow: measured"
    panels = [
        Panel(title, "workers", "updates/s", rates, log_x=True, log_y=True),
        Panel("Error of predictions", "workers", "predicted / measured - 1 (%)", [*errors, *bounds], log_x=True),
    ]
    return "Predicted and measured on this machine", "one measurement of each, so the spread is unknown", panels


def claims() -> list[tuple[str, str, str, list[Panel]]]:
    """Figures of what papers claim, and the directories that they go to."""
    return [("hts", *hts_figure())]


def hts_figure() -> tuple[str, str, list[Panel]]:
    """Claims 1 and 2 of Liu et al. 2020 (their figure 3)."""
    variances = [0.0625, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0]
    rates = [variance**-0.5 for variance in variances]
    alphas = [1, 2, 4, 8, 16, 32, 64, 128]
    actors = [4, 8, 12, 16, 20, 24, 28, 32, 36]
    run_time = lambda function, alpha, rate: function(STATES, ENVIRONMENTS, alpha, rate)  # noqa: E731
    many = lambda *sizes: hts.simulated_run_time(50 * STATES, *sizes) / 50  # noqa: E731

    def pair(x: Sequence[float], formula: Sequence[float], simulated: Sequence[float]) -> list[Curve]:
        return [Curve("formula", x, formula), Curve("simulation", x, simulated, style=1, reference=True)]

    claim_1a = pair(
        variances,
        [run_time(hts.expected_run_time, 4, rate) for rate in rates],
        [many(ENVIRONMENTS, 4, rate) for rate in rates],
    )
    claim_1b = pair(
        alphas,
        [run_time(hts.expected_run_time, alpha, 2.0) for alpha in alphas],
        [many(ENVIRONMENTS, alpha, 2.0) for alpha in alphas],
    )
    claim_2 = pair(
        actors,
        [hts.expected_latency(n, ACTOR_RATE, LEARNER_RATE) for n in actors],
        [hts.simulated_latency(n, ACTOR_RATE, LEARNER_RATE) for n in actors],
    )
    panels = [
        Panel("Claim 1: step times that vary", "variance of a step's time (s^2), alpha = 4", "run time (s)", claim_1a,
              zero=True),
        Panel("Claim 1: rarer synchronization", "alpha (steps between synchronizations), beta = 2/s", "run time (s)",
              claim_1b, log_x=True, zero=True),
        Panel("Claim 2: asynchronous systems", "actors", "latency (updates)",
              [*claim_2, Curve("HTS-RL: always 1", [actors[0], actors[-1]], [1, 1], reference=True)], zero=True),
    ]  # fmt: skip
    caption = (
        f"Liu et al. 2020, figure 3. Claim 1: {STATES:,} states of {ENVIRONMENTS} environments, exponential step times;"
        f" claim 2: {ACTOR_RATE:g} frames/s of an actor, {LEARNER_RATE:,.0f} of the learner. One seed of the simulation"
    )
    return "HTS-RL: formula and simulation", caption, panels


def protocol(settings: SimulateSettings, found: Sequence[Found], calibration: Calibration | None) -> Mapping[str, str]:
    """What was simulated."""
    system = found[0].system
    deviation = f" (deviation {1000 * system.compute.deviation:.3g} ms)" if isinstance(system.compute, Gamma) else ""
    values = {
        "time of a gradient": f"{1000 * system.compute.mean:.4g} ms{deviation}",
        "message": f"{4e-6 * system.parameters:.3g} MB over all servers, each way",
        "network card": f"{settings.bandwidth_gbit:g} Gbit/s each way, for {settings.workers_per_host} worker(s) or "
                        f"{settings.servers_per_host} server(s)",
        "latency": f"{settings.latency_us:g} us",
        "processor time of a message": f"{1e6 * system.message_seconds:.3g} us",
        "server": f"{1e9 * system.average_seconds_per_byte:.3g} s/GB to average a gradient, "
                  f"{1e9 * system.apply_seconds_per_byte:.3g} s/GB to apply",
        "decision and what else a step takes": f"{1000 * system.decision_seconds:.3g} ms",
        "quorum": f"{settings.quorum_share:.0%} of the workers",
        "batch of a worker": str(system.batch),
    }  # fmt: skip
    if calibration:
        values["calibrated on"] = (
            f"a run with {calibration.system.workers} workers and {calibration.system.servers} servers, "
            f"{calibration.measured_updates_per_s:.4g} updates/s"
        )
    return values


def _summary(settings: SimulateSettings, calibration: Calibration | None) -> str:
    source = "calibrated on a run's own metrics" if calibration else "with compute times that were given, not measured"
    return (
        f"A discrete-event model of the synchronous and asynchronous exchange with parameter servers, {source}, for "
        f"{min(settings.workers):,} to {max(settings.workers):,} workers. These are predictions, not measurements."
    )


def _draw(directory: Path, panels: Sequence[Panel], heading: str, caption: str) -> HtmlFigure:
    directory.mkdir(parents=True, exist_ok=True)
    png, _ = figures.save(figures.draw(panels, heading, caption, 3 if len(panels) == 3 else 2), directory)
    return figure_of(png.read_bytes(), heading, caption, panels)


def _any(curves: Sequence[Curve]) -> bool:
    return any(y > 0 and math.isfinite(y) for curve in curves for y in curve.y)
