"""`ddrl compare RUN...`: runs side by side, as one page and one figure."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import tyro

from ddrl.errors import UsageError
from ddrl.options import early_options


@dataclasses.dataclass(frozen=True)
class CompareArguments:
    """Put runs side by side in compare.html, which needs no network, and compare.png. Runs that differ only in their
    seed or in their length form a group. Groups of five or more are shown as their interquartile mean with a 95%
    interval, smaller ones run by run."""

    runs: tyro.conf.Positional[tuple[str, ...]]
    """Directories of runs, which may still be running."""
    score: Literal["auto", "evaluation", "online"] = "auto"
    """Score to compare. evaluation: the score of games with frozen parameters; online: the mean of the last 100
    training games; auto: evaluation where every run has one, else online."""
    output: str = "comparison"
    """Directory to write to."""
    plugin: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """The new name or path of a plugin of the runs that has moved. May be given several times."""


def main(argv: Sequence[str]) -> int:
    """Compares runs, writes the page and the figure, and prints the tables; returns the exit status."""
    arguments = early_options.read_with_plugins(CompareArguments, argv, "ddrl compare")
    if not arguments.runs:
        raise UsageError("compare: name the directories of runs (ddrl compare RUN RUN ...)")
    from ddrl.studies import compare

    outcomes = compare.read_runs(arguments.runs)
    score = compare.score_of(outcomes, arguments.score)
    compare.write(outcomes, score, Path(arguments.output), shlex.join(["ddrl", "compare", *argv]))
    return 0
