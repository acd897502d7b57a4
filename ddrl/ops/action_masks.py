"""Legal actions: the outputs of a policy head for illegal ones are so low that they are never drawn nor the largest.

Whoever has outputs alone sees by them which actions are legal; -inf would make NaN of 0 times itself.
"""

from __future__ import annotations

import numpy as np

from ddrl.lazy import tf

ILLEGAL = -1e9
"""Logit or value of an illegal action."""


def masked(outputs: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """`outputs` <float32>[B, A], with `ILLEGAL` where `mask` <bool>[B, A] is False; without gradient there."""
    outputs.shape.assert_is_compatible_with(mask.shape)
    return tf.where(mask, outputs, ILLEGAL)


def legal(outputs: np.ndarray) -> np.ndarray:
    """<bool>[b, A] which actions are legal, by `masked` outputs <float>[b, A]."""
    return outputs > ILLEGAL / 2


def nth_legal(outputs: np.ndarray, part: np.ndarray) -> np.ndarray:
    """An action drawn uniformly among the legal ones: <int64>[b].

    Args:
        outputs: <float>[b, A], `masked`.
        part: <float64>[b] in [0, 1), which picks.
    """
    allowed = legal(outputs)
    counts = allowed.sum(axis=1)
    number = np.minimum((part * counts).astype(np.int64), counts - 1)
    return (allowed.cumsum(axis=1) > number[:, None]).argmax(axis=1)
