"""`ddrl bench stragglers`: waiting for all, a quorum and a deadline, with workers that are slow on purpose."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tyro

from ddrl import checks
from ddrl.bench.output import emit
from ddrl.bench.ranks import run_ranks

TIMEOUT_SECONDS = 300.0


@dataclasses.dataclass(frozen=True)
class StragglerArguments:
    """Compare what closes a synchronous step when workers are not equally fast. Workers sleep instead of computing.

    For each policy: updates/s, gradients/s that were averaged (what the learner gets out of the workers), and the
    share of all computed gradients that came too late and were dropped.
    """

    workers: int = 8
    """Workers."""
    parameter_servers: int = 2
    """Parameter servers."""
    parameters: int = 332_295
    """Float32 parameters."""
    step_ms: float = 100.0
    """Milliseconds that a gradient takes, in the median."""
    spread: float = 0.1
    """Standard deviation of the logarithm of that time, on every worker."""
    slow_workers: int = 1
    """Workers that are slower than the others all the time."""
    slow_factor: float = 3.0
    """How much slower."""
    steps: int = 60
    """Steps for each policy."""
    json: str = ""
    """Write one JSON object to this file (-: standard output) instead of a table."""

    def __post_init__(self) -> None:
        checks.at_least(self, 2, "workers")
        checks.at_least(self, 1, "parameter_servers", "steps")
        checks.at_least(self, 0, "spread", "slow_workers")
        checks.above(self, 0.0, "step_ms", "slow_factor")
        if self.slow_workers >= self.workers:
            checks.refuse(self, "slow_workers", f"at most {self.workers - 1} of the {self.workers} workers")


def main(argv: Sequence[str]) -> int:
    """Measures and prints; returns the exit status."""
    arguments = tyro.cli(StragglerArguments, args=list(argv), prog="ddrl bench stragglers")
    title = (
        f"{arguments.workers} workers, {arguments.slow_workers} of them {arguments.slow_factor:g} times slower, "
        f"gradient {arguments.step_ms:g} ms"
    )
    emit(title, measure(arguments), arguments.json)
    return 0


def policies(arguments: StragglerArguments) -> dict[str, tuple[int, float]]:
    """Name -> (quorum, deadline in seconds): all, all but the slow ones, three quarters, and a deadline."""
    workers, deadline_ms = arguments.workers, arguments.step_ms / 2
    fast, most = max(1, workers - max(1, arguments.slow_workers)), max(1, round(0.75 * workers))
    return {
        "wait for all": (0, 0.0),
        f"quorum {fast}": (fast, 0.0),
        f"quorum {most}": (most, 0.0),
        f"deadline {deadline_ms:g} ms after the first": (0, deadline_ms / 1000),
    }


def measure(arguments: StragglerArguments) -> dict[str, Any]:
    """Policy -> updates/s, gradients/s, share dropped."""
    return {name: _measure(arguments, *policy) for name, policy in policies(arguments).items()}


def _measure(arguments: StragglerArguments, quorum: int, deadline_seconds: float) -> dict[str, float]:
    names = ("workers", "parameters", "spread", "slow_workers", "slow_factor")
    options = {name: getattr(arguments, name) for name in names} | {
        "servers": arguments.parameter_servers,
        "quorum": quorum,
        "deadline_seconds": deadline_seconds,
        "blocks": [(arguments.step_ms / 1000, arguments.steps)],
    }
    ranks = arguments.workers + arguments.parameter_servers
    (block,) = run_ranks(ranks, "ddrl.bench.emulated_ranks", options, TIMEOUT_SECONDS)
    return {
        "updates_per_s": round(block["steps"] / block["seconds"], 3),
        "gradients_per_s": round(block["averaged"] / block["seconds"], 2),
        "share_dropped": round(1.0 - block["averaged"] / block["computed"], 3),
    }
