"""What `ddrl study simulate` shows: predictions, how they compare with measurements, and the claims of HTS-RL."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ddrl.reporting.texts import number
from ddrl.simulation import hts
from ddrl.simulation.calibration import UNMEASURED, Calibration
from ddrl.simulation.predict import COMPUTE, EFFICIENT, simulate
from ddrl.simulation.system import System, Times
from ddrl.studies.curves import over, spread_text
from ddrl.studies.figures import Curve, Panel, through
from ddrl.studies.measures import Measure, mean
from ddrl.studies.points import Group, Outcome, grouped, having
from ddrl.studies.study import Report
from ddrl.studies.tables import Table, table

NAMES = {"all": "waiting for all", "quorum": "quorum", "deadline": "deadline", "asynchronous": "asynchronous"}
WAYS = {"all": "steps that wait for all", "quorum": "a quorum", "deadline": "a deadline"}
WAYS |= {"asynchronous": "asynchronous updates"}
WITHIN = 0.1
EMULATED_SERVERS = 4  # as `ddrl bench scaling` has them by default
STEPS = 5000  # of a simulated run that is compared: so many that its random times hardly add to the error
VALIDATION_NOTES = (
    "real runs: calibrated on the run with one worker; their simulators sleep, so that each has a free core",
    (
        "emulated workers: fitted to the fewest and the most workers at the shortest step (bandwidth of this machine's "
        "memory; what a step costs beside); the other sizes and steps are predicted"
    ),
)
ENVIRONMENTS, STATES = 16, 4096  # for claim 1, which does not state them
ACTOR_RATE, LEARNER_RATE = 100.0, 4000.0  # frames/s, claim 2
HTS_NOTE = (
    f"claims: Liu et al. 2020, figure 3. Claim 1: {STATES:,} states of {ENVIRONMENTS} environments, exponential step "
    f"times; claim 2: {ACTOR_RATE:g} frames/s of an actor, {LEARNER_RATE:,.0f} of the learner. Formulas"
)


def report(settings: Any, outcomes: Sequence[Outcome]) -> Report:
    """The report: rates, efficiency, costs of each part and dropped gradients by workers, beside what was measured."""
    sizes = grouped(having(outcomes, part="predicted"), "policy", "workers")
    measured = compared(outcomes)
    agreed = [agreement(measured), *VALIDATION_NOTES] if settings.validate else []
    source = "calibrated on a run's own metrics" if settings.calibrate else "compute times are those of the options"
    return Report(
        heading="The exchange beyond this machine",
        caption=f"simulated, not measured, {settings.updates} updates; {source}; cards of {settings.bandwidth_gbit:g} "
        f"Gbit/s, latency {settings.latency_us:g} us, batch per worker constant; {spread_text(outcomes)}",
        finding=finding(sizes),
        tables=[prediction_table(sizes), *([validation_table(measured)] if measured else [])],
        panels=[*prediction_panels(sizes), *(validation_panels(measured) if measured else []), *hts_panels()],
        columns=3,
        notes=[*agreed, *bend_notes(sizes), *system_notes(settings, sizes), HTS_NOTE],
    )


# predictions ----------------------------------------------------------------------------------------------------------


def told(name: str) -> Measure:
    """The measure that is the number of this name in a prediction."""
    return lambda run: run.result[name]


def prediction_table(sizes: Sequence[Group]) -> Table:
    """A table with a row for every policy and number of workers."""
    columns = {"updates/s": "updates_per_s", "data-points/s": "datapoints_per_s", "efficiency": "efficiency"}
    columns |= {"staleness": "staleness_mean", "dropped": "dropped_share"}
    return table("Predictions", sizes, {
        "policy": lambda size: NAMES[size["policy"]], "workers": "workers",
        "servers": lambda size: system(size).servers,
        **{heading: mean(told(name)) for heading, name in columns.items()},
        "limit": lambda size: size.runs[0].result["limit"],
        "costs most beside it (share lost)": lambda size: "{1} ({0:.0%})".format(*dearest(size)),
    })  # fmt: skip


def finding(sizes: Sequence[Group]) -> str:
    """A sentence with the efficiency of each policy at the largest number of workers."""
    most = max((size["workers"] for size in sizes), default=0)
    shares = [
        f"{mean_efficiency.mean:.0%} with {WAYS[size['policy']]}"
        for size in sizes
        if size["workers"] == most and (mean_efficiency := mean(told("efficiency"))(size))
    ]
    if not shares:
        return "Nothing was predicted."
    return f"With {most:,} workers, the simulated efficiency is {_listed(shares)}."


def _listed(texts: Sequence[str]) -> str:
    *some, last = texts
    return f"{', '.join(some)} and {last}" if some else last


def system(size: Group) -> System:
    """The system that was simulated for a policy and number of workers."""
    return System.from_json(size.runs[0].point.labels["system"])


def dearest(size: Group) -> tuple[float, str]:
    """The largest share of the data-points/s that is lost to one part of the exchange, and the name of that part."""
    return max((share, part) for part, share in size.runs[0].result["cost"].items())


def bend_notes(sizes: Sequence[Group]) -> Iterator[str]:
    """Yields for each policy the number of workers at which its curve bends away from linear, and why."""
    for policy in dict.fromkeys(size["policy"] for size in sizes):
        ascending = sorted((size for size in sizes if size["policy"] == policy), key=lambda size: size["workers"])
        bent = next((size for size in ascending if size.runs[0].result["limit"] != COMPUTE), None)
        if bent is None:
            yield f"{NAMES[policy]}: the workers' own time limits; efficiency {EFFICIENT:g} or more throughout"
        else:
            result, share = bent.runs[0].result, dearest(bent)[0]
            yield (
                f"{NAMES[policy]}: the first size here below efficiency {EFFICIENT:g} is {bent['workers']:,} workers "
                f"({result['efficiency']:.2f}); {result['limit']} costs most: without it, "
                f"{1 / max(1e-9, 1 - share):.3g} times the data-points/s"
            )
        if policy == "asynchronous":
            staleness = ascending[-1].runs[0].result["staleness_mean"]
            most = f"{staleness:,.0f} versions in the mean with {ascending[-1]['workers']:,} workers"
            yield f"asynchronous updates are many, and old: {most}"


def system_notes(settings: Any, sizes: Sequence[Group]) -> Iterator[str]:
    """Notes on what was simulated, and on what of it was not measured."""
    for one in map(system, sizes[:1]):
        values = {**vars(one), "compute": one.compute.mean}
        told = ", ".join(f"{name.replace('_', ' ')} {number(value)}" for name, value in values.items() if value)
        yield f"the first system, in seconds and bytes: {told}, deviation of compute {one.compute.deviation:.3g}"
    if settings.calibrate:
        yield f"calibrated on {settings.calibrate}"
        yield from UNMEASURED
    else:
        yield "not calibrated: compute times are those of the options, messages and decisions cost nothing"


def prediction_panels(sizes: Sequence[Group]) -> Iterator[Panel]:
    """Panels of speed, efficiency, what each part costs with the first policy, and dropped gradients."""
    policies = {policy: [size for size in sizes if size["policy"] == policy] for policy in NAMES}

    def curves(name: str, unit: float = 1.0) -> list[Curve]:
        measure = mean(lambda run: unit * run.result[name])
        return [over(of_one, "workers", measure, NAMES[policy]) for policy, of_one in policies.items() if of_one]

    first = [size for size in sizes if size["policy"] == sizes[0]["policy"]]
    ideal = [(size["workers"], system(size).ideal_datapoints_per_s()) for size in first]
    linear = through(ideal, "nobody ever waits", reference=True)
    lost = [
        over(first, "workers", mean(lambda run: 100 * run.result["cost"][part]), part)
        for part in (first[0].runs[0].result["cost"] if first else ())
    ]
    cost = "data-points/s lost to it (%)"
    yield Panel("Speed", "workers", "data-points/s", [linear, *curves("datapoints_per_s")], log_x=True, log_y=True)
    yield Panel("Efficiency", "workers", "share of what workers could do", curves("efficiency"), log_x=True, zero=True)
    if first:
        yield Panel(f"What each part costs, {NAMES[first[0]['policy']]}", "workers", cost, lost, log_x=True, zero=True)
    yield Panel("Gradients that are dropped", "workers", "share (%)", curves("dropped_share", 100), True, zero=True)


# validation -----------------------------------------------------------------------------------------------------------


class Compared(NamedTuple):
    """Measured and predicted updates/s of one number of workers.

    Attributes:
        kind: what kind of measurement it is: CartPole, or the time of an emulated gradient.
        fitted: the model was fitted to this measurement, which therefore tests nothing.
    """

    kind: str
    workers: int
    measured: float
    predicted: float
    fitted: bool

    @property
    def error(self) -> float:
        """The error of the prediction, as a share of what was measured."""
        return self.predicted / self.measured - 1.0


def compared(outcomes: Sequence[Outcome]) -> list[Compared]:
    """Predictions beside measurements, for the emulated workers and for the real ones."""
    rates = {
        (run.point.labels["workers"], float(ms)): rate
        for run in having(outcomes, part="emulated")
        for ms, rate in run.result["rates"].items()
    }
    pairs = compare_emulated(rates) if len({workers for workers, _ in rates}) > 1 else []
    runs = {
        run.point.labels["workers"]: Calibration.from_json(run.result["calibration"])
        for run in having(outcomes, part="real")
        if "calibration" in run.result  # it is missing if the study was stopped just after the run
    }
    for workers, calibration in runs.items() if 1 in runs else ():
        alike = dataclasses.replace(runs[1].system, workers=workers)
        rate = calibration.measured_updates_per_s
        pairs.append(Compared("CartPole", workers, rate, simulate(alike, STEPS).updates_per_s, workers == 1))
    return pairs


def compare_emulated(rates: Mapping[tuple[int, float], float]) -> list[Compared]:
    """Fits the bandwidth and the time of a decision to two of the measurements, and predicts all of them.

    Args:
        rates: (workers, milliseconds of a gradient) -> measured updates/s, for two or more numbers of workers.
    """
    shortest = min(ms for _, ms in rates)
    ends = {min(workers for workers, _ in rates), max(workers for workers, _ in rates)}
    base = System(workers=1, servers=EMULATED_SERVERS, workers_per_host=0, servers_per_host=0)
    fitted = fit(base, shortest / 1000, {w: 1.0 / rates[w, shortest] for w in ends})
    return [
        Compared(f"{ms:g} ms", n, rate, emulated_rate(fitted, n, ms / 1000), n in ends and ms == shortest)
        for (n, ms), rate in sorted(rates.items(), key=lambda item: (-item[0][1], item[0][0]))
    ]


def emulated_rate(one: System, workers: int, step_seconds: float) -> float:
    """Predicted updates/s of workers whose gradients all take `step_seconds`."""
    return simulate(dataclasses.replace(one, workers=workers, compute=Times(step_seconds)), 20).updates_per_s


def fit(base: System, step_seconds: float, measured: Mapping[int, float]) -> System:
    """The system with the bandwidth of the one host, and the further cost of a step, that reproduce both measurements.

    Args:
        measured: workers -> seconds of an update, for two numbers of workers.
    """
    few, many = sorted(measured)

    def with_bandwidth(bandwidth: float) -> System:
        one = dataclasses.replace(base, worker_bandwidth=bandwidth, server_bandwidth=bandwidth)
        rest = measured[few] - 1.0 / emulated_rate(one, few, step_seconds)
        return dataclasses.replace(one, decision_seconds=max(0.0, rest))

    low, high = 1e6, 1e13
    for _ in range(50):
        middle = math.sqrt(low * high)
        slower = 1.0 / emulated_rate(with_bandwidth(middle), many, step_seconds) > measured[many]
        low, high = (middle, high) if slower else (low, middle)
    return with_bandwidth(high)


def validation_table(measured: Sequence[Compared]) -> Table:
    """A table of measurements beside predictions."""
    return table("Validation", measured, {
        "gradient": lambda size: size.kind, "workers": lambda size: size.workers,
        "measured, updates/s": lambda size: size.measured, "predicted": lambda size: size.predicted,
        "error": lambda size: signed_percent(size.error), "": lambda size: "fitted to" if size.fitted else "predicted",
    })  # fmt: skip


def signed_percent(share: float) -> str:
    """`share` in percent with its sign; what rounds to zero has a plus, never '-0.0%'."""
    return f"{round(share, 3) + 0.0:+.1%}"


def agreement(measured: Sequence[Compared]) -> str:
    """How many predictions are within 10%."""
    tested = [size for size in measured if not size.fitted]
    if not tested:
        return "validation: nothing was measured"
    good = sum(abs(size.error) <= WITHIN for size in tested)
    worst = max(tested, key=lambda size: abs(size.error))
    return (
        f"validation: {good} of {len(tested)} predictions within {WITHIN:.0%} of what was measured here; the worst: "
        f"{worst.kind}, {worst.workers} workers, {signed_percent(worst.error)}"
    )


def validation_panels(measured: Sequence[Compared]) -> Iterator[Panel]:
    """Panels of measured and predicted updates/s, and of the error."""
    rates, errors = [], []
    for style, kind in enumerate(dict.fromkeys(size.kind for size in measured)):
        sizes = [size for size in measured if size.kind == kind]
        rates.append(through([(size.workers, size.predicted) for size in sizes], kind, style=style))
        rates.append(through([(size.workers, size.measured) for size in sizes], "", style=style, reference=True))
        tested = [(size.workers, 100 * size.error) for size in sizes if not size.fitted]
        errors.append(through(tested, kind, style=style))
    ends = [min(size.workers for size in measured), max(size.workers for size in measured)]
    bounds = [Curve(label, ends, [100 * at] * 2, reference=True) for at, label in ((-WITHIN, ""), (WITHIN, "10%"))]
    yield Panel("Lines: predicted, hollow: measured", "workers", "updates/s", rates, log_x=True, log_y=True)
    yield Panel("Error of predictions", "workers", "predicted / measured - 1 (%)", [*errors, *bounds], log_x=True)


# HTS-RL ---------------------------------------------------------------------------------------------------------------


def hts_panels() -> list[Panel]:
    """Panels of claims 1 and 2 of Liu et al. 2020 (their figure 3)."""
    variances, alphas, actors = (0.0625, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0), [2**k for k in range(8)], range(4, 37)
    of_variance = [(v, hts.expected_run_time(STATES, ENVIRONMENTS, 4, v**-0.5)) for v in variances]
    of_alpha = [(alpha, hts.expected_run_time(STATES, ENVIRONMENTS, alpha, 2.0)) for alpha in alphas]
    latencies = [(n, hts.expected_latency(n, ACTOR_RATE, LEARNER_RATE)) for n in actors]
    constant = Curve("HTS-RL: always 1", [4, 36], [1, 1], reference=True)
    vary, interval = "variance of a step's time (s²), alpha = 4", "steps between synchronizations (alpha), beta = 2/s"
    late = [through(latencies, "GA3C, IMPALA"), constant]
    return [
        Panel("Claim 1: step times that vary", vary, "run time (s)", [through(of_variance, "")], zero=True),
        Panel("Claim 1: rarer synchronization", interval, "run time (s)", [through(of_alpha, "")], True, zero=True),
        Panel("Claim 2: asynchronous systems", "actors", "latency (updates)", late, zero=True),
    ]
