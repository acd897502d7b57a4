"""--init-from: a new run begins with the parameters of an earlier one, and with nothing else of it.

Nothing here imports TensorFlow.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ddrl.checkpoint import Checkpoint, check_layout, checkpoint_path, list_checkpoints, load, load_latest
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.named_runs import run_and_checkpoint_in_one

SOURCE = "init_from"
"""Key of `Source.record` in the counters that a run begins with, and in its event `started`."""
REMEDY = "use a network, algorithm, and game with the same tensors, or leave --init-from out"


class Source(NamedTuple):
    """Where the first parameters of a run are from.

    Attributes:
        path: absolute path of the checkpoint's file.
        checkpoint: the content of that file.
    """

    path: Path
    checkpoint: Checkpoint

    @property
    def record(self) -> dict[str, Any]:
        """File, update and agent steps, as JSON types."""
        return {"file": str(self.path), "update": self.checkpoint.version, "agent_steps": self.checkpoint.agent_steps}


def source_of(named: str, layout: Sequence[tuple[str, Sequence[int]]] | None = None) -> Source:
    """The checkpoint that --init-from names.

    Args:
        named: as `run_and_checkpoint_in_one` takes it, or the file of a checkpoint, wherever it is. If it names only a
            run, the newest sound checkpoint is taken.
        layout: name and shape of each tensor of the new run's network, which must be those of the checkpoint (None:
            they are not compared).

    Raises:
        UsageError: there is no such run or checkpoint, or a tensor differs.
    """
    try:
        run, path = run_and_checkpoint_in_one(named)
        path = run if path is None and run.is_file() else path
        if path is None and not list_checkpoints(run):
            why = "has no checkpoint" if run.is_dir() else "is no directory"
            raise UsageError(f"{run} {why}; name a run that has a checkpoint, or leave the option out")
        checkpoint = load_latest(run) if path is None else load(path)
        if layout is not None:
            check_layout(checkpoint, layout, REMEDY)
    except UsageError as error:
        raise UsageError(f"--init-from {named}: {error}") from error
    except ValueError as error:  # a zero byte, which a file of settings and Python can have in a name
        raise UsageError(f"--init-from {named!r:.80}: {error}; name a run that has a checkpoint") from error
    return Source((path or checkpoint_path(run, checkpoint.version)).absolute(), checkpoint)


def with_source_fixed(config: TrainConfig) -> TrainConfig:
    """The settings of a new run with --init-from replaced by the file that it stands for now, before newer ones come.

    Raises:
        UsageError: as `source_of`.
    """
    named = config.run.init_from
    return config.changed(run={"init_from": str(source_of(named).path)}) if named else config
