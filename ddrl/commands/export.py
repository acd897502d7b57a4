"""`ddrl export RUN`: the policy of a run as a SavedModel or ONNX file."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import tyro

from ddrl import checks, rundir
from ddrl.named_runs import run_and_checkpoint
from ddrl.options import early_options
from ddrl.wording import counted

MOST_OBSERVATIONS = 10_000_000


@dataclasses.dataclass(frozen=True)
class ExportArguments:
    """Write the policy of a checkpoint for programs without ddrl, and compare it with the agent itself on observations
    of its game: greedy actions, values, and probabilities or Q-values, in float32. A JSON file beside it, of the same
    name with .json, says what it takes and gives."""

    run: tyro.conf.Positional[str]
    """Directory of the run, or the file of one of its checkpoints."""
    output: str = ""
    """What to write: an ONNX file if the name ends in .onnx (extra `onnx`), else the directory of a TensorFlow
    SavedModel (default: saved_model in the run's directory)."""
    observations: int = 1000
    """Number of the game's observations on which the copy is compared with the agent."""
    checkpoint: str = ""
    """Checkpoint to write: the number of its update, best (of the run's best evaluation), or a file (default: the
    newest of the run)."""
    plugin: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """The new name or path of a plugin of the run that has moved. May be given several times."""

    def __post_init__(self) -> None:
        checks.between(self, 1, MOST_OBSERVATIONS, "observations")


def main(argv: Sequence[str]) -> int:
    """Writes the policy, and prints how well it agrees with the agent; returns the exit status."""
    arguments = early_options.read_with_plugins(ExportArguments, argv, "ddrl export")
    path, checkpoint = run_and_checkpoint(arguments.run, arguments.checkpoint)
    rundir.load_config(path)
    output = Path(arguments.output) if arguments.output else path / "saved_model"
    from ddrl.evaluation.export import check_output, export

    check_output(output)  # now, not after TensorFlow has loaded
    from ddrl.evaluation.agent import load_agent

    agent = load_agent(path, checkpoint=checkpoint, compute_dtype="float32")
    compared = export(agent, output, arguments.observations)
    print(
        f"{output}: update {agent.checkpoint.version:,}; the same action in {compared['same_actions']:,} of "
        f"{counted(compared['observations'], 'observation')}, outputs within {compared['largest_difference']:.1e}; "
        f"{output}.json lists its inputs and outputs"
    )
    return 0
