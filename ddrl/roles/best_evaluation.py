"""The parameters of a run's best evaluation. The evaluator has them when it has played, so it writes them itself."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ddrl import checkpoint as checkpoints
from ddrl.checkpoint import Checkpoint, Layout
from ddrl.errors import UsageError, read_as
from ddrl.job.layout import JobContext
from ddrl.reporting.metrics import EVALUATED, whole
from ddrl.rundir import config_to_dict

EVALUATION = "evaluation"  # the counter with what the evaluation reported


class BestEvaluation:
    """Keeps the parameters with the highest mean in `checkpoints/best.npz`, over all parts of a run.

    The file is a checkpoint with what acting needs: no optimizer, no states of workers.

    Args:
        context: of the job.
        layout: of the parameters.
        event: (name, text) to be noted.
    """

    def __init__(self, context: JobContext, layout: Layout, event: Callable[[str, str], None]):
        self._context, self._layout, self._event = context, layout, event
        self._mean: float | None = None  # the highest so far; None: the file has not been read yet
        checkpoints.sweep_best(context.run_dir)

    def take(self, content: Mapping[str, Any], parameters: np.ndarray) -> None:
        """Takes what an evaluation reports; one without a score, or whose games time cut off, is not compared.

        Args:
            content: of the report.
            parameters: <float32>[N] that were played with.
        """
        if not content["games"] or not whole([content]):
            return
        if self._mean is None:
            self._mean = self._recorded()
        if content["mean"] > self._mean and self._save(content, parameters):
            self._mean = content["mean"]

    def _recorded(self) -> float:
        """The mean in the file of an earlier part of the run; minus infinity where it cannot be told."""
        path = checkpoints.best_path(self._context.run_dir)
        if not os.path.exists(path):  # False, too, where the directory cannot be read
            return -math.inf
        try:
            with read_as(f"checkpoint {path}", "the next evaluation replaces it"):
                return float(checkpoints.load(path).counters[EVALUATION]["mean"])
        except UsageError as error:
            self._event("checkpoint_left_out", str(error))
            return -math.inf

    def _save(self, content: Mapping[str, Any], parameters: np.ndarray) -> bool:
        """Whether they are written; why not is noted."""
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
