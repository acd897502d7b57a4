"""`ddrl bench profile ALGORITHM`: where the time of an update goes, by thread and part."""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddrl import checks
from ddrl.bench.benchmark import Benchmark, TakesTrainOptions
from ddrl.bench.profile.report import Rank, report, trace
from ddrl.bench.runs import train_records
from ddrl.bench.train import config_of
from ddrl.config import TrainConfig
from ddrl.errors import UsageError, written
from ddrl.programs import python_command
from ddrl.rundir import read_json

LINE_SECONDS = 1.0  # between lines of metrics.jsonl; the first line with an update begins the warm-up
MOST_SECONDS = 600  # all spans are kept in memory


@dataclasses.dataclass(frozen=True)
class ProfileArguments(TakesTrainOptions):
    """Train in a directory that is removed afterward, and tell where the time of an update goes.

        ddrl bench profile a2c --simulators 16 --seconds 15 --trace a2c.json

    An update is one gradient. All other options are those of `ddrl train` (the preset is laptop unless one is given; no
    evaluator unless --evaluator is given)."""

    seconds: float = 15.0
    """Seconds that are measured."""
    warm_up: float = 3.0
    """Seconds from the first update to the measurement, in which caches and queues fill."""
    trace: str = ""
    """Write all calls to this file, for https://ui.perfetto.dev (Open trace file) or chrome://tracing. A process is a
    rank."""
    overhead_rounds: int = 0
    """Measure what the profile itself costs, with this many pairs of runs, one without it and one with it."""

    def __post_init__(self) -> None:
        checks.above(self, 0, "seconds")
        checks.between(self, 0, MOST_SECONDS, "seconds", "warm_up", why="all calls are kept in memory")
        checks.at_least(self, 0, "overhead_rounds")


DETAILS = """Tables: `parts` has a line for each part of each thread, in the order in which an update comes to them, in
milliseconds per update. wall: from the beginning of its calls to their end, less the parts within them. processor:
what this thread used of that; the rest it waited: for a core, for Python's lock, for another thread, for threads of
TensorFlow or of the emulators that work for it. all threads: what all threads of the process used meanwhile; cores
busy: the same over wall time. Where the trainer waits and few cores are busy, time can be gained. (The parts of
different threads overlap, so do not add these two up over threads.) share: of the thread's time. Threads whose names
differ only in their number are added up.

`threads` has the processor time of all threads of the process, those of libraries too, which TensorFlow computes its
operations in. `ranks` has processor time over wall time (1: one core), that of other processes, and the largest wait
of the thread that computes gradients (of any thread, where there is none). Measure when nothing else runs: where
others take the cores, what is computed looks like waiting, while the columns of processor time stay true.

Not measured: processes that a rank starts, which are the acting processes of Ape-X and --simulator-processes."""


def measure(arguments: ProfileArguments) -> dict[str, Any]:
    """Profiles a run, and writes its trace. Raises UsageError."""
    if not sys.platform.startswith("linux"):
        raise UsageError("a profile reads the processor time of threads from /proc, which only Linux has")
    config = config_of(arguments.train_options)
    if arguments.trace:
        _write_trace(arguments.trace, [])  # fails now, rather than after minutes of work
    rates: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(arguments.overhead_rounds):
        for record in (False, True):
            ranks, rate = _run(config, arguments, record)
            rates[record].append(rate)
    if not arguments.overhead_rounds:
        ranks, rate = _run(config, arguments, True)
    if arguments.trace:
        _write_trace(arguments.trace, trace(ranks))
    told = {"agent_steps_per_s": rate or None, **report(ranks)}
    if arguments.overhead_rounds:
        if not all(rates[False] + rates[True]):
            raise UsageError(f"--seconds {arguments.seconds:g}: too short to compare rates; give more")
        ratios = [profiled / alone for alone, profiled in zip(rates[False], rates[True], strict=True)]
        told["rate_with_the_profile_over_without"] = statistics.median(ratios)
        told["rates"] = {"without": rates[False], "with": rates[True]}
    return told


def _run(config: TrainConfig, arguments: ProfileArguments, record: bool) -> tuple[list[Rank], float]:
    """Trains once; returns what each rank recorded, and agent steps/s in the window, 0 if it is too short for a rate.

    Without `record`, the ranks record nothing.
    """
    with tempfile.TemporaryDirectory() as directory:
        request = {
            "directory": directory,
            "seconds": arguments.seconds,
            "warm_up": arguments.warm_up,
            "ranks": config.ranks,
            "record": record,
        }
        program = [*python_command("ddrl.bench.profile.rank"), json.dumps(request)]
        records = train_records(config, program, log_every_seconds=LINE_SECONDS)
        ranks = [read_json(Path(directory) / f"rank-{rank}.json") for rank in range(config.ranks)]
    for rank, found in enumerate(ranks):
        if found is None:
            raise UsageError(f"rank {rank} ended before it had written its profile")
        if "error" in found:
            raise UsageError(f"rank {rank} could not be profiled: {found['error']}")
    rates = [line.get("agent_steps_per_s", 0.0) for line in records if line["update"]]
    # One line per second; those after the window are of the time in which the profile is written, and the run ends.
    window = rates[1 + round(arguments.warm_up) : -1][: max(1, round(arguments.seconds))]
    return [Rank.read(rank, found) for rank, found in enumerate(ranks) if found], statistics.mean(window or [0.0])


def _write_trace(path: str, events: Sequence[Mapping[str, Any]]) -> None:
    with written(f"--trace {path}", "name a file that can be written"), open(path, "w") as file:
        json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file)


main = Benchmark(
    name="profile",
    arguments=ProfileArguments,
    measure=measure,
    title="where an update's time goes",
    notes={"update_ms": "wall time from one gradient to the next"},
    details=DETAILS,
)
