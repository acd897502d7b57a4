"""`ddrl bench soak`: trains for hours, and says whether the memory of any process grows."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro

from ddrl import checks
from ddrl.bench.benchmark import Benchmark, BenchmarkArguments
from ddrl.bench.runs import start_train
from ddrl.checkpoint import list_checkpoints
from ddrl.errors import UsageError, written
from ddrl.json_lines import JsonLines
from ddrl.launch.processes import Interrupts, children
from ddrl.placement import start

SETTLED_SECONDS = 300.0  # at the start of a leg, in which replays fill and everything is used for the first time
SAMPLES, RUN, OUTPUT = "samples.jsonl", "run", "output.txt"
END_SECONDS = 300.0  # allowed for a run whose time is over to save a checkpoint, evaluate and end
PAGE = os.sysconf("SC_PAGE_SIZE")
NEW = ("--preset", "smoke")
UNBOUNDED = ("--agent-steps", "0", "--max-updates", "0", "--no-video", "--evaluation-minutes", "0.5")


@dataclasses.dataclass(frozen=True)
class SoakArguments(BenchmarkArguments):
    """Train Catch for hours, in legs, and compare the resident memory of each process with what it was after five
    minutes."""

    algorithm: tyro.conf.Positional[str] = "ba3c"
    """What to train, with the preset smoke: any name that ddrl train takes."""
    minutes: float = 60.0
    """Length of this leg, in minutes."""
    directory: str = ""
    """Where the run and the samples are kept. A later call with the same directory continues from the last
    checkpoint."""
    every_seconds: float = 10.0
    """Seconds between two samples."""

    def __post_init__(self) -> None:
        checks.at_least(self, 1, "minutes")
        checks.above(self, 0, "every_seconds")
        if not self.directory:
            raise UsageError("--directory is missing: name a directory for the run, which the next leg continues")


def measure(arguments: SoakArguments) -> dict[str, Any]:
    """Trains one leg; returns the summary of all legs in the directory, and the exit status of this one.

    Raises:
        UsageError: the directory cannot be written.
    """
    directory = Path(arguments.directory)
    with written(f"--directory {directory}", "name one that can be written"):
        directory.mkdir(parents=True, exist_ok=True)
        status = train_leg(arguments, directory)
        samples = JsonLines(directory / SAMPLES).read()
    if status != 0:
        print(f"the leg ended with status {status}: see {directory / OUTPUT}", file=sys.stderr)
    return summary(samples) | {"status": status}


def train_leg(arguments: SoakArguments, directory: Path) -> int:
    """Trains for the leg's minutes and appends samples to the directory; returns the exit status of the run."""
    run, began = directory / RUN, time.monotonic()
    what = ["--resume", str(run)] if list_checkpoints(run) else [arguments.algorithm, *NEW, "--run-dir", str(run)]
    leg = 1 + max((line["leg"] for line in JsonLines(directory / SAMPLES).read()), default=0)
    end = began + 60.0 * arguments.minutes + END_SECONDS
    with (directory / SAMPLES).open("a") as samples, Interrupts() as interrupts:
        process = start_train([*what, *UNBOUNDED, "--minutes", str(arguments.minutes)], directory / OUTPUT)
        try:
            while process.poll() is None and time.monotonic() < end and interrupts.stop is None:
                seconds = round(time.monotonic() - began, 1)
                line = {"leg": leg, "seconds": seconds, "resident_mb": sample(process.pid, run)}
                samples.write(json.dumps(line) + "\n")
                samples.flush()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=arguments.every_seconds)
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=END_SECONDS)
            process.kill()
    return process.wait()


def sample(launcher: int, run: Path) -> dict[str, float]:
    """The present resident memory, in MiB, of the launcher and all its descendants, by rank or program."""
    megabytes: dict[str, float] = {}
    ranks = {note.pid: f"rank {rank}" for rank, note in start.notes(run).items()}
    for pid, parent in descendants(launcher):
        below = ranks.get(pid) or f"{_program(pid)} of {ranks.get(parent, 'launcher')}"
        name = "launcher" if pid == launcher else below
        with contextlib.suppress(OSError):
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            megabytes[name] = megabytes.get(name, 0.0) + round(pages * PAGE / 2**20, 2)
    return megabytes


def descendants(root: int) -> list[tuple[int, int]]:
    """The pairs (process ID, parent's process ID) of a process and all its descendants; the root's parent is 0."""
    tree = [(root, 0)]
    for process, _ in tree:
        tree += [(child, process) for child in children(process)]
    return tree


def _program(pid: int) -> str:
    """The module that a Python process runs, or the name of the program."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "process"
    program = Path(words[0]).name or "process"
    return words[words.index("-m") + 1] if program.startswith("python") and "-m" in words[:-1] else program


def summary(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Summarizes samples: each process's memory after five minutes of a leg, and the least and most after that.

    Whole minutes are compared (medians of their samples), as an evaluation takes memory for seconds. The last minute of
    a leg does not count, as the run ends in it. Processes that live for less than a quarter of a leg, such as those
    that draw the curve, are left out.
    """
    told: dict[str, Any] = {"hours": 0.0, "legs": 0, "largest_deviation_percent": 0.0, "processes": {}}
    for leg in sorted({line["leg"] for line in lines}):
        samples = [line for line in lines if line["leg"] == leg]
        told["hours"] += samples[-1]["seconds"] / 3600
        told["legs"] += 1
        for name, minutes in _by_minute(samples).items():
            if len(minutes) < max(2, (samples[-1]["seconds"] - SETTLED_SECONDS) / 240):
                continue
            least, most = min(minutes), max(minutes)
            percent = 100 * max(most - minutes[0], minutes[0] - least) / minutes[0]
            told["processes"][f"{name}, leg {leg}"] = (
                f"{minutes[0]:,.1f} MB, then {least:,.1f} to {most:,.1f}: {percent:.2f}%"
            )
            told["largest_deviation_percent"] = max(told["largest_deviation_percent"], round(percent, 2))
    return told


def _by_minute(leg: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """For each process, the median memory of each minute of a leg, without the first five minutes and the last."""
    minutes: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in leg:
        if SETTLED_SECONDS <= line["seconds"] < leg[-1]["seconds"] - 60:
            for name, megabytes in line["resident_mb"].items():
                minutes[name][int(line["seconds"] // 60)].append(megabytes)
    return {name: [statistics.median(each[key]) for key in sorted(each)] for name, each in minutes.items()}


main = Benchmark(
    name="soak",
    arguments=SoakArguments,
    measure=measure,
    title="soak of {options.algorithm}",
    notes={"largest_deviation_percent": "of any process from its memory after five minutes"},
    failed=lambda values: values["status"] != 0,
)
