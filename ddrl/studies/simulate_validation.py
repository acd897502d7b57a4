"""Predicted beside measured: runs of `ddrl train` on CartPole, and the emulated workers of `ddrl bench scaling`."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ddrl.bench.emulated.exchange import ScalingArguments, measure_scaling
from ddrl.errors import UsageError
from ddrl.placement.resources import this_machine
from ddrl.simulation.predict import simulate
from ddrl.simulation.system import System
from ddrl.simulation.times import Constant
from ddrl.types import Machine

REAL_WORKERS = (1, 2, 4, 8)
REAL_UPDATES = 200
SLEEPING = ("--step-time-mean-ms", "20", "--step-time-cv", "0.3", "--simulators", "8", "--unroll-length", "5")
"""Simulators that sleep for most of a step, so that eight workers do not wait for two cores, of which the model knows
nothing. CartPole's episodes end at random, so that workers are as independent as the model takes them to be."""
STEPS = 5000  # of a simulated run, so that drawing its times adds no error of its own
EMULATED = ScalingArguments(workers=(1, 64, 16, 32), step_ms=(500.0, 200.0, 100.0, 50.0), seconds=1.0)
EMULATED_SECONDS = 90.0  # after which no other size is begun
WITHIN = 0.1


class Compared(NamedTuple):
    """One size, measured and predicted.

    Attributes:
        kind: of the measurement.
        fitted: the system was fitted to it, so that it tests nothing.
    """

    kind: str
    workers: int
    measured: float
    predicted: float
    fitted: bool

    @property
    def error(self) -> float:
        """Of the prediction, as a share of what was measured."""
        return self.predicted / self.measured - 1.0


class Validation(NamedTuple):
    """All comparisons, and what went wrong."""

    compared: list[Compared]
    notes: list[str]


def validate(directory: Path) -> Validation:
    """Measures here, in six minutes or so, and compares."""
    compared: list[Compared] = []
    notes = [
        "real runs: calibrated on the one with one worker; their simulators sleep, so that a core is free for each",
        (
            "emulated workers: fitted to the fewest and the most workers at the shortest step (bandwidth of this "
            "machine's memory; what a step costs beside); the other sizes and steps are predicted"
        ),
    ]
    for name, part in (("emulated", lambda: emulated(EMULATED)), ("real", lambda: real(directory))):
        try:
            compared += part()
        except (UsageError, RuntimeError, OSError) as error:
            notes.append(f"{name} runs failed: {' '.join(str(error).split())}")
    return Validation(compared, notes)


def emulated(arguments: ScalingArguments) -> list[Compared]:
    """The emulated workers of `ddrl bench scaling`, all on this machine: as many sizes as there is time for."""
    rates: dict[tuple[int, float], float] = {}
    end = time.monotonic() + EMULATED_SECONDS
    for workers in arguments.workers:
        if len({w for w, _ in rates}) > 1 and time.monotonic() >= end:
            break
        values = measure_scaling(dataclasses.replace(arguments, workers=(workers,)))
        for step in arguments.step_ms:
            rates[workers, step] = values[f"updates_per_s_at_{step:g}_ms"][str(workers)]
    return compare_emulated(rates, arguments.parameters, arguments.parameter_servers)


def compare_emulated(rates: Mapping[tuple[int, float], float], parameters: int, servers: int) -> list[Compared]:
    """Fits bandwidth and decision to two of the measurements, and predicts them all.

    Args:
        rates: (workers, milliseconds of a gradient) -> measured updates/s, of two numbers of workers or more.
    """
    shortest = min(step for _, step in rates)
    ends = {min(workers for workers, _ in rates), max(workers for workers, _ in rates)}
    base = System(workers=1, parameters=parameters, servers=servers, workers_per_host=0, servers_per_host=0)
    fitted = fit(base, shortest / 1000, {w: 1.0 / rates[w, shortest] for w in ends})
    return [
        Compared(
            f"{step:g} ms",
            workers,
            rate,
            emulated_rate(fitted, workers, step / 1000),
            workers in ends and step == shortest,
        )
        for (workers, step), rate in sorted(rates.items(), key=lambda item: (-item[0][1], item[0][0]))
    ]


def emulated_rate(system: System, workers: int, step_seconds: float) -> float:
    """Predicted updates/s of workers whose gradients all take as long."""
    return simulate(dataclasses.replace(system, workers=workers, compute=Constant(step_seconds)), 20).updates_per_s


def fit(base: System, step_seconds: float, measured: Mapping[int, float]) -> System:
    """The bandwidth of the one host, and what a step costs beside, so that both measured sizes come out.

    Args:
        measured: workers -> seconds of an update, of two sizes.
    """
    few, many = sorted(measured)

    def with_bandwidth(bandwidth: float) -> System:
        system = dataclasses.replace(base, worker_bandwidth=bandwidth, server_bandwidth=bandwidth)
        rest = measured[few] - 1.0 / emulated_rate(system, few, step_seconds)
        return dataclasses.replace(system, decision_seconds=max(0.0, rest))

    low, high = 1e6, 1e13
    for _ in range(50):
        middle = math.sqrt(low * high)
        slower = 1.0 / emulated_rate(with_bandwidth(middle), many, step_seconds) > measured[many]
        low, high = (middle, high) if slower else (low, middle)
    return with_bandwidth(high)


def real(directory: Path) -> list[Compared]:
    """Runs of BA3C on CartPole with real workers and one parameter server."""
    from ddrl.studies.simulate import calibrated

    calibrations = {}
    for workers in REAL_WORKERS:
        path = directory / "validation" / f"cartpole-{workers}workers"
        train(path, workers, this_machine())
        calibrations[workers] = calibrated(path)
    first = calibrations[REAL_WORKERS[0]].system
    return [
        Compared(
            "CartPole",
            workers,
            calibration.measured_updates_per_s,
            simulate(dataclasses.replace(first, workers=workers), STEPS).updates_per_s,
            workers == REAL_WORKERS[0],
        )
        for workers, calibration in calibrations.items()
    ]


def train(path: Path, workers: int, machine: Machine) -> None:
    """A short run, unless it has finished already."""
    from ddrl.options import parse
    from ddrl.studies.points import Point, state_of
    from ddrl.studies.settings import changed
    from ddrl.studies.training import train_point

    if state_of(path).status == "finished":
        return
    words = ["ba3c", "--preset", "smoke", "--game", "CartPole-v1", "--schedule", "synchronized", "--groups", "1"]
    size = ["--batch-size", "40", "--workers", str(workers), "--parameter-servers", "1"]
    parsed = parse([*words, *SLEEPING, *size, "--max-updates", str(REAL_UPDATES), "--minutes", "0"], machine).config
    config = changed(parsed, evaluation={"evaluator": False}, run={"video": False})
    train_point(Point(path.name, config, {"workers": workers}), path)
