"""`ddrl study simulate`: the exchange with more workers than there are here, and what limits it."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ddrl import checks, rundir
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import OptimizerConfig, TrainConfig
from ddrl.errors import UsageError
from ddrl.exchange.optimizers import make_optimizer
from ddrl.simulation.calibration import Calibration, calibrate
from ddrl.simulation.predict import UPDATES, limits, simulate
from ddrl.simulation.system import System, Times
from ddrl.studies import simulate_report
from ddrl.studies.points import Outcome, Point, state_of
from ddrl.studies.settings import StudySettings
from ddrl.studies.study import Labels, Report, Study, product
from ddrl.studies.training import measuring, train_point
from ddrl.types import Machine

FEWEST_SERVERS = 4
EMULATED_WORKERS, EMULATED_MS = (1, 16, 32, 64), (500.0, 200.0, 100.0, 50.0)
REAL_WORKERS, REAL_UPDATES = (1, 2, 4, 8), 200
REAL = (
    "ba3c", "--preset", "smoke", "--game", "CartPole-v1", "--schedule", "synchronized", "--groups", "1", "--simulators",
    "8", "--unroll-length", "5", "--batch-size", "40", "--step-time-mean-ms", "20", "--step-time-cv", "0.3",
    "--parameter-servers", "1", "--max-updates", str(REAL_UPDATES), "--minutes", "0",
)  # fmt: skip
"""Options of the real runs. Their simulators sleep for most of a step, so that eight workers do not wait for two cores,
of which the model knows nothing. CartPole's episodes end at random, so that workers are as independent as the model
assumes."""


@dataclasses.dataclass(frozen=True)
class SimulateSettings(StudySettings):
    """Predict updates/s, data-points/s, and efficiency of the exchange between workers and parameter servers for sizes
    that are not at hand, by a discrete-event model of what ddrl does, and say what limits it. Each worker's batch stays
    the same (weak scaling). The report also has claims 1 and 2 of HTS-RL (Liu et al. 2020)."""

    calibrate: str = ""
    """Run directory whose metrics give the times of gradients, messages, and decisions (none: the options give
    them)."""
    workers: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096)
    """Numbers of workers."""
    policies: tuple[Literal["all", "quorum", "deadline", "asynchronous"], ...] = ("all", "quorum", "asynchronous")
    """What closes a step: all gradients, --quorum-share of them, or a deadline; or else asynchronous updates."""
    parameter_servers: int = 0
    """Parameter servers (0: one per 64 workers, at least 4)."""
    workers_per_host: int = 1
    """Workers that share a network card."""
    servers_per_host: int = 1
    """Parameter servers that share a network card."""
    bandwidth_gbit: float = 10.0
    """Bandwidth of each host's network card in each direction, in Gbit/s (10^9 bits)."""
    latency_us: float = 50.0
    """Microseconds that a message takes from one host to another."""
    quorum_share: float = 0.95
    """Share of the workers whose gradients close a step, with the policy quorum; the rest are backup workers."""
    deadline_ms: float = 20.0
    """With the policy deadline: a step closes this long after its first gradient."""
    slow_workers: int = 0
    """Number of workers that are always slower than the others."""
    slow_factor: float = 3.0
    """How many times slower they are."""
    compute_ms: float = 100.0
    """Without --calibrate: mean milliseconds from having parameters to having a gradient."""
    deviation_ms: float = 10.0
    """Without --calibrate: standard deviation of that time."""
    parameters: int = 332_295
    """Without --calibrate: number of float32 parameters."""
    batch_size: int = 32
    """Without --calibrate: data-points in a gradient."""
    updates: int = UPDATES
    """Updates of each simulation (asynchronous: gradients of each worker)."""
    validate: bool = False
    """Measure here, too, and compare: runs with 1 to 8 workers, and emulated workers. This takes six minutes and all
    cores."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least(self, 1, "workers_per_host", "servers_per_host", "parameters", "batch_size", "slow_factor")
        checks.at_least(self, 10, "updates", why="the first ones fill the queues")
        checks.above(self, 0, "bandwidth_gbit", "compute_ms", "deadline_ms")
        checks.between(self, 0.01, 1.0, "quorum_share")

    def base_system(self) -> System:
        """The system from which those of all sizes are made: that of a run, or that of the options."""
        if self.calibrate:
            return calibrated(Path(self.calibrate)).system
        compute = Times(self.compute_ms / 1000, self.deviation_ms / 1000)
        server = time_server(self.parameters)
        return System(workers=1, compute=compute, parameters=self.parameters, batch=self.batch_size, **server)

    def at_workers(self, base: System, policy: str, workers: int) -> System:
        """The system of one size and policy, on the network of the options."""
        bandwidth = self.bandwidth_gbit * 1e9 / 8
        return dataclasses.replace(
            base,
            workers=workers,
            servers=self.parameter_servers or max(FEWEST_SERVERS, workers // 64),
            worker_bandwidth=bandwidth,
            server_bandwidth=bandwidth,
            latency=self.latency_us / 1e6,
            workers_per_host=self.workers_per_host,
            servers_per_host=self.servers_per_host,
            slow_workers=min(self.slow_workers, workers),
            slow_factor=self.slow_factor,
            quorum=max(1, math.ceil(self.quorum_share * workers)) if policy == "quorum" else 0,
            deadline_seconds=self.deadline_ms / 1000 if policy == "deadline" else 0.0,
            asynchronous=policy == "asynchronous",
        )

    def axes(self, machine: Machine) -> Iterator[Labels]:
        """Yields the predictions, whose labels hold the simulated system, then the measurements beside them."""
        base = self.base_system()
        for labels in product(policy=self.policies, workers=self.workers, seed=self.seeds):
            system = self.at_workers(base, labels["policy"], labels["workers"])
            yield {"part": "predicted", **labels, "system": system.to_json()}
        if self.validate:
            yield from product(part=["emulated"], workers=EMULATED_WORKERS, seed=[self.seed])
            yield from product(part=["real"], workers=REAL_WORKERS, seed=[self.seed])

    def is_repeated(self, labels: Labels) -> bool:
        return bool(labels["part"] == "predicted")

    def config(self, machine: Machine, labels: Labels) -> TrainConfig:
        from ddrl.options.train_options import parse

        if labels["part"] != "real":
            return TrainConfig(algorithm=BA3CConfig()).changed(run={"minutes": 0.0, "max_updates": self.updates})
        config = parse([*REAL, "--workers", str(labels["workers"])], machine).config
        return config.changed(evaluation={"evaluator": False}, run={"video": False})

    def report(self, outcomes: Sequence[Outcome]) -> Report:
        return simulate_report.report(self, outcomes)


# systems --------------------------------------------------------------------------------------------------------------


def calibrated(run: Path) -> Calibration:
    """The model of the system on which a run took place, calibrated on the run's metrics.

    Raises:
        UsageError: no run is there, it had no parameter servers, or it was too short.
    """
    from ddrl.reporting.metrics import read_metrics, without_undone

    exchange = rundir.load_config(run).exchange
    if not exchange.servers:
        raise UsageError(f"--calibrate {run}: the run had no parameter servers; name one that had")
    records = without_undone(read_metrics(run))
    parameters = parameters_of(run)
    batches = [record["effective_batch"] for record in records if record.get("effective_batch")]
    members = 1 if exchange.asynchronous else exchange.quorum or exchange.workers
    system = System(
        workers=exchange.workers,
        servers=exchange.servers,
        parameters=parameters,
        batch=max(1, round(batches[-1] / members)) if batches else 1,
        asynchronous=exchange.asynchronous,
        quorum=exchange.quorum,
        **time_server(parameters, exchange.servers),
    )
    return calibrate(records, system)


def parameters_of(run: Path) -> int:
    """The number of float32 parameters of a run's network, from its newest checkpoint."""
    from ddrl.checkpoint import load_latest

    return int(load_latest(run).parameters.size)


