"""Norms per layer in the metrics: of parameters, of a worker's gradient, of the step between two versions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ddrl.ops.norms import layer_norms
from ddrl.reporting.rank_metrics import RankMetrics


class NormMeter:
    """Measures every so many updates, and the step of that update (Stooke and Abbeel 2018, appendix C).

    The gauges are `parameter_norm/LAYER`, `gradient_norm/LAYER` and `step_norm/LAYER`, with LAYER `all` for the whole.

    Args:
        shapes: of the network's tensors, in the order of the flat vector; what comes after them is left out.
        every: updates between two measures.
    """

    def __init__(self, shapes: Sequence[tuple[str, tuple[int, ...]]], every: int, metrics: RankMetrics):
        self._shapes, self._every, self._metrics = shapes, every, metrics
        self._size = sum(math.prod(shape) for _, shape in shapes)
        self._before: np.ndarray | None = None  # the version before the next one

    def parameters(self, version: int, vector: np.ndarray) -> None:
        """Takes a version <float32>[N]."""
        if self._before is not None:
            self._gauge("step_norm", vector - self._before)
            self._before = None
        if version % self._every == 0:
            self._gauge("parameter_norm", vector)
            self._before = vector

    def gradient(self, version: int, vector: np.ndarray) -> None:
        """Takes this worker's gradient <float32>[N] for a version, before the average is clipped."""
        if version % self._every == 0:
            self._gauge("gradient_norm", vector)

    def _gauge(self, name: str, vector: np.ndarray) -> None:
        for layer, norm in layer_norms(self._shapes, vector[: self._size]).items():
            self._metrics.gauge(f"{name}/{layer}", norm)
