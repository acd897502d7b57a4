"""What `ddrl study simulate` shows: table.md, results.json, figures and report.html."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from ddrl.reporting import machine
from ddrl.simulation import hts
from ddrl.simulation.calibration import Calibration
from ddrl.simulation.predict import COMPUTE, EFFICIENT
from ddrl.simulation.system import Prediction
from ddrl.simulation.times import Gamma
from ddrl.studies import figures, provenance
from ddrl.studies.collect import RESULTS, TABLE, figure_of, publish
from ddrl.studies.figures import Curve, Panel
from ddrl.studies.html import HtmlFigure, HtmlReport
from ddrl.studies.simulate import Predicted, SimulateSettings
from ddrl.studies.simulate_validation import WITHIN, Compared, Validation
from ddrl.studies.tables import Table, table

NAMES = {"all": "waiting for all", "quorum": "quorum", "deadline": "deadline", "asynchronous": "asynchronous"}
ENVIRONMENTS, STATES = 16, 4096  # of claim 1, which does not tell them
ACTOR_RATE, LEARNER_RATE = 100.0, 4000.0  # frames/s, claim 2


class Picture(NamedTuple):
    """One figure.

    Attributes:
        place: of its files in the directory of the study.
    """

    place: str
    heading: str
    caption: str
    panels: Sequence[Panel]


def write(
    directory: Path,
    settings: SimulateSettings,
    predicted: Sequence[Predicted],
    notes: Sequence[str],
    calibration: Calibration | None,
    validation: Validation | None,
    command: str,
) -> None:
    """Writes everything into the directory and prints the tables.

    Raises:
        UsageError: a file cannot be written.
    """
    tables, pictures = [prediction_table(predicted)], [prediction_picture(settings, predicted)]
    notes = [*bend_notes(predicted), *notes]
    if validation:
        tables.append(validation_table(validation))
        notes = [agreement(validation.compared), *notes, *validation.notes]
    if validation and validation.compared:
        pictures.append(validation_picture(validation.compared))
    markdown = "\n".join([*(of_one.markdown() for of_one in tables), *(f"- {note}" for note in notes)]) + "\n"
    print(markdown)
    here = machine.describe()
    page = HtmlReport(
        title="The exchange beyond this machine",
        summary=[_summary(settings, calibration)],
        command=command,
        figures=[_drawn(directory, picture) for picture in [*pictures, *claims()]],
        tables=tables,
        protocol=protocol(settings, predicted, calibration),
        hardware=provenance.hardware([here]),
        versions=provenance.versions([here]),
        notes=notes,
        files=[RESULTS, TABLE],
        date=provenance.date(),
    )
    results = {
        "study": "simulate", "command": command, "ddrl": version("ddrl"), "settings": dataclasses.asdict(settings),
        "tables": [of_one.as_json() for of_one in tables], "notes": notes, "machine": here,
        "predictions": [
            {"policy": size.policy, **size.prediction._asdict(), "limits": dict(size.limits.cost)} for size in predicted
        ],
    }  # fmt: skip
    publish(directory, page, markdown, results)


def _drawn(directory: Path, picture: Picture) -> HtmlFigure:
    place, heading, caption, panels = picture
    (directory / place).mkdir(parents=True, exist_ok=True)
    drawn = figures.draw(panels, heading, caption, 3 if len(panels) == 3 else 2)
    png, _ = figures.save(drawn, directory / place)
    return figure_of(png.read_bytes(), heading, caption, panels)


# predictions ----------------------------------------------------------------------------------------------------------


def prediction_table(predicted: Sequence[Predicted]) -> Table:
    """Every policy and size."""

    def dearest(size: Predicted) -> str:
        share, part = max((cost, name) for name, cost in size.limits.cost.items())
        return f"{part} ({share:.0%})"

    return table("Predictions", predicted, {
        "policy": lambda size: NAMES[size.policy],
        "workers": lambda size: size.workers,
        "servers": lambda size: size.system.servers,
        "updates/s": lambda size: size.prediction.updates_per_s,
        "data-points/s": lambda size: size.prediction.datapoints_per_s,
        "efficiency": lambda size: size.prediction.efficiency,
        "staleness": lambda size: size.prediction.staleness_mean,
        "dropped": lambda size: size.prediction.dropped_share,
        "limit": lambda size: size.limits.name,
        "costs most beside it (share lost)": dearest,
    })  # fmt: skip


def bend_notes(predicted: Sequence[Predicted]) -> Iterator[str]:
    """Where each policy bends, and why."""
    by_size = sorted(predicted, key=lambda size: size.workers)
    for policy in dict.fromkeys(size.policy for size in predicted):
        bent = next((size for size in by_size if size.policy == policy and size.limits.name != COMPUTE), None)
        if bent is None:
            yield f"{NAMES[policy]}: the workers' own time limits; efficiency {EFFICIENT:g} or more throughout"
            continue
        faster = 1 / max(1e-9, 1 - bent.limits.cost[bent.limits.name])
        yield (
            f"{NAMES[policy]}: the first size here below efficiency {EFFICIENT:g} is {bent.workers:,} workers "
            f"({bent.prediction.efficiency:.2f}); {bent.limits.name} costs most: without it, {faster:.3g} times the "
            "data-points/s"
        )
    if late := [size for size in by_size if size.policy == "asynchronous"]:
        yield (
            f"asynchronous updates are many, and old: {late[-1].prediction.staleness_mean:,.0f} versions in the mean "
            f"with {late[-1].workers:,} workers"
        )


def prediction_picture(settings: SimulateSettings, predicted: Sequence[Predicted]) -> Picture:
    """Rates, efficiency, what is lost to what, staleness and dropped gradients, over workers."""
    by_policy = {policy: [size for size in predicted if size.policy == policy] for policy in settings.policies}

    def curves(value: Callable[[Prediction], float]) -> list[Curve]:
        return [
            Curve(NAMES[policy], [size.workers for size in sizes], [value(size.prediction) for size in sizes])
            for policy, sizes in by_policy.items()
        ]

    first = by_policy[settings.policies[0]]
    workers = [size.workers for size in first]
    linear = [size.system.ideal_datapoints_per_s() for size in first]
    ideal = Curve("nobody ever waits", workers, linear, reference=True)
    lost = [Curve(name, workers, [100 * size.limits.cost[name] for size in first]) for name in first[0].limits.cost]
    speed, share = curves(lambda p: p.datapoints_per_s), curves(lambda p: p.efficiency)
    dropped = curves(lambda p: 100 * p.dropped_share)
    parts = f"What each part costs, {NAMES[settings.policies[0]]}"
    panels = [
        Panel("Speed", "workers", "data-points/s", [ideal, *speed], log_x=True, log_y=True),
        Panel("Efficiency", "workers", "share of what workers could do", share, True, zero=True),
        Panel(parts, "workers", "data-points/s lost to it (%)", lost, True, zero=_any(lost)),
        Panel("Gradients that are dropped", "workers", "share (%)", dropped, True, zero=_any(dropped)),
    ]
    caption = (
        f"Simulated, one seed, {settings.updates} updates; cards of {settings.bandwidth_gbit:g} Gbit/s, latency "
        f"{settings.latency_us:g} us, batch per worker constant"
    )
    return Picture(".", "Predicted exchange with parameter servers", caption, panels)


def _any(curves: Sequence[Curve]) -> bool:
    return any(y > 0 and math.isfinite(y) for curve in curves for y in curve.y)


# validation -----------------------------------------------------------------------------------------------------------


def validation_table(validation: Validation) -> Table:
    """Measured beside predicted."""
    return table("Validation", validation.compared, {
        "gradient": lambda size: size.kind, "workers": lambda size: size.workers,
        "measured, updates/s": lambda size: size.measured, "predicted": lambda size: size.predicted,
        "error": lambda size: f"{size.error:+.1%}", "": lambda size: "fitted to" if size.fitted else "predicted",
    })  # fmt: skip


def agreement(compared: Sequence[Compared]) -> str:
    """How many predictions are within 10%."""
    tested = [size for size in compared if not size.fitted]
    if not tested:
        return "validation: nothing was measured"
    good = sum(abs(size.error) <= WITHIN for size in tested)
    worst = max(tested, key=lambda size: abs(size.error))
    return (
        f"validation: {good} of {len(tested)} predictions within {WITHIN:.0%} of what was measured here; the worst: "
        f"{worst.kind}, {worst.workers} workers, {worst.error:+.1%}"
    )


def validation_picture(compared: Sequence[Compared]) -> Picture:
    """Updates/s measured and predicted, and the error."""
    rates, errors = [], []
    for style, kind in enumerate(dict.fromkeys(size.kind for size in compared)):
        sizes = sorted((size for size in compared if size.kind == kind), key=lambda size: size.workers)
        x, tested = [size.workers for size in sizes], [size for size in sizes if not size.fitted]
        rates.append(Curve(kind, x, [size.predicted for size in sizes], style=style))
        rates.append(Curve("", x, [size.measured for size in sizes], style=style, reference=True))
        percents = [100 * size.error for size in tested]
        errors.append(Curve(kind, [size.workers for size in tested], percents, style=style))
    workers = [size.workers for size in compared]
    lines = ((-WITHIN, ""), (WITHIN, "10%"))
    ends = [min(workers), max(workers)]
    bounds = [Curve(label, ends, [100 * share] * 2, reference=True) for share, label in lines]
    label = "predicted / measured - 1 (%)"
    panels = [
        Panel("Lines: predicted, hollow: measured", "workers", "updates/s", rates, log_x=True, log_y=True),
        Panel("Error of predictions", "workers", label, [*errors, *bounds], log_x=True),
    ]
    caption = "one measurement of each, so the spread is unknown"
    return Picture("validation", "Predicted and measured on this machine", caption, panels)


# HTS-RL ---------------------------------------------------------------------------------------------------------------


def claims() -> list[Picture]:
    """Figures of what papers claim."""
    return [hts_picture()]


def hts_picture() -> Picture:
    """Claims 1 and 2 of Liu et al. 2020 (their figure 3)."""

    def pair(x: Sequence[float], formula: Callable[[float], float], simulated: Callable[[float], float]) -> list[Curve]:
        return [
            Curve("formula", x, [formula(at) for at in x]),
            Curve("simulation", x, [simulated(at) for at in x], style=1, reference=True),
        ]

    def expected(alpha: float, rate: float) -> float:
        return hts.expected_run_time(STATES, ENVIRONMENTS, alpha, rate)

    def simulated(alpha: int, rate: float) -> float:
        return hts.simulated_run_time(50 * STATES, ENVIRONMENTS, alpha, rate) / 50

    variances = pair(
        [0.0625, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0],
        lambda variance: expected(4, variance**-0.5),
        lambda variance: simulated(4, variance**-0.5),
    )
    alphas = pair(
        [1, 2, 4, 8, 16, 32, 64, 128], lambda alpha: expected(alpha, 2.0), lambda alpha: simulated(int(alpha), 2.0)
    )
    latencies = pair(
        [4, 8, 12, 16, 20, 24, 28, 32, 36],
        lambda actors: hts.expected_latency(actors, ACTOR_RATE, LEARNER_RATE),
        lambda actors: hts.simulated_latency(int(actors), ACTOR_RATE, LEARNER_RATE),
    )
    always_1 = Curve("HTS-RL: always 1", [4, 36], [1, 1], reference=True)
    x_labels = "variance of a step's time (s^2), alpha = 4", "alpha (steps between synchronizations), beta = 2/s"
    panels = [
        Panel("Claim 1: step times that vary", x_labels[0], "run time (s)", variances, zero=True),
        Panel("Claim 1: rarer synchronization", x_labels[1], "run time (s)", alphas, log_x=True, zero=True),
        Panel("Claim 2: asynchronous systems", "actors", "latency (updates)", [*latencies, always_1], zero=True),
    ]
    caption = (
        f"Liu et al. 2020, figure 3. Claim 1: {STATES:,} states of {ENVIRONMENTS} environments, exponential step times;"
        f" claim 2: {ACTOR_RATE:g} frames/s of an actor, {LEARNER_RATE:,.0f} of the learner. One seed of the simulation"
    )
    return Picture("hts", "HTS-RL: formula and simulation", caption, panels)


# words ----------------------------------------------------------------------------------------------------------------


def protocol(
    settings: SimulateSettings, predicted: Sequence[Predicted], calibration: Calibration | None
) -> Mapping[str, str]:
    """What was simulated."""
    system = predicted[0].system
    deviation = f" (deviation {1000 * system.compute.deviation:.3g} ms)" if isinstance(system.compute, Gamma) else ""
    values: dict[str, Any] = {
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
    }
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
