"""Running statistics (means and variances) within the flat vector: where they are, and how several of them are merged.

They come in blocks. A block for D components has the number of samples [2], the means [2, D] and the variances [2, D].
Each number is stored as the sum of two float32, of which the second is the rounding error of the first. At the same
place in its gradient, a worker has a block of the samples that it saw since its last gradient; its count is 0 if there
were none. Blocks are merged in float64 as in Chan, Golub and LeVeque 1979, without any learning rate, clipping or
optimizer slots.

The blocks have means and variances, because sums of squares would cancel when a mean is large compared with its
standard deviation. They have two float32 for each number, because a single one stops changing once a new contribution
is less than 6e-8 of the total, as happens in long runs, and because a float64 does not fit into the vector.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ddrl.errors import UsageError

PREFIX = "normalization/"
"""Prefix of the names of tensors that are blocks of statistics."""


class Moments(NamedTuple):
    """The number of samples, and the mean and variance of each component, <float64>[D]."""

    count: float  # type: ignore[assignment] # hides tuple.count
    mean: np.ndarray
    variance: np.ndarray


def moments_of(rows: np.ndarray) -> Moments:
    """The moments of rows <float>[M, D], computed in float64; without rows, the count is 0."""
    if not len(rows):
        return Moments(0.0, np.zeros(rows.shape[1]), np.zeros(rows.shape[1]))
    with np.errstate(all="ignore"):  # infinities need no warning: a gradient that has them is refused
        mean = rows.mean(axis=0, dtype=np.float64)
        return Moments(float(len(rows)), mean, np.square(rows - mean).mean(axis=0))


def merged_moments(first: Moments, second: Moments) -> Moments:
    """The moments of the samples of `first` and `second` together."""
    if not first.count or not second.count:
        return first if first.count else second
    count = first.count + second.count
    part, other = second.count / count, first.count / count
    with np.errstate(all="ignore"):
        difference = second.mean - first.mean
        variance = first.variance * other + second.variance * part + np.square(difference) * (part * other)
        return Moments(count, first.mean + difference * part, variance)


def block_size(width: int) -> int:
    """The number of float32 values in a block for `width` components."""
    return 2 + 4 * width


def packed(moments: Moments) -> np.ndarray:
    """Encodes moments of D components as a block <float32>[2 + 4 D]."""
    halves = [_halves(np.array([moments.count])), _halves(moments.mean), _halves(moments.variance)]
    return np.concatenate(halves)


def unpacked(block: np.ndarray) -> Moments:
    """Decodes a block <float32>[2 + 4 D]; the inverse of `packed`."""
    pairs = np.split(block.astype(np.float64), [2, 2 + (block.size - 2) // 2])
    with np.errstate(invalid="ignore"):  # the second half of an infinity is NaN
        count, mean, variance = (pair.reshape(2, -1).sum(axis=0) for pair in pairs)
    return Moments(float(count[0]), mean, variance)


def _halves(values: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        high = values.astype(np.float32)
        return np.concatenate([high, (values - high).astype(np.float32)])


class Statistics(NamedTuple):
    """The position of the running statistics in a vector.

    Attributes:
        start: index of the first value of the first block.
        widths: number of components of each block.
    """

    start: int
    widths: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of float32 values in all blocks."""
        return sum(map(block_size, self.widths))

    @property
    def stop(self) -> int:
        """The index after the last value of the last block."""
        return self.start + self.size

    def within(self, start: int, stop: int) -> Statistics | None:
        """Their position in the slice [start, stop), counted from its start; None if they are not in the slice.

        Raises:
            UsageError: the slice has only a part of the statistics.
        """
        if stop <= self.start or self.stop <= start:
            return None
        if not start <= self.start < self.stop <= stop:
            raise UsageError(
                f"the {self.size:,} values of the running statistics must lie in one part of the parameters, and a "
                f"part has only {stop - start:,}: use fewer --workers, --parameter-servers, or --store-chunks"
            )
        return Statistics(self.start - start, self.widths)

    def uncut(self, ranges: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        """Moves a cut within the statistics to their nearer end, so that no range has only a part of them.

        Args:
            ranges: contiguous [start, stop) ranges, which make up the vector; at most one begins within the statistics.
        """
        nearer = [self.start if cut - self.start < self.stop - cut else self.stop for cut, _ in ranges]
        cuts = [end if self.start < cut < self.stop else cut for end, (cut, _) in zip(nearer, ranges)]
        return tuple(itertools.pairwise([*cuts, ranges[-1][1]]))

    def of(self, vector: np.ndarray) -> np.ndarray:
        """The statistics of a vector, as a view <float32>[size]."""
        return vector[self.start : self.stop]

    def merged(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Merges several statistics, each <float32>[size], into one, in the order given.

        A block that has samples in only one of them is copied from there bit for bit.
        """
        blocks, start = [], 0
        for width in self.widths:
            stop = start + block_size(width)
            counted = [part[start:stop] for part in parts if part[start]] or [parts[0][start:stop]]
            start = stop
            if len(counted) == 1:
                blocks.append(counted[0])
                continue
            moments = unpacked(counted[0])
            for block in counted[1:]:
                moments = merged_moments(moments, unpacked(block))
            blocks.append(packed(moments))
        return np.concatenate(blocks)

    def advance(self, old: np.ndarray, gradients: Sequence[np.ndarray], out: np.ndarray) -> None:
        """Sets the statistics of `out` to those of the vector `old`, merged with those of the gradients.

        The gradients are merged with each other first, so that the result is the same if they were merged before.
        """
        seen = self.merged([self.of(gradient) for gradient in gradients])
        self.of(out)[:] = self.merged([self.of(old), seen])


def statistics_in(tensors: Sequence[tuple[str, tuple[int, ...]]]) -> Statistics | None:
    """The position of a network's running statistics, which are its last tensors; None if it has none.

    Args:
        tensors: name and shape of each tensor, in the order of the flat vector.

    Raises:
        ValueError: other tensors come after the statistics.
    """
    of_blocks = [name.startswith(PREFIX) for name, _ in tensors]
    if not any(of_blocks):
        return None
    sizes = [math.prod(shape) for _, shape in tensors]
    first = of_blocks.index(True)
    if not all(of_blocks[first:]):
        raise ValueError(f"{tensors[first][0]} is not among the last tensors: {', '.join(name for name, _ in tensors)}")
    return Statistics(sum(sizes[:first]), tuple((size - 2) // 4 for size in sizes[first:]))
