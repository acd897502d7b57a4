"""Measures the real learner of Ape-X, with TensorFlow: first alone on one batch, then fed by replay shards."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from cluster.roles import Assignment
from ddrl.apex.packing import BatchFormat
from ddrl.apex.remote_replay import Drawn
from ddrl.bench.emulated.actors import FORMAT
from ddrl.bench.runs import mean_parts
from ddrl.exchange.transport import Transport
from ddrl.job.layout import JobContext
from ddrl.job.role import run_roles, waiter_with_alarm
from ddrl.learner import as_device_vector
from ddrl.placement.ranks import expose_gpu
from ddrl.reporting.metrics import read_metrics
from ddrl.roles.compute import ComputeRoles
from ddrl.roles.server import ServerRole
from ddrl.roles.worker import WorkerRole
from ddrl.types import Replayed, Snapshot
from ddrl.wording import counted


def run_learner(
    context: JobContext, transport: Transport, assignment: Assignment, alone: float, warm_up: float
) -> dict[str, Any]:
    """Measures the learner alone, then takes part in a job as learner, chief and server until its budget is used up.

    Args:
        context: the job.
        transport: carries the messages.
        assignment: this rank's role and the cores to use.
        alone: seconds of the measurement before the job begins.
        warm_up: seconds after the first update that do not count.
    """
    expose_gpu("")
    factory = ComputeRoles(context, assignment)
    waiter, wake = waiter_with_alarm()
    worker: Any = factory.worker(transport, 0, wake)
    values = stand_alone(worker, np.asarray(factory.network.initial_parameters(0), np.float32), alone)
    server = ServerRole(context, transport, assignment.index, factory.network.size)
    run_roles([factory.chief(transport, False), worker, server], transport, waiter)
    return values | _rates_of_job(read_metrics(context.run_dir), warm_up)


def stand_alone(role: WorkerRole, parameters: np.ndarray, seconds: float) -> dict[str, float]:
    """Measures gradients/s on one fixed batch: with its targets computed each time, and with fixed targets."""
    schedule: Any = role.schedule
    learner = role.trainer.learner
    snapshot = Snapshot(0, 0, as_device_vector(parameters))
    drawn = _batch(role.context.config.batch_size)

    def update() -> None:
        schedule.put(drawn)
        _, batch = schedule.next_batch(lambda: snapshot)
        learner.gradient(snapshot.parameters, batch)

    schedule.put(drawn)
    _, batch = schedule.next_batch(lambda: snapshot)
    rates = _rates([update, lambda: learner.gradient(snapshot.parameters, batch)], seconds)
    schedule.put(drawn)
    schedule.next_batch(lambda: None)  # returns the batch before it
    schedule.used()
    schedule.target = None
    return dict(zip(("updates_per_s_alone", "gradients_per_s_alone"), rates))


def _batch(size: int) -> Drawn:
    format, chance = BatchFormat(FORMAT, size), np.random.default_rng(0)
    buffer = format.buffer()
    batch: Replayed = format.views(buffer)
    for observation in (batch.observation, batch.next_observation):
        observation[...] = chance.integers(256, size=observation.shape, dtype=np.uint8)
    batch.action[...] = chance.integers(FORMAT.action_space.head_size, size=size)
    batch.reward[...], batch.discount[...], batch.weight[...] = chance.random(size), 0.97, 1.0
    batch.behaviour_version[...] = batch.key[...] = 0
    return Drawn(0, batch, buffer)


def _rates(calls: Sequence[Callable[[], object]], seconds: float) -> list[float]:
    """Calls/s of each function, called in turns, from the median time of a call; the first three do not count."""
    times: list[list[float]] = []
    end = time.perf_counter() + seconds
    while len(times) < 6 or time.perf_counter() < end:
        times.append([_seconds(call) for call in calls])
    return [1.0 / statistics.median(column) for column in zip(*times[3:])]


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _rates_of_job(records: list[dict[str, Any]], warm_up: float) -> dict[str, Any]:
    """The rates in the job's records: from the warm-up until actors stop sending, and after that."""
    trained = [record for record in records if record["kind"] == "train" and record["update"] > 0][:-1]
    later = [record for record in trained if record["wall_seconds"] >= trained[0]["wall_seconds"] + warm_up]
    fed_until = max((i for i, record in enumerate(later) if record.get("inserts_per_s")), default=0)
    fed, unfed = later[:fed_until], later[fed_until + 1 :]
    if len(fed) < 2:
        return {"failed": f"{counted(len(fed), 'second')} of learning, too few to measure; give more --seconds"}
    return _fed(fed) | {"updates_per_s_unfed": _updates_per_s(unfed) if len(unfed) > 2 else None}


def _updates_per_s(lines: list[dict[str, Any]]) -> float:
    return (lines[-1]["update"] - lines[0]["update"]) / (lines[-1]["wall_seconds"] - lines[0]["wall_seconds"])


def _fed(later: list[dict[str, Any]]) -> dict[str, Any]:
    """Rates and shares while actors feed the replay."""
    seconds = later[-1]["wall_seconds"] - later[0]["wall_seconds"]
    means = {
        name: statistics.mean(record.get(name, 0.0) for record in later[1:])
        for name in ("inserts_per_s", "samples_per_s")
    }
    cores = mean_parts([record.get("cpu_cores", {}) for record in later[1:]])
    return means | {
        "updates_per_s": _updates_per_s(later),
        "learner_split": mean_parts([record.get("time_split", {}).get("learner", {}) for record in later[1:]]),
        "cpu_cores": {name: share for name, share in cores.items() if not name.startswith("actor")},
        "seconds_measured": seconds,
    }
