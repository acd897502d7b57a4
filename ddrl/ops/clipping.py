"""Gradient clipping on the flat vector."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ddrl.lazy import tf


def clip_by_average_norm(gradient: tf.Tensor, shapes: Sequence[tuple[str, tuple[int, ...]]], limit: float) -> tf.Tensor:
    """Scale each tensor's part so that its L2 norm is at most limit times its number of elements.

    This is `tf.clip_by_average_norm` of TensorFlow 1, which the BA3C lineage applies with limit 0.1 on
    each worker before aggregation.

    Args:
        gradient: <float32>[N].
        shapes: name and shape of each tensor, in the order of the flat vector.
        limit: largest norm per element (0: no clipping).
    """
    if limit == 0.0:
        return gradient
    sizes = [math.prod(shape) for _, shape in shapes]
    parts = tf.split(gradient, sizes)
    return tf.concat([tf.clip_by_norm(part, limit * size) for part, size in zip(parts, sizes)], axis=0)
