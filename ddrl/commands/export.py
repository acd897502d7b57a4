"""`ddrl export RUN`: the policy of a run as a SavedModel or ONNX file."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import tyro

from ddrl import checks, rundir


@dataclasses.dataclass(frozen=True)
class ExportArguments:
    """Write the policy of a run's newest checkpoint for programs without ddrl, and compare it with the agent itself on
    observations of its game: greedy actions, values, and probabilities or Q-values, in float32."""

    run: tyro.conf.Positional[str]
    """Directory of the run."""
    output: str = ""
    """What to write: ONNX where the name ends in .onnx (extra `onnx`), else the directory of a TensorFlow SavedModel
    (default: saved_model in the run's directory)."""
    observations: int = 1000
    """Observations of the game with which it is compared."""
    checkpoint: str = ""
    """File of the checkpoint (default: the newest of the run)."""

    def __post_init__(self) -> None:
        checks.at_least(self, 1, "observations")


def main(argv: Sequence[str]) -> int:
    """Writes, compares and prints; returns the exit status."""
    arguments = tyro.cli(ExportArguments, args=list(argv), prog="ddrl export")
    path = Path(arguments.run)
    rundir.load_config(path)
    output = Path(arguments.output) if arguments.output else path / "saved_model"
    from ddrl.evaluation.agent import load_agent
    from ddrl.evaluation.export import export

    checkpoint = Path(arguments.checkpoint) if arguments.checkpoint else None
    agent = load_agent(path, checkpoint=checkpoint, compute_dtype="float32")
    compared = export(agent, output, arguments.observations)
    print(
        f"{output}: version {agent.checkpoint.version:,}; the same action in {compared['same_actions']:,} of "
        f"{compared['observations']:,} observations, outputs within {compared['largest_difference']:.1e}"
    )
    return 0
