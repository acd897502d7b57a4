"""Norms per layer of parameters, gradients and steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def layer_norms(shapes: Sequence[tuple[str, tuple[int, ...]]], vector: np.ndarray) -> dict[str, float]:
    """L2 norm of each layer's part of a flat vector, and of all of it (Stooke and Abbeel 2018, figures 7 and 9).

    A layer is the tensors whose names are equal before the first '/', wherever they are in the vector.

    Args:
        shapes: name and shape of each tensor, in the order of the flat vector.
        vector: <float32>[N] parameters, a gradient, or a step: the difference of two versions.

    Returns:
        Layer -> norm, in the order of their first tensors; `all` last.

    Raises:
        ValueError: the shapes do not add up to N.
    """
    sizes = [math.prod(shape) for _, shape in shapes]
    if vector.shape != (sum(sizes),):
        raise ValueError(f"vector {vector.shape} for tensors of {sum(sizes)} numbers together")
    squares: dict[str, float] = {}
    start = 0
    for (name, _), size in zip(shapes, sizes):
        part, layer = vector[start : start + size], name.partition("/")[0]
        squares[layer] = squares.get(layer, 0.0) + float(np.dot(part, part))
        start += size
    norms = {layer: math.sqrt(square) for layer, square in squares.items()}
    return {**norms, "all": math.sqrt(sum(squares.values()))}
