"""`ddrl bench fuzz`: flips bits in run directories and throws inputs at the parsers.

Nothing may pass that changes what is trained, and nothing may end in a traceback.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from pathlib import Path
from typing import Any, Literal

from ddrl import checks
from ddrl.bench.benchmark import Benchmark, BenchmarkArguments
from ddrl.bench.fuzz_flips import CHANGED, KINDS, TRACEBACK, Flip, Flips, flip_many, make_runs, table
from ddrl.errors import UsageError, written


@dataclasses.dataclass(frozen=True)
class FuzzArguments(BenchmarkArguments):
    """Flip single bits in copies of real run directories, read them as a resume, an evaluation and a plot do, and throw
    command lines, Slurm environments and host lists at the parsers. Exit status 1: a flip was accepted with a
    change, or something ended in a traceback."""

    flips: int = 0
    """Bits to flip, one at a time."""
    inputs: int = 0
    """Inputs for each parser, made by Hypothesis (pip install 'ddrl[test]')."""
    seed: int = 0
    """Seed of the choice of bits and inputs."""
    runs: tuple[Literal["ba3c", "dqn", "apex-dqn"], ...] = ("ba3c", "dqn", "apex-dqn")
    """Algorithms to train, for half a minute each, with the preset smoke."""
    directory: str = ""
    """Where the runs are kept for a later call (default: they are removed)."""

    def __post_init__(self) -> None:
        checks.at_least(self, 0, "flips", "inputs", "seed")
        if not self.flips and not self.inputs:
            raise UsageError("bench fuzz: there is nothing to do; give --flips, --inputs, or both")
        if not self.runs:
            raise UsageError("--runs: name one or more of ba3c, dqn, and apex-dqn")


def measure(arguments: FuzzArguments) -> dict[str, Any]:
    """Counts the outcomes of the flips by kind of file and of the inputs by parser, and lists the bad ones.

    Raises:
        UsageError: Hypothesis is missing, the directory cannot be used, or a run failed.
    """
    values: dict[str, Any] = {"flips": {}, "inputs": {}, "bad": []}
    if arguments.inputs:
        from ddrl.bench.fuzz_inputs import check_hypothesis, throw

        check_hypothesis()
    if arguments.flips:
        flips = _flips(arguments)
        values["flips"] = table(flips)
        values["unread"] = {kind.name: kind.unread for kind in KINDS if kind.unread and kind.name in values["flips"]}
        values["bad"] += [flip._asdict() for flip in flips if flip.outcome in (CHANGED, TRACEBACK)]
    if arguments.inputs:
        values["inputs"] = throw(arguments.inputs, arguments.seed)
        ended = {parser: counts.pop("why") for parser, counts in values["inputs"].items()}
        values["bad"] += [{"parser": parser, "outcome": TRACEBACK, "why": why} for parser, why in ended.items() if why]
    return values


def _flips(arguments: FuzzArguments) -> list[Flip]:
    with tempfile.TemporaryDirectory() as temporary:
        directory, copies = Path(arguments.directory or temporary), Path(temporary, "copies")
        with written(f"--directory {directory}", "name one that can be written"):
            directory.mkdir(parents=True, exist_ok=True)
            copies.mkdir()
            flips = Flips(make_runs(directory, arguments.runs), copies, arguments.seed)
        with contextlib.closing(flips):
            return flip_many(flips, arguments.flips)


main = Benchmark(
    name="fuzz",
    arguments=FuzzArguments,
    measure=measure,
    title="fuzz",
    notes={"unread": "why a flip there is harmless"},
    failed=lambda values: bool(values["bad"]),
)
