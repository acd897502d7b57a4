"""`ddrl bench scaling`: updates/s over the number of workers, with workers that sleep instead of computing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tyro

from ddrl import checks
from ddrl.bench.output import emit
from ddrl.bench.ranks import run_ranks

FEWEST_STEPS = 5
START_SECONDS = 3.0  # allowed for each rank to start, on few cores


@dataclasses.dataclass(frozen=True)
class ScalingArguments:
    """Weak scaling of the exchange: every worker's gradient takes as long as before, and there are more of them.

    Workers sleep for the time of a gradient, so that many fit on a small machine. What is printed is updates/s,
    and its ratio to that of the first number of workers.
    """

    workers: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    """Numbers of workers; the others are compared with the first."""
    parameter_servers: int = 4
    """Parameter servers."""
    parameters: int = 332_295
    """Float32 parameters."""
    step_ms: tuple[float, ...] = (500.0, 200.0, 100.0, 50.0, 20.0)
    """Milliseconds that a gradient takes."""
    seconds: float = 6.0
    """Time for each number, at the rate that the gradients alone would allow."""
    json: str = ""
    """Write one JSON object to this file (-: standard output) instead of a table."""

    def __post_init__(self) -> None:
        checks.at_least(self, 1, "parameter_servers")
        checks.above(self, 0.0, "seconds")
        for name in ("workers", "step_ms"):
            if not getattr(self, name) or min(getattr(self, name)) <= 0:
                checks.refuse(self, name, "give one or more numbers above 0")


def main(argv: Sequence[str]) -> int:
    """Measures and prints; returns the exit status."""
    arguments = tyro.cli(ScalingArguments, args=list(argv), prog="ddrl bench scaling")
    values = measure(arguments)
    title = f"updates/s, {arguments.parameter_servers} servers, {arguments.parameters:,} parameters"
    emit(
        title,
        values,
        arguments.json,
        {name: f"relative to {arguments.workers[0]}" for name in values if "effic" in name},
    )
    return 0


def measure(arguments: ScalingArguments) -> dict[str, Any]:
    """For each time of a gradient: updates/s and efficiency, by number of workers."""
    rates = {workers: _rates(arguments, workers) for workers in arguments.workers}
    values: dict[str, Any] = {}
    for index, step_ms in enumerate(arguments.step_ms):
        mine = {str(workers): rates[workers][index] for workers in arguments.workers}
        first = mine[str(arguments.workers[0])]
        values[f"updates_per_s_at_{step_ms:g}_ms"] = {name: round(rate, 3) for name, rate in mine.items()}
        values[f"efficiency_at_{step_ms:g}_ms"] = {name: round(rate / first, 3) for name, rate in mine.items()}
    return values | {"parameter_servers": arguments.parameter_servers, "parameters": arguments.parameters}


def _rates(arguments: ScalingArguments, workers: int) -> list[float]:
    """Updates/s for each time of a gradient."""
    ranks = workers + arguments.parameter_servers
    blocks = [
        (step_ms / 1000, max(FEWEST_STEPS, round(1000 * arguments.seconds / step_ms))) for step_ms in arguments.step_ms
    ]
    options = {
        "workers": workers, "servers": arguments.parameter_servers, "parameters": arguments.parameters,
        "blocks": blocks, "quorum": 0, "deadline_seconds": 0.0, "spread": 0.0, "slow_workers": 0, "slow_factor": 1.0,
    }  # fmt: skip
    limit = 60.0 + START_SECONDS * ranks + 20.0 * sum(seconds * steps for seconds, steps in blocks)
    found = run_ranks(ranks, "ddrl.bench.emulated_ranks", options, limit)
    return [block["steps"] / block["seconds"] for block in found]
