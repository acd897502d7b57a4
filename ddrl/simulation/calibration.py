"""A system from what a run measured of itself: the records of its metrics.jsonl (docs/metrics.md)."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ddrl.errors import UsageError
from ddrl.simulation.predict import simulate
from ddrl.simulation.system import System, Times

FEWEST_RECORDS = 3
STALLED = 0.5  # of the usual rate: intervals with less do not count
DECISION_ROUNDS = 3
STEPS = 500  # of the simulation that the rest of a step is found with
UNMEASURED = (
    (
        "latency and bandwidth of a network are not in the metrics: what a step took beside the gradients and the "
        "servers' work is kept as the chief's decision, and the network is what the options say"
    ),
    "time that the servers take ahead of a COMMIT is not in time_split: averaging and optimizer are timed apart, here",
)


class Calibration(NamedTuple):
    """A system as one run was, and how it was found.

    Attributes:
        measured_updates_per_s: of that run, the mean of its intervals, without those that stalled.
    """

    system: System
    measured_updates_per_s: float

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Calibration:
        """The inverse of `to_json`."""
        return cls(System.from_json(values["system"]), values["measured_updates_per_s"])

    def to_json(self) -> dict[str, Any]:
        """By name."""
        return {"system": self.system.to_json(), "measured_updates_per_s": self.measured_updates_per_s}


def calibrate(records: Sequence[Mapping[str, Any]], system: System) -> Calibration:
    """A run with parameter servers on the hosts where it was.

    Gradients take what `compute_ms` and `compute_ms_deviation` say, messages what the servers measured. What is missing
    to the run's own rate is the chief's decision.

    Args:
        records: of its metrics.
        system: what the metrics do not tell: sizes, times of a server, how steps close.

    Raises:
        UsageError: too few intervals, no gradients in them, or no updates between them.
    """
    train = [r for r in records if r["kind"] == "train" and r.get("updates_per_s") and "compute_ms_deviation" in r]
    train = train[1:-1]  # the first one has the start in it, the last one the end
    if len(train) < FEWEST_RECORDS:
        raise UsageError(
            f"--calibrate: {len(train)} intervals with the time of a gradient (compute_ms), and {FEWEST_RECORDS} are "
            "needed: name a run with parameter servers that was longer, or had a smaller --log-every-seconds"
        )
    if train[-1]["update"] <= train[0]["update"]:
        raise UsageError("--calibrate: no updates between its first and its last interval: the run stalled")
    train = _typical(train)
    rate, mean, deviation = (
        statistics.mean(r[name] for r in train) for name in ("updates_per_s", "compute_ms", "compute_ms_deviation")
    )
    split = [r.get("time_split", {}).get("parameter_server", {}) for r in train]
    handled = statistics.mean(s.get("receive", 0.0) + s.get("send", 0.0) for s in split) / rate
    if system.asynchronous:  # a gradient is applied where it is received
        handled = max(0.0, handled - system.update_seconds(1))
    system = dataclasses.replace(
        system,
        compute=Times(mean / 1000, deviation / 1000),
        workers_per_host=0,
        servers_per_host=0,
        message_seconds=handled / (2 if system.asynchronous else 2 * system.workers),
    )
    return Calibration(_with_decision(system, (system.workers if system.asynchronous else 1) / rate), rate)


def _with_decision(system: System, cycle: float) -> System:
    """With what is missing to an update's, or asynchronously a worker's, measured time in seconds."""
    for _ in range(DECISION_ROUNDS):  # some of it can pass beside the servers' work
        updates = simulate(system, STEPS).updates_per_s / (system.workers if system.asynchronous else 1)
        decision = max(0.0, system.decision_seconds + cycle - 1 / updates)
        system = dataclasses.replace(system, decision_seconds=decision)
    return system


def _typical(train: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The intervals without those that stalled, which tell nothing of the others."""
    usual = statistics.median(record["updates_per_s"] for record in train)
    return [record for record in train if record["updates_per_s"] >= STALLED * usual]
