"""`ddrl study simulate`: the exchange with more workers than there are here, and what limits it."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import tyro

from ddrl import checks, rundir
from ddrl.errors import UsageError
from ddrl.simulation.calibration import UNMEASURED, Calibration, ServerTimes, at_size, calibrate
from ddrl.simulation.predict import UPDATES, Limits, limits, simulate
from ddrl.simulation.system import Prediction, System
from ddrl.simulation.times import gamma_or_constant
from ddrl.studies.settings import not_empty

Policy = Literal["all", "quorum", "deadline", "asynchronous"]
DEFAULT_DIR = "studies/simulate"
FEWEST_SERVERS = 4


@dataclasses.dataclass(frozen=True)
class SimulateSettings:
    """Predict updates/s, data-points/s and efficiency of the exchange between workers and parameter servers for sizes
    that are not at hand, by a discrete-event model of what ddrl does, and say what limits it. Each worker's batch stays
    the same (weak scaling). With it, claims 1 and 2 of HTS-RL (Liu et al. 2020): formula and simulation."""

    calibrate: str = ""
    """Run directory whose metrics give the times of gradients, messages and decisions (nothing: the options)."""
    workers: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096)
    """Numbers of workers."""
    policies: tuple[Policy, ...] = ("all", "quorum", "asynchronous")
    """What closes a step: all gradients, --quorum-share of them, a deadline; or asynchronous updates."""
    parameter_servers: int = 0
    """Parameter servers (0: one for every 64 workers, at least 4)."""
    workers_per_host: int = 1
    """Workers that share a network card."""
    servers_per_host: int = 1
    """Parameter servers that share a network card."""
    bandwidth_gbit: float = 10.0
    """Of each host's network card and direction, in Gbit/s (10^9 bits)."""
    latency_us: float = 50.0
    """Microseconds of a message from one host to another."""
    quorum_share: float = 0.95
    """Share of the workers whose gradients close a step, with the policy quorum; the rest are backup workers."""
    deadline_ms: float = 20.0
    """With the policy deadline: a step closes this long after its first gradient."""
    slow_workers: int = 0
    """Workers that are slower than the others all the time."""
    slow_factor: float = 3.0
    """How much slower."""
    compute_ms: float = 100.0
    """Without --calibrate: milliseconds from having parameters to having a gradient, in the mean."""
    deviation_ms: float = 10.0
    """Without --calibrate: its standard deviation."""
    parameters: int = 332_295
    """Without --calibrate: float32 parameters."""
    batch_size: int = 32
    """Without --calibrate: data-points in a gradient."""
    updates: int = UPDATES
    """Updates of each simulation (asynchronous: gradients of each worker)."""
    seed: int = 0
    """Of the simulation."""
    validate: bool = False
    """Measure here, too: runs with 1 to 8 workers, and emulated workers; and compare. Six minutes, all cores."""
    dir: str = DEFAULT_DIR
    """Where table, figures and report.html go."""

    def __post_init__(self) -> None:
        not_empty(self, "workers", "policies")
        if min(self.workers) < 1:
            raise UsageError(f"--workers {min(self.workers)}: must be at least 1")
        checks.at_least(self, 1, "workers_per_host", "servers_per_host", "parameters", "batch_size", "slow_factor")
        checks.at_least(self, 10, "updates", why="the first ones fill the queues")
        checks.at_least(self, 0, "parameter_servers", "latency_us", "deviation_ms", "slow_workers", "seed")
        checks.above(self, 0, "bandwidth_gbit", "compute_ms", "deadline_ms")
        checks.between(self, 0.01, 1.0, "quorum_share")


class Predicted(NamedTuple):
    """One size with one policy."""

    policy: str
    system: System
    prediction: Prediction
    limits: Limits

    @property
    def workers(self) -> int:
        """How many."""
        return self.prediction.workers


def main(argv: Sequence[str]) -> int:
    """Simulates, reports; returns the exit status."""
    from ddrl.studies import simulate_report, simulate_validation

    settings = tyro.cli(SimulateSettings, args=list(argv), prog="ddrl study simulate")
    directory = Path(settings.dir)
    base, notes, calibration = base_system(settings)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--dir {directory}: {error.strerror}; choose one that can be written") from error
    validation = simulate_validation.validate(directory) if settings.validate else None
    predicted = predict(settings, base)
    command = shlex.join(["ddrl", "study", "simulate", *argv])
    simulate_report.write(directory, settings, predicted, notes, calibration, validation, command)
    return 0


