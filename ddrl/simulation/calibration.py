"""A system from what a run measured of itself: the records of its metrics.jsonl (README, Metrics)."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ddrl.errors import UsageError
from ddrl.simulation.system import FLOAT_BYTES, System
from ddrl.simulation.times import gamma_or_constant

FEWEST_RECORDS = 3
NORMAL_MEDIAN = 0.6745  # of the absolute value of a normal variable, in deviations
UNMEASURED = (
    "metrics.jsonl has means over intervals, no single gradients: the deviation of the compute time is estimated from "
    "how the means of successive intervals differ, as if gradients were independent",
    "latency and bandwidth of a network are not in the metrics: what the exchange took beside the servers' work is "
    "kept as the chief's decision, and the network is what the options say",
    "time that the servers take ahead of a COMMIT is not in time_split: averaging and optimizer are timed apart, here",
)


class ServerTimes(NamedTuple):
    """Seconds per byte of a server: of each gradient that is averaged, and of the optimizer."""

    average: float
    apply: float


class Calibration(NamedTuple):
    """A system as one run was, and how it was found.

    Attributes:
        measured_updates_per_s: of that run, the median of its intervals.
        samples: seconds from having parameters to having a gradient, the mean of each interval and worker; rough, since
            ranks report at moments of their own.
    """

    system: System
    measured_updates_per_s: float
    samples: tuple[float, ...]


def calibrate(
    records: Sequence[Mapping[str, Any]], *, workers: int, servers: int, parameters: int, batch: int,
    server: ServerTimes, asynchronous: bool = False, quorum: int = 0,
) -> Calibration:  # fmt: skip
    """The system that a run with parameter servers was, on the hosts where it ran.

    What it is given, beside the run's settings: `server`, which the metrics do not tell. Where the time of the whole
    exchange is concerned, the slowest worker counts, which waits for nobody.

    Raises:
        UsageError: too few intervals, or no exchange in them.
    """
    train = [r for r in records if r["kind"] == "train" and r.get("updates_per_s") and r.get("exchange_ms_by_worker")]
    train = train[1:-1]  # the first one has the start in it, the last one the end
    if len(train) < FEWEST_RECORDS:
        raise UsageError(
            f"--calibrate: {len(train)} intervals with an exchange, and {FEWEST_RECORDS} are needed: name a run with "
            "parameter servers that went on for longer, or with a smaller --log-every-seconds"
        )
    per_worker = workers if asynchronous else 1
    updates, seconds = (train[-1][name] - train[0][name] for name in ("update", "wall_seconds"))
    if updates <= 0 or seconds <= 0:
        raise UsageError("--calibrate: no updates between its first and its last interval: the run stalled")
    rate = statistics.median(r["updates_per_s"] for r in train)
    exchanges = _exchange_seconds(train)
    mean = per_worker / rate - statistics.mean(exchanges.values())
    if mean <= 0:
        raise UsageError("--calibrate: the exchange took longer than an update: the run was still starting, or stalled")
    times = _compute_times(train, per_worker)
    deviation = min(mean, _deviation(times, updates / (len(train) - 1) / per_worker))
    compute = gamma_or_constant(mean, deviation)
    split = [r.get("time_split", {}).get("parameter_server", {}) for r in train]
    handled = statistics.mean(s.get("receive", 0.0) + s.get("send", 0.0) for s in split) / rate
    updated = (workers if not asynchronous else 1) * server.average + server.apply
    work = FLOAT_BYTES * parameters / servers * updated
    if asynchronous:  # a gradient is applied where it is received
        handled = max(0.0, handled - work)
    exchange = min(exchanges.values())
    message = handled / (2 * workers // per_worker)
    # Waiting for all, the update is computed while the chief decides.
    beside = work if asynchronous or quorum else 0.0
    rest = max(0.0, exchange - beside - 2 * (servers + workers // per_worker) * message)
    system = System(
        workers=workers, compute=compute, parameters=parameters, batch=batch, servers=servers, workers_per_host=0,
        servers_per_host=0, message_seconds=message, average_seconds_per_byte=server.average,
        apply_seconds_per_byte=server.apply, decision_seconds=rest, asynchronous=asynchronous, quorum=quorum,
    )  # fmt: skip
    return Calibration(system, rate, tuple(sample for values in times for sample in values))


def _exchange_seconds(train: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of each worker, the median of the intervals: one that stalled tells nothing of the others."""
    values: dict[str, list[float]] = {}
    for record in train:
        for name, milliseconds in record["exchange_ms_by_worker"].items():
            values.setdefault(name, []).append(milliseconds / 1000)
    return {name: statistics.median(mine) for name, mine in values.items()}


def _compute_times(train: Sequence[Mapping[str, Any]], per_worker: int) -> list[list[float]]:
    """Of each worker, the mean of each interval in seconds: an update's time without the exchange."""
    names = sorted({name for record in train for name in record["exchange_ms_by_worker"]})
    return [
        [per_worker / r["updates_per_s"] - r["exchange_ms_by_worker"][name] / 1000
         for r in train if name in r["exchange_ms_by_worker"]]
        for name in names
    ]  # fmt: skip


def _deviation(times: Sequence[Sequence[float]], gradients: float) -> float:
    """Of one gradient, from interval means of so many: successive differences, which no drift enters (von Neumann
    1941), by their median, which few stalls do not change.
    """
    differences = [abs(b - a) for values in times for a, b in zip(values, values[1:])]
    return math.sqrt(max(1.0, gradients) / 2) * statistics.median(differences) / NORMAL_MEDIAN if differences else 0.0


def at_size(system: System, workers: int, **changes: Any) -> System:
    """The system with so many workers and other changes; a quorum stays the same share of the workers."""
    quorum = round(system.quorum * workers / system.workers) if system.quorum else 0
    return dataclasses.replace(system, workers=workers, **({"quorum": quorum} | changes))
