"""The numbers of a run over time, thinned to what a chart can show, so that a long run takes no more memory."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping

import numpy as np

MOST_POINTS = 1024
"""Points that a series keeps at most: about as many as a chart has columns of pixels."""
MOST_COLUMNS = 10_000
"""Of a series: a run of a thousand ranks has fewer, and a file of others may have any number."""
EXACT = ("/wall_seconds", "/agent_steps", "/update", "/version", "/episodes")
"""Ends of the names of totals, which are kept as float64: a float32 counts to 16 million only."""
DIGITS = 5


class Series:
    """Columns of numbers, each with as many rows as the others; NaN where a record does not have the number.

    Of n records every k-th is kept, k the smallest power of two that leaves at most MOST_POINTS. Which these are
    depends on their order alone, so whoever reads a file in parts has the same points as whoever reads it at once.

    Args:
        stride: what k begins with, where it is known beforehand that there are many records.
    """

    def __init__(self, stride: int = 1) -> None:
        self._stride, self._seen, self._rows = stride, 0, 0
        self._columns: dict[str, array[float]] = {}

    def __len__(self) -> int:
        return self._rows

    @property
    def names(self) -> list[str]:
        """Of the columns."""
        return list(self._columns)

    def wanted(self) -> bool:
        """Whether the next record is one of those that are kept; to be asked once for each."""
        self._seen += 1
        return (self._seen - 1) % self._stride == 0

    def add(self, values: Mapping[str, float]) -> None:
        """Append a record that is wanted."""
        room = MOST_COLUMNS - len(self._columns)
        for name in [name for name in values if name not in self._columns][:room]:
            kind = "d" if name.endswith(EXACT) else "f"
            self._columns[name] = array(kind, [math.nan]) * self._rows
        for name, column in self._columns.items():
            column.append(values.get(name, math.nan))
        self._rows += 1
        if self._rows > MOST_POINTS:
            self._stride *= 2
            self._keep(slice(None, None, 2))

    def cut(self, name: str, largest: float) -> None:
        """Leave out the rows from the first one on in which a column that ascends is larger."""
        column = self._columns.get(name)
        if column is None:
            return
        later = np.flatnonzero(np.array(column) > largest)
        if later.size:
            self._keep(slice(int(later[0])))
            self._seen = self._rows * self._stride

    def column(self, name: str) -> np.ndarray:
        """<float64>[rows]; NaN where it has no such number."""
        values = self._columns.get(name)
        return np.full(self._rows, math.nan) if values is None else np.array(values, np.float64)

    def last(self) -> dict[str, float]:
        """The numbers of the last row by the names of their columns."""
        row = {name: column[-1] for name, column in self._columns.items()} if self._rows else {}
        return {name: value for name, value in row.items() if not math.isnan(value)}

    def _keep(self, rows: slice) -> None:
        self._columns = {name: column[rows] for name, column in self._columns.items()}
        self._rows = len(next(iter(self._columns.values()), ()))


def stride_for(records: float) -> int:
    """The k of `Series` for about that many records, a tenth less: too small a one grows, and too large a one cannot
    be mended."""
    return 1 << max(0, math.ceil(math.log2(max(0.9 * records, 1) / MOST_POINTS)))


def as_json(values: np.ndarray) -> list[float | None]:
    """Numbers to five significant digits, whole numbers above that as they are; None for what is not finite."""
    values = np.asarray(values, np.float64)
    finite = np.isfinite(values)
    known = np.where(finite, values, 0.0)
    exponents = np.floor(np.log10(np.where(known == 0, 1.0, np.abs(known))))
    scale = 10.0 ** np.clip(DIGITS - 1 - exponents, 0, 300)
    rounded = np.round(known * scale) / scale
    return [value if known else None for value, known in zip(rounded.tolist(), finite.tolist())]
