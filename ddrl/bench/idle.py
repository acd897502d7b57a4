"""`ddrl bench idle`: processor time of the roles that wait, in a real job until its first gradient comes."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

from ddrl import checks
from ddrl.algorithms import preset
from ddrl.bench.benchmark import Benchmark, BenchmarkArguments
from ddrl.bench.runs import LINE_SECONDS, run_for
from ddrl.errors import UsageError
from ddrl.placement.resources import this_machine

WARM_UP_LINES = 3  # first lines of metrics.jsonl that are left out: imports and tracing
ROLES = ("parameter_server", "evaluator")
LARGE_BATCH = 10**6  # data-points, which Catch takes a minute or more to produce


@dataclasses.dataclass(frozen=True)
class IdleArguments(BenchmarkArguments):
    """Measure what a parameter server and an evaluator cost while they wait: percent of one core."""

    seconds: float = 30.0
    """Length of the job, in seconds."""

    def __post_init__(self) -> None:
        checks.at_least(self, 10, "seconds")


def measure(seconds: float) -> dict[str, Any]:
    """Processor time of each idle role in percent of one core, averaged over the job's lines after the warm-up.

    Those from the first update on are left out: the roles have something to do then.

    Raises:
        UsageError: a role reported nothing in the time, for instance because the machine is busy.
    """
    config = preset("smoke", None, this_machine()).changed(optimizer={"batch_size": LARGE_BATCH})
    lines = [line for line in run_for(config, seconds)[WARM_UP_LINES:-1] if not line.get("update")]
    values = {}
    for role in ROLES:
        shares = [line["cpu_cores"][f"{role}-0"] for line in lines if f"{role}-0" in line.get("cpu_cores", {})]
        if not shares:
            raise UsageError(f"--seconds {seconds:g}: too short for the {role.replace('_', ' ')} to report; give more")
        values[role] = 100 * statistics.mean(shares)
    return values | {"seconds_measured": LINE_SECONDS * len(lines)}


main = Benchmark(
    name="idle",
    arguments=IdleArguments,
    measure=lambda arguments: measure(arguments.seconds),
    title="idle roles",
    notes=dict.fromkeys(ROLES, "percent of a core"),
)
