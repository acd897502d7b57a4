"""`ddrl bench exchange`, `scaling` and `stragglers`: a real exchange and real servers, with workers that only sleep."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
from typing import Any

from ddrl import checks
from ddrl.bench.benchmark import Benchmark, BenchmarkArguments, some_positive
from ddrl.bench.ranks import by_number, json_line, run_ranks
from ddrl.programs import python_command

RANK = "ddrl.bench.emulated.rank"
TIMEOUT_SECONDS = 300.0


@dataclasses.dataclass(frozen=True)
class ExchangeArguments(BenchmarkArguments):
    """Options of them all."""

    parameter_servers: int = 2
    """Parameter servers."""
    parameters: int = 332_295
    """Float32 parameters (332,295: the BA3C paper's network; 1,693,362: the Nature network at 18 actions)."""

    def __post_init__(self) -> None:
        checks.at_least(self, 1, "parameter_servers")
        if self.parameters < self.parameter_servers:
            why = f"must be at least --parameter-servers {self.parameter_servers}, so that each server has one"
            checks.refuse(self, "parameters", why)


# exchange -------------------------------------------------------------------------------------------------------------

BARE = {"": "bare_fresh", "_spinning": "bare_fresh_spinning", "_constant": "bare_constant"}
"""Suffix of a value's name in the result -> name of the bare MPI loop in the measurement."""


@dataclasses.dataclass(frozen=True)
class StepArguments(ExchangeArguments):
    """Time the synchronous exchange with workers that compute nothing; Adam on the servers is included."""

    workers: int = 4
    """Workers; worker 0 is the chief, too."""
    steps: int = 50
    """Synchronous steps in a block."""
    rounds: int = 12
    """Rounds; each has one block of ours and of every bare loop, so that they are compared in pairs."""
    grpc: bool = False
    """Measure TensorFlow's gRPC accumulators, too. Its servers listen on every interface meanwhile, and obey whoever
    connects: use it only on a machine that others cannot reach."""
    grpc_steps: int = 60
    """Steps of TensorFlow's gRPC path."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least(self, 1, "workers", "steps", "rounds", "grpc_steps")


def measure_exchange(arguments: StepArguments) -> dict[str, Any]:
    """Measures all rounds; returns medians of milliseconds per step, and medians of the ratios within each round."""
    ranks = arguments.workers + arguments.parameter_servers
    blocks = run_ranks(ranks, RANK, {"kind": "exchange", **arguments.settings()}, TIMEOUT_SECONDS)
    medians = {name: 1000 * statistics.median(block) for name, block in blocks.items()}
    values = {"ms_per_step": medians["ours"], "allreduce_ms": medians["allreduce"]}
    values |= {f"bare_mpi{suffix}_ms": medians[name] for suffix, name in BARE.items()}
    for suffix, name in BARE.items():
        ratios = [ours / bare for ours, bare in zip(blocks["ours"], blocks[name], strict=True)]
        values[f"ratio_to_bare_mpi{suffix}"] = statistics.median(ratios)
    if arguments.grpc:
        values["tensorflow_grpc_ms"] = _grpc(arguments)
        values["ratio_to_tensorflow_grpc"] = values["tensorflow_grpc_ms"] / values["ms_per_step"]
    return values | arguments.settings("grpc", "grpc_steps")


def _grpc(arguments: StepArguments) -> float:
    options = arguments.settings() | {"servers": arguments.parameter_servers, "steps": arguments.grpc_steps}
    command = [*python_command("ddrl.bench.emulated.tensorflow_grpc"), json.dumps(options)]
    return json_line(command, dict(os.environ) | {"TF_CPP_MIN_LOG_LEVEL": "3"}, TIMEOUT_SECONDS)["ms_per_step"]


exchange = Benchmark(
    name="exchange",
    arguments=StepArguments,
    measure=measure_exchange,
    title="one synchronous step of {options.parameters:,} parameters",
    notes={
        "ms_per_step": "ours: gradients in, quorum, average, Adam, parameters out",
        "allreduce_ms": "the workers among themselves, without servers: average, Adam on each of them",
        "bare_mpi_ms": "as many bytes, written anew each step, our waiter, nothing computed",
        "bare_mpi_spinning_ms": "the same with blocking MPI calls, which spin",
        "bare_mpi_constant_ms": "the same bytes again and again, so that they stay in the cache",
        "tensorflow_grpc_ms": "TensorFlow's runtime: conditional accumulators and token queues",
        **{f"ratio_to_bare_mpi{suffix}": "median of the pairs' ratios" for suffix in BARE},
    },
)


# scaling and stragglers: blocks of steps with sleeping workers --------------------------------------------------------

FEWEST_STEPS = 5


def _blocks(
    arguments: ExchangeArguments, workers: int, blocks: list[tuple[float, int]], timeout_seconds: float, **quorum: float
) -> list[dict[str, Any]]:
    """Runs blocks of steps in one job, and returns the measurements of each block (see `rank.blocks`).

    Args:
        arguments: the benchmark's options.
        workers: number of workers.
        blocks: (seconds that a gradient takes, steps) of each block.
        timeout_seconds: the longest that the job may take.
        quorum: settings of the exchange that say when a step closes.
    """
    uneven = {"spread": 0.0, "slow_workers": 0, "slow_factor": 1.0} | arguments.settings()
    exchange = {"workers": workers, "parameter_servers": arguments.parameter_servers, **quorum}
    options = uneven | {"kind": "blocks", "exchange": exchange, "blocks": blocks}
    return run_ranks(workers + arguments.parameter_servers, RANK, options, timeout_seconds)


@dataclasses.dataclass(frozen=True)
class ScalingArguments(ExchangeArguments):
    """Weak scaling of the exchange: every worker's gradient takes as long as before, and there are more of them.

    Workers sleep for the time of a gradient, so that many fit on a small machine. What is printed is updates/s,
    and its ratio to that of the first number of workers.
    """

    workers: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    """Numbers of workers; the others are compared with the first."""
    parameter_servers: int = 4
    step_ms: tuple[float, ...] = (500.0, 200.0, 100.0, 50.0, 20.0)
    """Milliseconds that a gradient takes."""
    seconds: float = 6.0
    """Time for each number, at the rate that the gradients alone would allow."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.above(self, 0.0, "seconds")
        some_positive(self, "workers", "step_ms")


def measure_scaling(arguments: ScalingArguments) -> dict[str, Any]:
    """Measures updates/s and efficiency by number of workers, for each time that a gradient takes."""
    rates = {workers: _updates_per_s(arguments, workers) for workers in arguments.workers}
    values: dict[str, Any] = {}
    for index, step_ms in enumerate(arguments.step_ms):
        by_workers = {workers: rates[workers][index] for workers in arguments.workers}
        first = by_workers[arguments.workers[0]]
        values[f"updates_per_s_at_{step_ms:g}_ms"] = by_number(by_workers, 3)
        values[f"efficiency_at_{step_ms:g}_ms"] = by_number({n: rate / first for n, rate in by_workers.items()}, 3)
    return values | arguments.settings("workers", "step_ms", "seconds")


def _updates_per_s(arguments: ScalingArguments, workers: int) -> list[float]:
    """Updates/s with a number of workers, for each time that a gradient takes."""
    each = [step_ms / 1000 for step_ms in arguments.step_ms]
    blocks = [(seconds, max(FEWEST_STEPS, round(arguments.seconds / seconds))) for seconds in each]
    gradients = sum(seconds * steps for seconds, steps in blocks)
    limit = 60.0 + 3.0 * (workers + arguments.parameter_servers) + 20.0 * gradients
    return [block["steps"] / block["seconds"] for block in _blocks(arguments, workers, blocks, limit)]


scaling = Benchmark(
    name="scaling",
    arguments=ScalingArguments,
    measure=measure_scaling,
    title="updates/s by number of workers; efficiency relative to {options.workers[0]}",
)


@dataclasses.dataclass(frozen=True)
class StragglerArguments(ExchangeArguments):
    """Compare what closes a synchronous step when workers are not equally fast. Workers sleep instead of computing.

    For each policy: updates/s, gradients/s that were averaged (what the learner gets out of the workers), and the
    share of all computed gradients that came too late and were dropped.
    """

    workers: int = 8
    """Workers."""
    step_ms: float = 100.0
    """Median milliseconds that a gradient takes."""
    spread: float = 0.1
    """Standard deviation of the logarithm of that time, on every worker."""
    slow_workers: int = 1
    """Number of workers that are always slower than the others."""
    slow_factor: float = 3.0
    """How many times slower they are."""
    steps: int = 60
    """Steps for each policy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least(self, 2, "workers")
        checks.at_least(self, 1, "steps")
        checks.at_least(self, 0, "spread", "slow_workers")
        checks.above(self, 0.0, "step_ms", "slow_factor")
        if self.slow_workers >= self.workers:
            checks.refuse(self, "slow_workers", f"must be below --workers {self.workers}")

    def policies(self) -> dict[str, dict[str, float]]:
        """The policies that close a step, by name, as settings of the exchange.

        They wait for all workers, for all but the slow ones, for three quarters of them, or until a deadline.
        """
        workers, deadline_ms = self.workers, self.step_ms / 2
        fast, most = max(1, workers - max(1, self.slow_workers)), max(1, round(0.75 * workers))
        return {
            "wait for all": {},
            f"quorum {fast}": {"quorum": fast},
            f"quorum {most}": {"quorum": most},
            f"deadline {deadline_ms:g} ms after the first": {"quorum_deadline_seconds": deadline_ms / 1000},
        }


def measure_stragglers(arguments: StragglerArguments) -> dict[str, Any]:
    """Measures updates/s, gradients/s and the share of dropped gradients of each policy."""
    values = {}
    blocks = [(arguments.step_ms / 1000, arguments.steps)]
    for name, quorum in arguments.policies().items():
        (block,) = _blocks(arguments, arguments.workers, blocks, TIMEOUT_SECONDS, **quorum)
        values[name] = {
            "updates_per_s": round(block["steps"] / block["seconds"], 3),
            "gradients_per_s": round(block["averaged"] / block["seconds"], 2),
            "share_dropped": round(1.0 - block["averaged"] / block["computed"], 3),
        }
    return values


stragglers = Benchmark(
    name="stragglers",
    arguments=StragglerArguments,
    measure=measure_stragglers,
    title="stragglers: {options.slow_workers} of {options.workers}, {options.slow_factor:g} times slower",
)
