"""Running means and variances within the flat vector: where they are, and how those of several sources become one.

They come in blocks. A block of D components is the count of samples [2], their means [2, D] and variances [2, D]; every
number is the sum of two float32, the second of which is what the first leaves over. In its gradient a worker has, in
their place, what it saw since its last one in the same form, with a count of 0 for nothing. Blocks are merged in
float64 as in Chan, Golub and LeVeque 1979: no learning rate, clipping or slot of an optimizer has a part in it.

Means and variances, since sums of squares cancel where a mean is large beside its deviation; two float32, since a
single one stands still when what is new is less than 6e-8 of what there is, which a long run reaches, and float64 does
not fit into the vector.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ddrl.errors import UsageError

PREFIX = "normalization/"
"""Of the names of tensors that are blocks."""


class Moments(NamedTuple):
    """Number of samples, and mean and variance of each component <float64>[D]."""

    count: float  # type: ignore[assignment] # hides tuple.count
    mean: np.ndarray
    variance: np.ndarray


def moments_of(rows: np.ndarray) -> Moments:
    """The moments of rows <float>[M, D], computed in float64; of no rows a count of 0."""
    if not len(rows):
        return Moments(0.0, np.zeros(rows.shape[1]), np.zeros(rows.shape[1]))
    with np.errstate(all="ignore"):  # of infinities: whoever takes them refuses
        mean = rows.mean(axis=0, dtype=np.float64)
        return Moments(float(len(rows)), mean, np.square(rows - mean).mean(axis=0))


def merged_moments(first: Moments, second: Moments) -> Moments:
    """The moments of all samples of both."""
    if not first.count or not second.count:
        return first if first.count else second
    count = first.count + second.count
    part, other = second.count / count, first.count / count
    with np.errstate(all="ignore"):
        difference = second.mean - first.mean
        variance = first.variance * other + second.variance * part + np.square(difference) * (part * other)
        return Moments(count, first.mean + difference * part, variance)


def block_size(width: int) -> int:
    """float32 values of the moments of so many components."""
    return 2 + 4 * width


def packed(moments: Moments) -> np.ndarray:
    """A block <float32>[2 + 4 D]."""
    halves = [_halves(np.array([moments.count])), _halves(moments.mean), _halves(moments.variance)]
    return np.concatenate(halves)


def unpacked(block: np.ndarray) -> Moments:
    """The inverse of `packed`."""
    pairs = np.split(block.astype(np.float64), [2, 2 + (block.size - 2) // 2])
    with np.errstate(invalid="ignore"):  # what an infinity leaves over is NaN
        count, mean, variance = (pair.reshape(2, -1).sum(axis=0) for pair in pairs)
    return Moments(float(count[0]), mean, variance)


def _halves(values: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        high = values.astype(np.float32)
        return np.concatenate([high, (values - high).astype(np.float32)])


class Statistics(NamedTuple):
    """Where in a vector there are running statistics.

    Attributes:
        start: the first value of the first block.
        widths: components of each block.
    """

    start: int
    widths: tuple[int, ...]

    @property
    def size(self) -> int:
        """float32 values of all blocks."""
        return sum(map(block_size, self.widths))

    @property
    def stop(self) -> int:
        """The value after the last block."""
        return self.start + self.size

    def within(self, start: int, stop: int) -> Statistics | None:
        """Those of the slice [start, stop), counted from its start; None where it has none.

        Raises:
            UsageError: the slice has a part of them.
        """
        if stop <= self.start or self.stop <= start:
            return None
        if not start <= self.start < self.stop <= stop:
            raise UsageError(
                f"the {self.size:,} values of the running statistics must lie in one part of the parameters, and a "
                f"part has only {stop - start:,}: use fewer --workers, --parameter-servers, or --store-chunks"
            )
        return Statistics(self.start - start, self.widths)

    def of(self, vector: np.ndarray) -> np.ndarray:
        """Their part of a vector, as a view."""
        return vector[self.start : self.stop]

    def merged(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """One <float32>[size] of several, in their order. Where one alone has counted anything, its own bits."""
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
        """Those of `out` become those of `old` and what the gradients saw; the gradients are merged first, so that it
        makes no difference whether somebody has merged them already."""
        seen = self.merged([self.of(gradient) for gradient in gradients])
        self.of(out)[:] = self.merged([self.of(old), seen])


def statistics_in(tensors: Sequence[tuple[str, tuple[int, ...]]]) -> Statistics | None:
    """The statistics of a network, whose last tensors they are; None where it has none.

    Args:
        tensors: name and shape of each, in the flat order.

    Raises:
        ValueError: other tensors come after them.
    """
    of_blocks = [name.startswith(PREFIX) for name, _ in tensors]
    if not any(of_blocks):
        return None
    sizes = [math.prod(shape) for _, shape in tensors]
    first = of_blocks.index(True)
    if not all(of_blocks[first:]):
        raise ValueError(f"{tensors[first][0]} is not among the last tensors: {', '.join(name for name, _ in tensors)}")
    return Statistics(sum(sizes[:first]), tuple((size - 2) // 4 for size in sizes[first:]))
