"""`ddrl bench fuzz`: flips bits in run directories and throws inputs at the parsers.

Nothing may pass that changes what is trained, and nothing may end in a traceback.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from ddrl import checks
from ddrl.bench.fuzz_flips import CHANGED, KINDS, OUTCOMES, SHOWN, TRACEBACK, Flip, Flips, flip_many, make_runs, table
from ddrl.errors import UsageError
from ddrl.reporting import machine
from ddrl.reporting.json_output import write_json_output


@dataclasses.dataclass(frozen=True)
class FuzzArguments:
    """Flip single bits in copies of real run directories, read them as a resume, an evaluation and a plot do, and throw
    command lines, Slurm environments and host lists at the parsers."""

    flips: int = 0
    """Bits to flip, one at a time."""
    inputs: int = 0
    """Inputs for each parser, made by Hypothesis (pip install 'ddrl[test]')."""
    seed: int = 0
    """Of the choice of bits and inputs."""
    runs: tuple[Literal["ba3c", "dqn", "apex-dqn"], ...] = ("ba3c", "dqn", "apex-dqn")
    """What to train, for half a minute each, with the preset smoke."""
    directory: str = ""
    """Where the runs are kept for a later call (default: they are removed)."""
    json: str = ""
    """Write one JSON object to this file (-: standard output) instead of tables."""

    def __post_init__(self) -> None:
        checks.at_least(self, 0, "flips", "inputs", "seed")
        if not self.flips and not self.inputs:
            raise UsageError("bench fuzz: give --flips, --inputs or both; nothing is to be done")
        if not self.runs:
            raise UsageError("--runs: name one or more of ba3c, dqn and apex-dqn")


def main(argv: Sequence[str]) -> int:
    """Flips, throws and prints; returns 1 when something was accepted with a change, or ended in a traceback."""
    arguments = tyro.cli(FuzzArguments, args=list(argv), prog="ddrl bench fuzz")
    if arguments.inputs:
        from ddrl.bench.fuzz_inputs import check_hypothesis

        check_hypothesis()
    flips: list[Flip] = []
    if arguments.flips:
        with contextlib.ExitStack() as stack:
            temporary = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            flips = _flips(arguments, Path(arguments.directory or temporary / "runs"), temporary / "copies")
    inputs: dict[str, dict[str, Any]] = {}
    if arguments.inputs:
        from ddrl.bench.fuzz_inputs import throw

        inputs = throw(arguments.inputs, arguments.seed)
    bad = [flip for flip in flips if flip.outcome in (CHANGED, TRACEBACK)]
    if arguments.json:
        values = {"flips": table(flips), "inputs": inputs, "bad": [flip._asdict() for flip in bad]}
        write_json_output(arguments.json, values | {"machine": machine.describe()})
    else:
        show(flips, inputs, bad)
    return int(bool(bad) or any(counts["tracebacks"] for counts in inputs.values()))


def _flips(arguments: FuzzArguments, directory: Path, copies: Path) -> list[Flip]:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        copies.mkdir()
        flips = Flips(make_runs(directory, arguments.runs), copies, arguments.seed)
    except OSError as error:
        raise UsageError(f"--directory {directory}: {error.strerror}; name one that can be written") from error
    with contextlib.closing(flips):
        return flip_many(flips, arguments.flips)


def show(flips: Sequence[Flip], inputs: Mapping[str, Mapping[str, Any]], bad: Sequence[Flip]) -> None:
    """Prints the tables, and the first of what is bad."""
    console = Console(highlight=False, soft_wrap=True)
    if flips:
        outcomes = Table("file", "flips", *OUTCOMES, title="flipped bits", box=box.SIMPLE)
        for kind, flipped in table(flips).items():
            outcomes.add_row(kind, *(f"{flipped[name]:,}" for name in ("flips", *OUTCOMES)))
        console.print(outcomes)
        for unread in (kind for kind in KINDS if kind.unread):
            if any(flip.kind == unread.name for flip in flips):
                console.print(f"{unread.name}: {unread.unread}", markup=False)
    if inputs:
        columns = ("inputs", "accepted", "refused", "tracebacks", "longest_ms")
        parsers = Table("parser", *columns, title="inputs", box=box.SIMPLE)
        for parser, counts in inputs.items():
            parsers.add_row(parser, *(str(counts[name]) for name in columns))
        console.print(parsers)
    for parser, counts in inputs.items():
        if counts["why"]:
            console.print(f"traceback: {parser}: {counts['why']}", markup=False)
    for flip in bad[:SHOWN]:
        console.print(f"{flip.outcome}: {flip.file}, byte {flip.byte}, bit {flip.bit}: {flip.why}", markup=False)
