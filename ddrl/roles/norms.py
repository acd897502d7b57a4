"""Adds norms per layer to the metrics: of the parameters, a worker's gradient, and the step between two versions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ddrl.ops.norms import layer_norms
from ddrl.reporting.rank_metrics import RankMetrics


class NormMeter:
    """Measures the norms at every `every`-th version (Stooke and Abbeel 2018, appendix C).

    The gauges are `parameter_norm/LAYER`, `gradient_norm/LAYER`, and `step_norm/LAYER` for the step from that version
    to the next. LAYER is `all` for the whole vector.

    Args:
        shapes: name and shape of the network's tensors, in the order of the flat vector; values after them, which are
            running statistics, are left out.
        every: number of updates between two measurements.
        metrics: takes the gauges.
    """

    def __init__(self, shapes: Sequence[tuple[str, tuple[int, ...]]], every: int, metrics: RankMetrics):
        self._shapes, self._every, self._metrics = shapes, every, metrics
        self._size = sum(math.prod(shape) for _, shape in shapes)
        self._before: np.ndarray | None = None  # the last version, if the step to the next one is to be measured

    def parameters(self, version: int, vector: np.ndarray) -> None:
        """Takes the parameters <float32>[N] of a version."""
        if self._before is not None:
            self._gauge("step_norm", vector - self._before)
            self._before = None
        if version % self._every == 0:
            self._gauge("parameter_norm", vector)
            self._before = vector

    def gradient(self, version: int, vector: np.ndarray) -> None:
        """Takes this worker's gradient <float32>[N] at a version, before averaging and clipping to a global norm."""
        if version % self._every == 0:
            self._gauge("gradient_norm", vector)

    def _gauge(self, name: str, vector: np.ndarray) -> None:
        for layer, norm in layer_norms(self._shapes, vector[: self._size]).items():
            self._metrics.gauge(f"{name}/{layer}", norm)
