"""Pure functions that cut the flat parameter vector into shards, and convert between sets of workers and bitmaps."""

from __future__ import annotations

import itertools
from collections.abc import Iterable


def shard_ranges(parameters: int, servers: int) -> tuple[tuple[int, int], ...]:
    """Cuts `parameters` float32 values into contiguous [start, stop) ranges, one per server.

    The ranges' lengths differ by at most one value, so all servers move the same bytes, whatever the tensor sizes.

    Raises:
        ValueError: if there are fewer parameters than servers, or no server.
    """
    if not 1 <= servers <= parameters:
        raise ValueError(f"{parameters} parameters cannot be cut into {servers} shards")
    small, larger = divmod(parameters, servers)
    starts = [shard * small + min(shard, larger) for shard in range(servers + 1)]
    return tuple(itertools.pairwise(starts))


def to_bitmap(workers: Iterable[int]) -> int:
    """Encodes a set of worker ids as an integer in which bit i is set for worker i."""
    bitmap = 0
    for worker in workers:
        bitmap |= 1 << worker
    return bitmap


def from_bitmap(bitmap: int) -> tuple[int, ...]:
    """The worker ids of a bitmap in ascending order, in which gradients are summed."""
    workers = []
    while bitmap:
        lowest = bitmap & -bitmap
        workers.append(lowest.bit_length() - 1)
        bitmap ^= lowest
    return tuple(workers)