def time_server(parameters: int, servers: int = 1, repeats: int = 5) -> dict[str, Any]:
    """Measures on this machine how many seconds per byte a server needs to average a gradient, and to apply Adam.

    The times are those of one server's slice of the parameters, and the best of `repeats`.
    """
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

    best(9)  # not measured: it touches the memory first
    of_one, of_nine = best(1), best(9)
    average = max(0.0, (of_nine - of_one) / 8)
    apply = max(0.0, of_one - average)
    return {"average_seconds_per_byte": average / (4 * size), "apply_seconds_per_byte": apply / (4 * size)}


# points ---------------------------------------------------------------------------------------------------------------


def predicted(point: Point) -> dict[str, Any]:
    """The prediction for a point, what limits it, and what each part costs."""
    system, seed = System.from_json(point.labels["system"]), point.config.run.seed
    limit = limits(system, seed=seed)
    prediction = simulate(system, point.config.run.max_updates, seed)
    return {**prediction._asdict(), "limit": limit.name, "cost": dict(limit.cost)}


def emulated(point: Point) -> dict[str, Any]:
    """Measures the updates/s of the emulated workers of `ddrl bench scaling`, by the milliseconds of a gradient."""
    from ddrl.bench.emulated.exchange import ScalingArguments, measure_scaling

    workers = point.labels["workers"]
    values = measure_scaling(ScalingArguments(workers=(workers,), step_ms=EMULATED_MS, seconds=1.0))
    return {"rates": {f"{ms:g}": values[f"updates_per_s_at_{ms:g}_ms"][str(workers)] for ms in EMULATED_MS}}


def real(point: Point, path: Path) -> None:
    """Trains, and adds the calibration on the run to its result.json.

    The report cannot make it, since it may be made elsewhere from packed data: calibration needs the times of a server
    on this machine and the size of the checkpoint.
    """
    train_point(point, path)
    result = rundir.read_json(path / rundir.RESULT)
    if result is not None and state_of(path).status == "finished":
        rundir.write_json(path / rundir.RESULT, {**result, "calibration": calibrated(path).to_json()})


RUNS = {"predicted": measuring(predicted), "emulated": measuring(emulated), "real": real}

SIMULATE = Study(
    name="simulate",
    about="the exchange with up to 4,096 workers, simulated, and what limits it",
    defaults=SimulateSettings(),
    quick_changes={"workers": (4, 64), "updates": 10},
    point_name=lambda settings, labels: "-".join(
        [labels["part"], *([labels["policy"]] if "policy" in labels else []), f"{labels['workers']}workers"]
        + [f"seed{labels['seed']}"]
    ),
    cores=lambda settings, labels: int(labels["part"] == "predicted"),
    run=lambda point, path: RUNS[point.labels["part"]](point, path),
)
