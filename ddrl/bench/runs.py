"""Runs real training to measure it, and reads the records."""

from __future__ import annotations

import io
import os
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ddrl import rundir
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.placement.resources import this_machine
from ddrl.programs import python_command
from ddrl.reporting.metrics import read_metrics

LINE_SECONDS = 2.0  # between lines of metrics.jsonl
STOP_SECONDS = 5.0  # for ranks to end after Ctrl-C: they have nothing to save


def run_for(config: TrainConfig, seconds: float) -> list[dict[str, Any]]:
    """Trains for `seconds`; returns the train records, oldest first.

    Raises:
        UsageError: the run failed.
    """
    return train_records(config, minutes=seconds / 60, log_every_seconds=LINE_SECONDS)


def train_records(config: TrainConfig, program: Sequence[str] = (), **run: Any) -> list[dict[str, Any]]:
    """Trains in a directory that is removed afterward.

    Args:
        config: the settings.
        program: the command that each rank runs (empty: that of `ddrl train`). It may end the run by
            `rundir.ask_to_stop`, whose reason tells its request from Ctrl-C.
        run: settings of `config.run` to change; it has no budget but the one given here.

    Returns:
        The train records, oldest first.

    Raises:
        UsageError: the run failed.
        KeyboardInterrupt: Ctrl-C ended the run; the launcher catches it with a handler of its own.
    """
    from ddrl.launch import local as launch

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "run"
        settings = {"minutes": 0.0, "agent_steps": 0, "max_updates": 0, "run_dir": str(path), "video": False} | run
        config = config.changed(run=settings)
        said = io.StringIO()
        console, ranks = Console(file=said, soft_wrap=True), program or launch.RANK_PROGRAM
        status = launch.train(config, None, this_machine(), console, ranks, stop_seconds=STOP_SECONDS)
        ended_by_program = bool(program and rundir.stop_reason(path))
        if status == launch.KILLED or ((path / rundir.STOP).exists() and not ended_by_program):
            raise KeyboardInterrupt
        if status != 0:
            # The last line may name the log, which is removed.
            told = [line for line in said.getvalue().splitlines() if line and not line.startswith("see ")]
            raise UsageError(f"the run failed: {told[-1].removeprefix('ddrl: the run failed: ')}")
        return [record for record in read_metrics(path) if record["kind"] == "train"]


def start_train(arguments: Sequence[str], output: Path, **environment: str) -> subprocess.Popen[bytes]:
    """Starts `ddrl train` in a session of its own, so that it does not receive this process's Ctrl-C.

    Args:
        arguments: the command line after `ddrl train`.
        output: file to which its output is appended.
        environment: environment variables, in addition to those of this process.
    """
    with output.open("ab") as file:
        return subprocess.Popen(
            [*python_command("ddrl.cli"), "train", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=os.environ | environment,
            start_new_session=True,
        )


def mean_parts(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each name over the mappings that are not empty; a name missing from one of these counts as 0."""
    telling = [part for part in parts if part]
    names = sorted({name for part in telling for name in part})
    return {name: round(statistics.mean(part.get(name, 0.0) for part in telling), 4) for name in names}