def base_system(settings: SimulateSettings) -> tuple[System, list[str], Calibration | None]:
    """The system that all sizes begin with, what is to be said of it, and the calibration."""
    if settings.calibrate:
        calibration = calibrated(Path(settings.calibrate))
        return calibration.system, list(UNMEASURED), calibration
    server = time_server(settings.parameters)
    system = System(
        workers=1,
        compute=gamma_or_constant(settings.compute_ms / 1000, settings.deviation_ms / 1000),
        parameters=settings.parameters,
        batch=settings.batch_size,
        average_seconds_per_byte=server.average,
        apply_seconds_per_byte=server.apply,
    )
    note = "not calibrated: compute times are those of the options, messages and decisions cost nothing"
    return system, [note], None


def calibrated(run: Path) -> Calibration:
    """The system that a run was.

    Raises:
        UsageError: no run is there, it had no parameter servers, or it was too short.
    """
    from ddrl.reporting.metrics import read_metrics, without_undone

    config = rundir.load_config(run)
    exchange = config.exchange
    if not exchange.servers:
        raise UsageError(f"--calibrate {run}: the run had no parameter servers; name one that had")
    records = without_undone(read_metrics(run))
    parameters = parameters_of(run)
    per_gradient = [r["effective_batch"] for r in records if r.get("effective_batch")]
    members = 1 if exchange.asynchronous else exchange.quorum or exchange.workers
    batch = max(1, round(per_gradient[-1] / members)) if per_gradient else 1
    return calibrate(
        records,
        workers=exchange.workers,
        servers=exchange.servers,
        parameters=parameters,
        batch=batch,
        server=time_server(parameters, exchange.servers),
        asynchronous=exchange.asynchronous,
        quorum=exchange.quorum,
    )


def parameters_of(run: Path) -> int:
    """Float32 values of the network, as its newest checkpoint has them."""
    from ddrl.checkpoint import load_latest

    return int(load_latest(run).parameters.size)


def time_server(parameters: int, servers: int = 1, repeats: int = 5) -> ServerTimes:
    """Seconds per byte of averaging a gradient and of Adam, on this machine, for one slice; the best of repeats."""
    import time

    import numpy as np

    from ddrl.config import OptimizerConfig
    from ddrl.exchange.optimizers import make_optimizer

    size = max(1, parameters // servers)
    optimizer = make_optimizer(OptimizerConfig(), size)
    vector, gradients = np.zeros(size, np.float32), [np.full(size, 1e-3, np.float32) for _ in range(9)]

    def best(count: int) -> float:
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            optimizer.apply(vector, gradients[:count], 1e-3, 1.0 / count)
            times.append(time.perf_counter() - start)
        return min(times)

    best(9)  # which touches the memory
    of_one, of_nine = best(1), best(9)
    average = max(0.0, (of_nine - of_one) / 8)
    return ServerTimes(average / (4 * size), max(0.0, of_one - average) / (4 * size))


def predict(settings: SimulateSettings, base: System) -> list[Predicted]:
    """Every policy at every size, one line for each."""
    predicted = []
    for policy in settings.policies:
        for workers in settings.workers:
            system = at_workers(settings, base, policy, workers)
            prediction = simulate(system, settings.updates, settings.seed)
            limit = limits(system, seed=settings.seed)
            predicted.append(Predicted(policy, system, prediction, limit))
            print(
                f"{policy:12s} {workers:5d} workers, {system.servers} servers: {prediction.updates_per_s:,.4g} "
                f"updates/s, efficiency {prediction.efficiency:.2f}, limit: {limit.name}",
                flush=True,
            )
    return predicted


def at_workers(settings: SimulateSettings, base: System, policy: str, workers: int) -> System:
    """The system of one size and policy, on the network of the options."""
    bandwidth = settings.bandwidth_gbit * 1e9 / 8
    servers = settings.parameter_servers or max(FEWEST_SERVERS, workers // 64)
    changes: dict[str, Any] = {
        "quorum": max(1, math.ceil(settings.quorum_share * workers)) if policy == "quorum" else 0,
        "deadline_seconds": settings.deadline_ms / 1000 if policy == "deadline" else 0.0,
        "asynchronous": policy == "asynchronous", "max_staleness": 0,
    }  # fmt: skip
    return at_size(
        base,
        workers,
        servers=servers,
        worker_bandwidth=bandwidth,
        server_bandwidth=bandwidth,
        latency=settings.latency_us / 1e6,
        workers_per_host=settings.workers_per_host,
        servers_per_host=settings.servers_per_host,
        slow_workers=min(settings.slow_workers, workers),
        slow_factor=settings.slow_factor,
        **changes,
    )
