"""`ddrl bench exchange`: milliseconds per synchronous step, beside bare MPI and TensorFlow's gRPC path."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
from collections.abc import Sequence
from typing import Any

import tyro

from ddrl import checks
from ddrl.bench.output import emit
from ddrl.bench.ranks import json_line, run_ranks
from ddrl.errors import UsageError
from ddrl.programs import python_command

TIMEOUT_SECONDS = 300.0
NOTES = {
    "ms_per_step": "ours: gradients in, quorum, average, Adam, parameters out",
    "allreduce_ms": "the workers among themselves, without servers: average, Adam on each of them",
    "bare_mpi_ms": "as many bytes, written anew each step, our waiter, nothing computed",
    "bare_mpi_spinning_ms": "the same with blocking MPI calls, which spin",
    "bare_mpi_constant_ms": "the same bytes again and again, so that they stay in the cache",
    "tensorflow_grpc_ms": "TensorFlow's runtime: conditional accumulators and token queues",
    **{f"ratio_to_bare_mpi{kind}": "median of the pairs' ratios" for kind in ("", "_spinning", "_constant")},
}


@dataclasses.dataclass(frozen=True)
class ExchangeArguments:
    """Time the synchronous exchange with workers that compute nothing; Adam on the servers is included."""

    workers: int = 4
    """Workers; worker 0 is the chief too."""
    parameter_servers: int = 2
    """Parameter servers."""
    parameters: int = 332_295
    """Float32 parameters (332,295: the BA3C paper's network; 1,693,362: the Nature network at 18 actions)."""
    steps: int = 50
    """Synchronous steps in a block."""
    rounds: int = 12
    """Rounds; each has one block of ours and of every bare loop, so that they are compared in pairs."""
    grpc: bool = True
    """Measure TensorFlow's gRPC accumulators too. Its servers listen on every interface while it lasts."""
    grpc_steps: int = 60
    """Steps of TensorFlow's gRPC path."""
    json: str = ""
    """Write one JSON object to this file (-: standard output) instead of a table."""

    def __post_init__(self) -> None:
        checks.at_least(self, 1, "workers", "parameter_servers", "steps", "rounds", "grpc_steps")
        if self.parameters < self.parameter_servers:
            raise UsageError(
                f"--parameters {self.parameters}: fewer than the {self.parameter_servers} servers; give each one at least one"
            )


def main(argv: Sequence[str]) -> int:
    """Measures and prints; returns the exit status."""
    arguments = tyro.cli(ExchangeArguments, args=list(argv), prog="ddrl bench exchange")
    size = f"{arguments.workers} workers, {arguments.parameter_servers} servers, {arguments.parameters:,} parameters"
    emit(f"one synchronous step: {size}", measure(arguments), arguments.json, NOTES)
    return 0


def measure(arguments: ExchangeArguments) -> dict[str, Any]:
    """All blocks of all rounds, as medians in milliseconds and medians of ratios within a round."""
    options = dataclasses.asdict(arguments) | {"servers": arguments.parameter_servers}
    ranks = arguments.workers + arguments.parameter_servers
    blocks = run_ranks(ranks, "ddrl.bench.exchange_ranks", options, TIMEOUT_SECONDS)
    per_step = {name: [1000 * seconds for seconds in block] for name, block in blocks.items()}
    medians = {name: statistics.median(block) for name, block in per_step.items()}
    ratios = {
        name: statistics.median(a / b for a, b in zip(per_step["ours"], block, strict=True))
        for name, block in per_step.items()
    }
    values = {
        "ms_per_step": medians["ours"],
        "allreduce_ms": medians["allreduce"],
        "bare_mpi_ms": medians["bare_fresh"],
        "bare_mpi_spinning_ms": medians["bare_fresh_spinning"],
        "bare_mpi_constant_ms": medians["bare_constant"],
        "ratio_to_bare_mpi": ratios["bare_fresh"],
        "ratio_to_bare_mpi_spinning": ratios["bare_fresh_spinning"],
        "ratio_to_bare_mpi_constant": ratios["bare_constant"],
    }
    if arguments.grpc:
        values["tensorflow_grpc_ms"] = _grpc(arguments)
        values["ratio_to_tensorflow_grpc"] = values["tensorflow_grpc_ms"] / values["ms_per_step"]
    names = ("workers", "parameter_servers", "parameters", "steps", "rounds")
    return values | {name: getattr(arguments, name) for name in names}


def _grpc(arguments: ExchangeArguments) -> float:
    options = {
        "workers": arguments.workers,
        "servers": arguments.parameter_servers,
        "parameters": arguments.parameters,
        "steps": arguments.grpc_steps,
    }
    command = [*python_command("ddrl.bench.exchange_grpc"), json.dumps(options)]
    environment = dict(os.environ) | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    return json_line(command, environment, TIMEOUT_SECONDS)["ms_per_step"]
