"""How the flat parameter vector is cut into shards, and sets of workers into bitmaps. Pure functions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable


def shard_ranges(parameters: int, servers: int) -> tuple[tuple[int, int], ...]:
    """Cuts `parameters` float32 values into contiguous [start, stop) ranges, one per server.

    The ranges differ by at most one value, so every server moves the same bytes whatever the tensor sizes.

    Raises:
        ValueError: if there are fewer parameters than servers, or no server.
    """
    if not 1 <= servers <= parameters:
        raise ValueError(f"{parameters} parameters cannot be cut into {servers} shards")
    small, larger = divmod(parameters, servers)
    starts = [shard * small + min(shard, larger) for shard in range(servers + 1)]
    return tuple(itertools.pairwise(starts))


def to_bitmap(workers: Iterable[int]) -> int:
    """The set of worker ids as an integer with one bit each."""
    bitmap = 0
    for worker in workers:
        bitmap |= 1 << worker
    return bitmap


def from_bitmap(bitmap: int) -> tuple[int, ...]:
    """The worker ids of a bitmap, ascending: the order in which gradients are summed."""
    workers = []
    while bitmap:
        lowest = bitmap & -bitmap
        workers.append(lowest.bit_length() - 1)
        bitmap ^= lowest
    return tuple(workers)
