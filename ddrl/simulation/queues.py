"""First come, first served, for many messages at once."""

from __future__ import annotations

import numpy as np


def starts(arrival: np.ndarray, seconds: float, free: np.ndarray | float = 0.0) -> np.ndarray:
    """When each message begins to be served: Lindley's recursion s_i = max(a_i, s_(i-1) + seconds), row by row.

    Args:
        arrival: <float64>[..., n] in any order; infinity: it never comes.
        seconds: that each message takes.
        free: <float64>[..., 1], when the server of a row has ended what came before.

    Returns:
        <float64>[..., n], in the order of `arrival`.
    """
    order = np.argsort(arrival, axis=-1, kind="stable")
    work = seconds * np.arange(arrival.shape[-1])
    ordered = np.maximum(np.take_along_axis(arrival, order, axis=-1), free)
    begun = np.maximum.accumulate(ordered - work, axis=-1) + work
    result = np.empty_like(begun)
    np.put_along_axis(result, order, begun, axis=-1)
    return result


def by_host(values: np.ndarray, ranks_per_host: int) -> np.ndarray:
    """Ranks in rows of their hosts, the last filled up with infinity: [ranks, ...] -> [hosts, ranks_per_host, ...]."""
    per_host = min(ranks_per_host, len(values)) or len(values)
    missing = -len(values) % per_host
    if missing:
        values = np.concatenate([values, np.full((missing, *values.shape[1:]), np.inf)])
    return values.reshape(-1, per_host, *values.shape[1:])
