"""Saves the parameters of a run's best evaluation. The evaluator does so, since it has them when it has played."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ddrl import checkpoint as checkpoints
from ddrl.checkpoint import Checkpoint, Layout
from ddrl.errors import UsageError, read_as
from ddrl.files import read_regular
from ddrl.job.layout import JobContext
from ddrl.reporting.metrics import EVALUATED, whole
from ddrl.rundir import config_to_dict

EVALUATION = "evaluation"  # name of the checkpoint's counter that has the evaluation's scores


class BestEvaluation:
    """Keeps the parameters with the highest mean score in `checkpoints/best.npz`, over all parts of a run.

    The file is a checkpoint with what acting needs, without optimizer slots and states of workers.

    Args:
        context: the job's context.
        layout: names and shapes of the tensors in the flat vector.
        event: (name, text) -> None; has the chief append an event to the metrics.
    """

    def __init__(self, context: JobContext, layout: Layout, event: Callable[[str, str], None]):
        self._context, self._layout, self._event = context, layout, event
        self._mean: float | None = None  # the highest so far; None: the file has not been read yet
        checkpoints.sweep_best(context.run_dir)

    def take(self, content: Mapping[str, Any], parameters: np.ndarray) -> None:
        """Takes an evaluation's report; ignores it if it has no score, or if games were cut off because time was up.

        Args:
            content: content of the report.
            parameters: the parameters <float32>[N] that played.
        """
        if not content["games"] or not whole([content]):
            return
        if self._mean is None:
            self._mean = self._recorded(content["version"])
        if self._mean is None:  # the file may have better ones, and the next evaluation asks it again
            return
        if content["mean"] > self._mean and self._save(content, parameters):
            self._mean = content["mean"]

    def _recorded(self, version: int) -> float | None:
        """The mean in the file of an earlier part of the run; minus infinity if there is none, or it is damaged; None
        if it cannot be read now, and so cannot be compared with the evaluation of `version`."""
        path = checkpoints.best_path(self._context.run_dir)
        try:
            data = read_regular(path)
        except (FileNotFoundError, NotADirectoryError):
            return -math.inf
        except OSError as error:
            why = f"cannot read {path}, which may be better: {error.strerror or error}; the next evaluation tries again"
            self._event("best_not_saved", f"update {version}: {why}")
            return None
        try:
            with read_as(f"checkpoint {path}", "the next evaluation replaces it"):
                return float(checkpoints.decode(path, data).counters[EVALUATION]["mean"])
        except UsageError as error:
            self._event("checkpoint_left_out", str(error))
            return -math.inf

    def _save(self, content: Mapping[str, Any], parameters: np.ndarray) -> bool:
        """Writes the file; returns whether that worked, and reports an event if it did not."""
        best = Checkpoint(
            version=content["version"],
            step=0,
            agent_steps=content["agent_steps"],
            wall_seconds=content["wall_seconds"],
            parameters=parameters,
            slots={},
            optimizer_count=0,
            layout=self._layout,
            counters={EVALUATION: {name: content[name] for name in EVALUATED if name in content}},
            config=config_to_dict(self._context.config),
        )
        try:
            checkpoints.save_best(self._context.run_dir, best)
        except UsageError as error:
            self._event("best_not_saved", str(error))
            return False
        return True
